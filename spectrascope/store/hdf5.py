"""Opening HDF5 files so that every failure has a name."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
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


@contextlib.contextmanager
def reading_bytes(path: Path) -> Iterator[Any]:
    """A file open for reading as it is. Raises StoreDamaged where it is gone, StoreError where it may not be read."""
    try:
        with path.open("rb", buffering=0) as file:
            yield file
    except PermissionError as error:
        raise StoreError(f"{path}: may not be read") from error
    except OSError as error:
        raise StoreDamaged(f"{path}: cannot be read ({error.strerror or error})") from error


@dataclass(frozen=True)
class Array:
    """An array of numbers in a file, which lies there in one piece, and the sha256 that it was written with."""

    offset: int
    size: int
    dtype: np.dtype[Any]
    digest: bytes


def find_array(file: Any, name: str) -> Array:
    """Where HDF5 says that an array is. Raises StoreDamaged where another program packed it.

    Reading it from there takes a fraction of the time that h5py's own objects need, of which reports open thousands.
    """
    dataset = h5py.h5d.open(file.id, name.encode())
    offset, size = dataset.get_offset(), int(np.prod(dataset.shape))
    if offset is None and size:
        raise StoreDamaged(f"{file.filename}: was repacked by another program; analyse again")
    has_digest = h5py.h5a.exists(dataset, b"sha256")
    return Array(offset or 0, size, dataset.dtype, bytes(attribute(dataset, "sha256")) if has_digest else b"")


def attribute(place: Any, name: str) -> Any:
    """An attribute of a file or array, by its low-level identifier."""
    found = h5py.h5a.open(place, name.encode())
    value = np.empty((), found.dtype)
    found.read(value)
    return value[()]


def read_array(path: Path, descriptor: int, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """An array that lies in one piece at this place of an open file. Raises StoreDamaged where the file ends before."""
    array = np.empty(shape, dtype)
    view = array.reshape(-1).view(np.uint8).data
    done = 0
    while done < len(view):
        count = os.preadv(descriptor, [view[done:]], offset + done)
        if not count:
            raise StoreDamaged(f"{path}: is truncated")
        done += count
    return array


def identity(descriptor: int) -> tuple[int, ...]:
    """What tells an open file from another one that took its name."""
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


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


class Disk:
    """A new file for HDF5 to write, which does not tell it of failures: `require_written` does, to us.

    HDF5 crashes where a disk fills up while it closes a file.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("x+b", buffering=0)
        self._error: OSError | None = None

    def require_written(self) -> None:
        """Raises the OSError of the first write that failed."""
        if self._error is not None:
            raise self._error

    def write(self, content: Any) -> int:
        """All of it, or a failure that is kept."""
        view, done = memoryview(content).cast("B"), 0
        try:
            while self._error is None and done < len(view):
                done += self._file.write(view[done:]) or 0
        except OSError as error:
            self._error = error
        return len(view)

    def truncate(self, size: int | None = None) -> int:
        """Set the size of the file, or keep the failure."""
        try:
            return self._file.truncate(size)
        except OSError as error:
            self._error = self._error or error
            return size or 0

    def readinto(self, target: Any) -> int:
        """Fill the target; with zeros where the file is shorter, which it is after a failure alone."""
        view = memoryview(target).cast("B")
        done = 0
        while done < len(view) and (count := self._file.readinto(view[done:])):
            done += count
        view[done:] = bytes(len(view) - done)
        return len(view)

    def read(self, size: int = -1) -> bytes:
        """For h5py, which takes what has this for a file."""
        return self._file.read(size) or b""

    def seek(self, offset: int, whence: int = 0) -> int:
        """As that of any file."""
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        """As that of any file."""
        return self._file.tell()

    def flush(self) -> None:
        """Nothing is buffered here."""

    def close(self) -> None:
        """Close the file; what HDF5 has open on it must be closed before."""
        self._file.close()


def hash_arrays(*arrays: NDArray[Any]) -> str:
    """sha256 of the bytes of arrays, one after the other."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
