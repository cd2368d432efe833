"""One plain HDF5 file for other tools."""

from __future__ import annotations

import json
import os
from pathlib import Path

import h5py
import numpy as np

from .directory import temporary_path
from .hdf5 import writing
from .trajectory import Trajectory


def write_plain(trajectory: Trajectory, path: Path) -> None:
    """One HDF5 file for other tools: `steps` (T,), `names` (M,), and `singular_values/0`, `/1`, ... (T, R).

    Names are text with escapes, as JSON has them; each dataset carries its own as the attribute `name`. NaN where a
    matrix is absent or was not decomposed. An existing file is replaced only once the new one is whole.
    """
    temporary = temporary_path(path)
    names = [json.dumps(name)[1:-1] for name in trajectory.matrices]
    try:
        with writing(path), h5py.File(temporary, "x", locking="best-effort") as file:
            file["steps"] = np.array(trajectory.steps, dtype=np.int64)
            file.create_dataset("names", data=names, dtype=h5py.string_dtype())
            for index, name in enumerate(trajectory.matrices):
                dataset = file.create_dataset(f"singular_values/{index}", data=trajectory.singular_values(name))
                dataset.attrs["name"] = names[index]
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
