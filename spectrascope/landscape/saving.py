"""Checkpoints and masks as `.safetensors`, written tensor by tensor: no second copy of them is held.

The format is a length, a JSON header and the raw tensors (https://huggingface.co/docs/safetensors); the library's own
writers want all tensors at once.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path

import numpy as np

from ..arrays import Array, dtype_named, raw_bytes
from ..checkpoints import Checkpoint
from ..checkpoints.safetensors_file import DTYPES
from ..errors import RequestError
from ..report.files import require_writable, write_whole
from ..tensors import TensorInfo
from .weights import opened, the_only

SUFFIX = ".safetensors"
CODES = {dtype: code for code, dtype in DTYPES.items()}
# Data begins at a multiple of so many bytes.
ALIGNMENT = 8


def savable(option: str, path: Path) -> Path:
    """The file that is meant: a name without a suffix is given one.

    Raises RequestError, before any work, where it cannot be written.
    """
    path = path if path.suffix or path.is_dir() else path.with_suffix(SUFFIX)
    require_writable(option, path, (SUFFIX,))
    return path


def require_another(path: Path, checkpoint: Checkpoint) -> None:
    """Raises RequestError where a path is one of a checkpoint's own files."""
    if path.exists() and any(file.exists() and path.samefile(file) for file in checkpoint.files):
        raise RequestError(f"{path} is of the checkpoint itself; name another file")


def require_copyable(path: Path, checkpoint: Checkpoint) -> None:
    """Raises RequestError, before any work, where a changed copy of a checkpoint cannot be written to this path."""
    require_another(path, checkpoint)
    for name, info in checkpoint.stored.items():
        if info.problem is not None:
            raise RequestError(f"{checkpoint.path} cannot be written again: {name} is {info.problem}")
        if info.dtype not in CODES:
            raise RequestError(f"{checkpoint.path} cannot be written to {path}: {name} is {info.dtype}")


def save_checkpoint(path: Path, checkpoint: Checkpoint, load: Callable[[str], Array]) -> None:
    """All tensors of a checkpoint's model as `load` gives them, parts of effective weights and codes as stored.

    Averages, optimizers and what the file says of itself are left out. Raises SpectrascopeError where the file cannot
    be written.
    """
    save(path, checkpoint.stored, load)


def save(path: Path, infos: Mapping[str, TensorInfo], load: Callable[[str], Array]) -> None:
    """A file of these tensors, whole or not at all, which `load` gives in the types and shapes of `infos`.

    Raises SpectrascopeError where it cannot be written, ValueError where `load` gives another tensor.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, info in infos.items():
        dtype = np.dtype(dtype_named(info.dtype))
        start, end = end, end + prod(info.shape) * dtype.itemsize
        header[name] = {"dtype": CODES[info.dtype], "shape": list(info.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for name, info in infos.items():
                array = load(name)
                if (array.dtype.name, array.shape) != (info.dtype, info.shape):
                    raise ValueError(f"{name} comes as {array.dtype} {array.shape}, not {info.dtype} {info.shape}")
                file.write(raw_bytes(array))
            file.flush()
            os.fsync(file.fileno())

    write_whole(path, write)


def read_masks(path: Path, trust_pickle: bool = False) -> dict[str, Array]:
    """Masks by the names of their tensors. Raises RequestError where the file does not hold booleans alone."""
    with opened(the_only(path, trust_pickle)) as checkpoint:
        others = [name for name, info in checkpoint.tensors.items() if info.dtype != "bool" and info.problem is None]
        if others or not checkpoint.tensors:
            raise RequestError(f"{path}: masks are boolean tensors, and {others[0] if others else 'none'} is there")
        return {name: checkpoint.load(name) for name in checkpoint.tensors}
