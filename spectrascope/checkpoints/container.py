"""The protocol that every checkpoint format keeps, and what files of all formats have in common."""

from __future__ import annotations

import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import torch

from ..errors import CheckpointError
from ..tensors import TensorInfo
from .foreign import refuse_foreign
from .payload import Payload

LFS_POINTER = b"version https://git-lfs.github.com/spec/"


class Container(Protocol):
    """The tensors of one checkpoint under their stored names. Safe to use from several threads.

    `ordered` tells whether `tensors()` keeps the order of the model's state dict.
    Every method raises CheckpointError, which names the file at fault.
    """

    path: Path
    ordered: bool

    def tensors(self) -> list[TensorInfo]:
        """All tensors, read from headers alone where the format allows."""
        ...

    def load(self, name: str, index: int | None = None) -> torch.Tensor:
        """One tensor on the CPU, or what is at `index` of its first axis.

        Its memory is given back when the tensor is dropped.
        """
        ...

    def step(self) -> int | None:
        """The training step that the content itself names, if any."""
        ...

    def files(self) -> list[Path]:
        """The files that hold the weights, in a fixed order."""
        ...


def require_content(path: Path) -> None:
    """Refuse what is no weight file of any format. Raises CheckpointError."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise CheckpointError(path, "is not a regular file")
        with path.open("rb") as file:
            start = file.read(len(LFS_POINTER))
    except OSError as error:
        raise CheckpointError(path, f"cannot be read ({error.strerror or error})") from error
    if not start:
        raise CheckpointError(path, "is empty (0 bytes)")
    if start == LFS_POINTER:
        raise CheckpointError(path, "is a Git LFS pointer, not the weights; run `git lfs pull` to fetch them")
    refuse_foreign(path, start)


def describe_tensor(name: str, tensor: torch.Tensor) -> TensorInfo:
    """What a tensor in memory, or mapped into it, is; views of the same memory have the same `storage`."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    shape = tuple(tensor.shape)
    if tensor.is_meta:
        return TensorInfo(
            name, shape, dtype, problem="a meta tensor: the file holds its shape, not its values", is_meta=True
        )
    if not type(tensor).__module__.startswith(("torch.nn", "torch._tensor")) and type(tensor) is not torch.Tensor:
        problem = f"a {type(tensor).__name__}, not a plain tensor; gather or convert it before it is saved"
        return TensorInfo(name, shape, dtype, problem=problem, kind="refused")
    if tensor.is_quantized:
        problem = "quantised by torch; save tensor.dequantize()"
        return TensorInfo(name, shape, dtype, problem=problem, kind="refused")
    if tensor.layout != torch.strided:
        layout = str(tensor.layout).removeprefix("torch.")
        problem = f"stored as {layout}, which is not read; save tensor.to_dense()"
        return TensorInfo(name, shape, dtype, problem=problem, kind="refused")
    stored = tensor.untyped_storage().nbytes() // tensor.element_size()
    if tensor.numel() > stored:
        problem = f"an expanded view: {stored:,} stored numbers stand for {tensor.numel():,}"
        return TensorInfo(name, shape, dtype, problem=problem)
    view = (tensor.untyped_storage().data_ptr(), tensor.storage_offset(), shape, tensor.stride(), dtype)
    return TensorInfo(name, shape, dtype, storage=view if tensor.numel() else None)


def describe_payload(
    found: Payload, describe: Callable[[str, torch.Tensor], TensorInfo] = describe_tensor
) -> list[TensorInfo]:
    """All that a payload holds: the model's tensors, those of averages, and what is left out, to be listed."""
    model = [describe(name, tensor) for name, tensor in found.tensors.items()]
    averages = [
        replace(describe(name, tensor), kind="average")
        for name, tensor in found.averages.items()
        if name not in found.tensors
    ]
    left_out = [
        TensorInfo(key, (), "-", problem=reason, kind="other")
        for key, reason in found.left_out.items()
        if key not in found.all
    ]
    return model + averages + left_out
