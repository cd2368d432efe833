"""The protocol that every checkpoint format keeps, and what files of all formats have in common."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Protocol

from ..arrays import Array
from ..errors import CheckpointError
from ..tensors import TensorInfo
from .foreign import refuse_foreign

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

    def load(self, name: str, index: int | None = None) -> Array:
        """One tensor, or what is at `index` of its first axis.

        It is the caller's own to change, unless it is of a state dict in memory.
        Its memory is given back when it is dropped.
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
