"""`.npz`: archives of plain NumPy arrays."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..errors import CheckpointError
from ..matrices import TensorInfo
from .container import require_content


class NpzFile:
    """One `.npz` file; arrays of Python objects, which are pickles, are refused."""

    ordered = True

    def __init__(self, path: Path) -> None:
        self.path = path
        require_content(path)

    def tensors(self) -> list[TensorInfo]:
        try:
            with zipfile.ZipFile(self.path) as archive:
                names = [name for name in archive.namelist() if name.endswith(".npy")]
                return [self._describe(archive, name) for name in names]
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            raise CheckpointError(self.path, f"is not a valid .npz archive ({error})") from error

    def load(self, name: str) -> torch.Tensor:
        try:
            with np.load(self.path, allow_pickle=False) as arrays:
                array = arrays[name]
        except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
            raise CheckpointError(self.path, f"{name} cannot be read ({error})") from error
        return torch.from_numpy(np.ascontiguousarray(array.astype(array.dtype.newbyteorder("="), copy=False)))

    def step(self) -> int | None:
        for info in self.tensors():
            if info.name in ("global_step", "step") and info.size == 1:
                return int(self.load(info.name).item())
        return None

    def files(self) -> list[Path]:
        return [self.path]

    @staticmethod
    def _describe(archive: zipfile.ZipFile, member: str) -> TensorInfo:
        with archive.open(member) as file:
            shape, _, dtype = _read_header(file)
        problem = "an array of Python objects, which is a pickle" if dtype.hasobject else None
        return TensorInfo(member.removesuffix(".npy"), shape, dtype.newbyteorder("=").name, problem=problem)


def _read_header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(file)
    reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = reader(file)
    return tuple(shape), fortran, dtype
