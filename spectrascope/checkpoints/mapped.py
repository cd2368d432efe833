"""Copies out of mapped files that survive what other processes do to the file."""

from __future__ import annotations

import errno
import os
from typing import IO

import torch

# The memory of this process as a file: reading a page that is gone is an error there, and not the end of the process.
OWN_MEMORY = "/proc/self/mem"


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of a tensor whose memory is a mapped file.

    Raises OSError where the file has become shorter than it was; without /proc, such a file ends the process.
    """
    memory = _own_memory() if tensor.numel() else None
    if memory is None:
        return tensor.clone()
    # From its first to its last number; gaps between them, if it is a view, are copied with it.
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    content = torch.empty(span * tensor.element_size(), dtype=torch.uint8)
    with memory:
        _read(memory, tensor.data_ptr(), memoryview(content.numpy()))
    return content.view(tensor.dtype).as_strided(tensor.shape, tensor.stride(), 0)


def _own_memory() -> IO[bytes] | None:
    """None on other systems than Linux, and where a hardened one keeps it closed."""
    try:
        return open(OWN_MEMORY, "rb", buffering=0)
    except OSError:
        return None


def _read(memory: IO[bytes], address: int, target: memoryview) -> None:
    done = 0
    while done < len(target):
        count = os.preadv(memory.fileno(), [target[done:]], address + done)
        if count == 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        done += count
