"""Opening HDF5 files so that every failure has a name."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from ..errors import RequestError, StoreDamaged, StoreError, StoreLocked, StoreUnwritable

LOCK_PATIENCE = 3.0  # seconds


@contextlib.contextmanager
def reading(path: Path) -> Iterator[Any]:
    """An HDF5 file open for reading. Raises StoreDamaged for any fault of the file, StoreLocked, or StoreError."""
    try:
        with _open_patiently(path) as file:
            yield file
    except (StoreError, RequestError):
        raise
    except PermissionError as error:
        raise StoreError(f"{path}: may not be read") from error
    except Exception as error:  # altered bytes make HDF5 and JSON raise whatever they raise
        raise StoreDamaged(f"{path}: is truncated or damaged ({str(error)[:160]})") from error


def _open_patiently(path: Path) -> Any:
    """Wait a little for a writer. The user's HDF5_USE_FILE_LOCKING is left as it is."""
    deadline = time.monotonic() + LOCK_PATIENCE
    while True:
        try:
            return h5py.File(path, "r", locking="best-effort")
        except BlockingIOError as error:
            if time.monotonic() > deadline:
                raise StoreLocked(
                    f"{path} is locked by another process that has it open for writing; "
                    "close that process, or use another store with -o"
                ) from error
            time.sleep(0.1)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Names the failures of what is written to `path`, such as a full disk. Raises StoreUnwritable."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        code = getattr(error, "errno", None)
        cause = "no space is left on the disk" if code == errno.ENOSPC else str(error)
        raise StoreUnwritable(f"{path.parent}: cannot be written to ({cause})") from error


def hash_arrays(*arrays: NDArray[Any]) -> str:
    """sha256 of the bytes of arrays, one after the other."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
