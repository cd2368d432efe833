"""One plain HDF5 file for other tools."""

from __future__ import annotations

import io
import json
from pathlib import Path

import h5py
import numpy as np

from .hdf5 import writing
from .trajectory import Trajectory


def write_plain(trajectory: Trajectory, path: Path) -> None:
    """A new HDF5 file: `steps` (T,), `names` (M,), and `singular_values/0`, `/1`, ... (T, R).

    Names are text with escapes, as JSON has them; each dataset carries its own as the attribute `name`. NaN where a
    matrix is absent or was not decomposed. Raises StoreError where it cannot be written, or is there already.
    """
    names = [json.dumps(name)[1:-1] for name in trajectory.matrices]
    image = io.BytesIO()  # HDF5 may crash where a disk fills up while it closes a file
    with h5py.File(image, "w") as file:
        file["steps"] = np.array(trajectory.steps, dtype=np.int64)
        file.create_dataset("names", data=names, dtype=h5py.string_dtype())
        for index, name in enumerate(trajectory.matrices):
            dataset = file.create_dataset(f"singular_values/{index}", data=trajectory.singular_values(name))
            dataset.attrs["name"] = names[index]
    with writing(path), path.open("xb") as target:
        target.write(image.getbuffer())
