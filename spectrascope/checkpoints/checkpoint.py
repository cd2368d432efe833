"""One checkpoint: a container seen through the model's own names."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Hashable
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import CheckpointError
from ..matrices import TensorInfo, model_order
from .container import Container
from .names import without_wrappers

if TYPE_CHECKING:
    import torch


class Checkpoint:
    """The weights of one step.

    Attributes
    ----------
    tensors : dict of name -> TensorInfo, wrapper prefixes stripped, in the model's order
    tied : dict of name -> the earlier name that it shares memory with
    path : what to show a person

    Raises CheckpointError where two tensors come to the same name.
    """

    def __init__(self, container: Container) -> None:
        self.path = container.path
        self._container = container
        listed = {info.name: info for info in container.tensors()}
        self._stored_name = self._unwrap(list(listed))
        order = list(self._stored_name) if container.ordered else model_order(list(self._stored_name))
        self.tensors = {name: _renamed(listed[self._stored_name[name]], name) for name in order}
        self.tied = _tied(self.tensors)

    def load(self, name: str) -> torch.Tensor:
        """The tensor of this name, on the CPU. Raises CheckpointError, which names it, where it cannot be read."""
        try:
            return self._container.load(self._stored_name[name])
        except (OSError, RuntimeError, ValueError) as error:
            raise CheckpointError(self.path, f"{name} cannot be read ({error})") from error

    def stamp(self) -> list[tuple[str, int, int]]:
        """Name, size and modification time (ns) of each weight file. Raises CheckpointError if one is gone."""
        return stamp(self._container.files())

    def content_hash(self) -> str:
        """sha256 over the weight files, or over the tensors where there is no file."""
        files = self._container.files()
        if files:
            return hash_files(files)
        digest = hashlib.sha256()
        for name, info in self.tensors.items():
            digest.update(repr((name, info.shape, info.dtype)).encode())
            if info.problem is None:
                digest.update(hash_tensor(self.load(name)).encode())
        return digest.hexdigest()

    def _unwrap(self, names: list[str]) -> dict[str, str]:
        stored: dict[str, str] = {}
        for name, bare in without_wrappers(names).items():
            if bare in stored:
                raise CheckpointError(self.path, f"{stored[bare]!r} and {name!r} are both {bare!r} without wrappers")
            stored[bare] = name
        return stored


def stamp(files: list[Path]) -> list[tuple[str, int, int]]:
    """Name, size and modification time (ns) of each file."""
    stamps = []
    for path in files:
        try:
            status = os.stat(path)
        except OSError as error:
            raise CheckpointError(path, f"cannot be read ({error.strerror})") from error
        stamps.append((path.name, status.st_size, status.st_mtime_ns))
    return stamps


def hash_files(files: list[Path]) -> str:
    """sha256 of a file; of several, the sha256 of their names and sha256s."""
    digests = []
    for path in files:
        try:
            with path.open("rb") as file:
                digests.append((path.name, hashlib.file_digest(file, "sha256").hexdigest()))
        except OSError as error:
            raise CheckpointError(path, f"cannot be read ({error.strerror or error})") from error
    if len(digests) == 1:
        return digests[0][1]
    return hashlib.sha256(repr(digests).encode()).hexdigest()


def hash_tensor(tensor: torch.Tensor) -> str:
    """sha256 of a tensor's raw bytes in row-major order."""
    import torch

    raw = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.sha256(memoryview(raw.numpy())).hexdigest()


def _renamed(info: TensorInfo, name: str) -> TensorInfo:
    return TensorInfo(name, info.shape, info.dtype, info.storage, info.problem)


def _tied(tensors: dict[str, TensorInfo]) -> dict[str, str]:
    first: dict[Hashable, str] = {}
    tied = {}
    for name, info in tensors.items():
        if info.storage is None or info.size == 0:
            continue
        if info.storage in first:
            tied[name] = first[info.storage]
        else:
            first[info.storage] = name
    return tied
