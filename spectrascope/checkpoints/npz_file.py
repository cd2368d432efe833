"""`.npz`: archives of plain NumPy arrays."""

from __future__ import annotations

import threading
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from ..arrays import Array
from ..errors import CheckpointError, unreadable
from ..tensors import TensorInfo
from .container import require_content
from .steps import as_step


class NpzFile:
    """One `.npz` file; arrays of Python objects, which are pickles, are refused."""

    ordered = True

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._archive: zipfile.ZipFile | None = None
        require_content(path)

    def tensors(self) -> list[TensorInfo]:
        with self._lock:
            try:
                archive = self._open()
                return [self._describe(archive, name) for name in archive.namelist() if name.endswith(".npy")]
            except Exception as error:  # zipfile, zlib and NumPy raise whatever they raise on damaged archives
                raise CheckpointError(self.path, f"is not a valid .npz archive ({error})") from error

    def load(self, name: str, index: int | None = None) -> Array:
        with self._lock:
            try:
                # The member itself: np.load would take `x.npy` for `x`.
                with self._open().open(f"{name}.npy") as member:
                    array = np.lib.format.read_array(member, allow_pickle=False)
            except MemoryError:
                raise
            except Exception as error:
                raise CheckpointError(self.path, f"{name} {unreadable(error)}") from error
        array = array if index is None else array[index]
        return np.asarray(array.astype(array.dtype.newbyteorder("="), copy=False))

    def step(self) -> int | None:
        for info in self.tensors():
            if info.name in ("global_step", "step") and info.size == 1 and info.problem is None:
                return as_step(self.load(info.name).item())
        return None

    def files(self) -> list[Path]:
        return [self.path]

    def _open(self) -> zipfile.ZipFile:
        if self._archive is None:
            self._archive = zipfile.ZipFile(self.path)
        return self._archive

    @staticmethod
    def _describe(archive: zipfile.ZipFile, member: str) -> TensorInfo:
        with archive.open(member) as file:
            shape, dtype = _read_header(file)
        problem = "an array of Python objects, which is a pickle" if dtype.hasobject else None
        return TensorInfo(member.removesuffix(".npy"), shape, dtype.newbyteorder("=").name, problem=problem)


def _read_header(file: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    version = np.lib.format.read_magic(file)
    reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = reader(file)
    return tuple(shape), dtype
