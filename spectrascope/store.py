"""The HDF5 cache of spectra. The only importer of h5py.

A store is a directory `NAME.spectra/` with one immutable file per checkpoint:

    step0000000500.h5
        attributes    format, format_version, spectrascope, step, source (JSON), settings (JSON)
        catalogue     JSON text: the matrices in model order (name, shape, dtype, role, hashes, reason, ...) and the
                      skipped tensors. Names are data in it, never HDF5 paths
        singular_values   float64, the R values of each matrix one after the other
        left, right       float32, of each matrix k rows of m and of n numbers, one after the other

A file is written under a temporary name, synced and renamed: a kill loses at most the checkpoint in hand, readers never
see half a file, and many machines can write at once. An existing file is never opened for writing.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from . import __version__
from .copies import describe_copies
from .errors import RequestError, StoreDamaged, StoreError, StoreLocked

FORMAT = "spectrascope-step"
FORMAT_VERSION = 1
STEP_FILE = re.compile(r"step(\d{10,})\.h5$")
LOCK_PATIENCE = 3.0  # seconds


@dataclass
class Record:
    """What the catalogue says of one matrix.

    `raw_hash` is the sha256 of the tensor's bytes, `vectors_hash` that of the vectors as stored; `reason` says why
    there is no decomposition, `failed` whether another attempt might give one, `note` what else to know.
    """

    name: str
    shape: tuple[int, int]
    dtype: str
    role: str
    raw_hash: str
    vectors: int
    guessed: bool = False
    tied: tuple[str, ...] = ()
    reason: str | None = None
    failed: bool = False
    note: str | None = None
    vectors_hash: str = ""

    @property
    def rank(self) -> int:
        """R, the number of singular values."""
        return min(self.shape)


@dataclass
class StepInfo:
    """A step's file without its arrays. `source` identifies the checkpoint, `settings` what was asked for."""

    path: Path
    step: int
    source: dict[str, Any]
    settings: dict[str, Any]
    records: list[Record]
    skipped: list[dict[str, Any]]
    coverage: float
    offsets: dict[str, tuple[int, int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        sigma = left = right = 0
        for record in self.records:
            self.offsets[record.name] = (sigma, left, right)
            sigma += record.rank
            left += record.vectors * record.shape[0]
            right += record.vectors * record.shape[1]
        self.sizes = (sigma, left, right)

    def record(self, matrix: str) -> Record | None:
        """The record of a matrix, None where this step has none of that name."""
        return next((record for record in self.records if record.name == matrix), None)


def step_path(store: Path, step: int) -> Path:
    """Where the file of a step is."""
    return store / f"step{step:010d}.h5"


def step_files(store: Path) -> dict[int, Path]:
    """The finished files of a store by step, in order."""
    if not store.is_dir():
        return {}
    found = {int(m[1]): path for path in store.iterdir() if (m := STEP_FILE.match(path.name))}
    return dict(sorted(found.items()))


def prepare(store: Path) -> None:
    """Make the directory of a store and clear away what killed runs of this machine left.

    Raises RequestError where a file has that name, StoreError where the directory cannot be made.
    """
    if store.exists() and not store.is_dir():
        raise RequestError(f"{store} is a file; a store is a directory. Name another with -o; the file is untouched")
    try:
        store.mkdir(parents=True, exist_ok=True)
        for path in store.glob(f".step*.{socket.gethostname()}.*.tmp"):
            if not _is_alive(int(path.name.split(".")[-2])):
                path.unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(f"{store}: the store cannot be made ({error.strerror or error})") from error


def set_aside(path: Path) -> Path:
    """Rename a damaged file so that its place is free; gives its new name."""
    number = 0
    while (target := path.with_name(f"{path.name}.damaged{number or ''}")).exists():
        number += 1
    path.rename(target)
    return target


def read_info(path: Path) -> StepInfo:
    """A step's file without its arrays. Raises StoreDamaged, StoreLocked, or StoreError for a newer format."""
    with _reading(path) as file:
        return _info(file, path)


def read_step(path: Path) -> tuple[StepInfo, NDArray[np.float64]]:
    """A step's file and all its singular values, one matrix after the other. Raises as `read_info`."""
    with _reading(path) as file:
        info = _info(file, path)
        return info, _checked(file["singular_values"], path).astype(np.float64, copy=False)


def read_vectors(info: StepInfo, record: Record, count: int | None = None) -> tuple[Any, Any]:
    """The first `count` left and right vectors of a matrix as rows: (k, m) and (k, n) float32. All, for None.

    Raises StoreDamaged where all are read and they are not those that were written.
    """
    k = record.vectors if count is None else min(count, record.vectors)
    _, left, right = info.offsets[record.name]
    m, n = record.shape
    with _reading(info.path) as file:
        u = file["left"][left : left + k * m].reshape(k, m)
        v = file["right"][right : right + k * n].reshape(k, n)
    if k == record.vectors and _hash(u, v) != record.vectors_hash:
        raise StoreDamaged(f"{info.path}: the vectors of {record.name} are not those that were written")
    return u, v


class StepWriter:
    """Writes the file of one step, matrix by matrix in any order; the same bytes come out in every order."""

    def __init__(self, store: Path, info: StepInfo) -> None:
        self._info = info
        self._target = step_path(store, info.step)
        self._temporary = store / f".{self._target.name}.{socket.gethostname()}.{os.getpid()}.tmp"
        with _writing(self._temporary):
            self._temporary.unlink(missing_ok=True)
            self._file = h5py.File(self._temporary, "x", locking="best-effort", libver=("v110", "v110"))
            sigma, left, right = info.sizes
            self._sigma = np.full(sigma, np.nan)
            for name, size in (("left", left), ("right", right)):
                array = self._file.create_dataset(name, shape=(size,), dtype=np.float32)
                if size:
                    array[-1:] = 0  # takes the space now, so that its place does not depend on the order of writing

    def add(self, record: Record, sigma: NDArray[np.float64], left: Any, right: Any) -> None:
        """Store one matrix; completes its record."""
        at_sigma, at_left, at_right = self._info.offsets[record.name]
        record.vectors_hash = _hash(left, right)
        self._sigma[at_sigma : at_sigma + sigma.size] = sigma
        with _writing(self._temporary):
            if left.size:
                self._file["left"][at_left : at_left + left.size] = left.ravel()
            if right.size:
                self._file["right"][at_right : at_right + right.size] = right.ravel()

    def finish(self) -> Path:
        """Write what is left, sync, and give the file its name."""
        info = self._info
        catalogue = {
            "matrices": [asdict(record) for record in info.records],
            "skipped": info.skipped,
            "coverage": info.coverage,
        }
        text = np.frombuffer(json.dumps(catalogue).encode("ascii"), dtype=np.uint8)
        with _writing(self._temporary):
            for name, array in (("singular_values", self._sigma), ("catalogue", text)):
                self._file.create_dataset(name, data=array).attrs["sha256"] = _hash(array)
            self._file.attrs.update(
                {
                    "format": FORMAT,
                    "format_version": FORMAT_VERSION,
                    "spectrascope": __version__,
                    "step": info.step,
                    "source": json.dumps(info.source),
                    "settings": json.dumps(info.settings),
                }
            )
            self._file.close()
            _sync(self._temporary)
            os.replace(self._temporary, self._target)
            _sync(self._target.parent)
        return self._target

    def abandon(self) -> None:
        """Leave nothing behind."""
        with contextlib.suppress(Exception):
            self._file.close()
        with contextlib.suppress(OSError):
            self._temporary.unlink(missing_ok=True)


class Trajectory:
    """A store opened for reading.

    Attributes
    ----------
    path : the store's directory
    steps : list of int, ascending
    matrices : list of str, in the model's order
    warnings : list of str
    failures : list of {"path", "step", "matrix", "reason"}
    """

    def __init__(self, path: Path, steps: Sequence[int] | None = None) -> None:
        self.path = path
        self.failures: list[dict[str, Any]] = []
        self._info: dict[int, StepInfo] = {}
        self._sigma: dict[int, NDArray[np.float64]] = {}
        for step, file in step_files(path).items():
            if steps is not None and step not in steps:
                continue
            try:
                self._info[step], self._sigma[step] = read_step(file)
            except StoreDamaged as error:
                self.failures.append({"path": str(file), "step": step, "matrix": None, "reason": _after_path(error)})
        self.failures += [
            {"path": info.source["path"], "step": step, "matrix": record.name, "reason": record.reason}
            for step, info in self._info.items()
            for record in info.records
            if record.reason
        ]
        self.steps = list(self._info)
        self.matrices = list(dict.fromkeys(r.name for info in self._info.values() for r in info.records))
        self.warnings = [
            f"{record.name} at step {step}: {record.note}"
            for step, info in self._info.items()
            for record in info.records
            if record.note
        ] + describe_copies({s: {r.name: r.raw_hash for r in info.records} for s, info in self._info.items()})

    def __repr__(self) -> str:
        return f"<Trajectory {self.path}: {len(self.steps)} steps, {len(self.matrices)} matrices>"

    def info(self, step: int) -> StepInfo:
        """What the file of a step says beside its arrays. Raises RequestError for a step that is not there."""
        if step not in self._info:
            raise RequestError(f"{self.path} has no step {step}; it has {_listed(self.steps)}")
        return self._info[step]

    def singular_values(self, matrix: str, step: int | None = None) -> NDArray[np.float64]:
        """The spectrum of a matrix: (R,) at a step, or (T, R) over all steps.

        Descending. NaN throughout where the matrix is absent or was not decomposed; where its shape changes, R is
        the largest and shorter spectra end in NaN. Raises RequestError for a name or step that is not there.
        """
        self._require(matrix)
        if step is not None:
            return self._spectrum(step, self._require_record(matrix, step))
        spectra = [self._spectrum_or_none(matrix, step) for step in self.steps]
        table = np.full((len(spectra), max(s.size for s in spectra if s is not None)), np.nan)
        for row, spectrum in zip(table, spectra, strict=True):
            if spectrum is not None:
                row[: spectrum.size] = spectrum
        return table

    def vectors(
        self, matrix: str, step: int, count: int | None = None
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """U (m, k) and V (n, k): the first k singular vectors of a matrix at a step, as columns.

        k is `count`, or all that the store holds. Raises RequestError for a name or step that is not there, and
        StoreDamaged where the file was altered.
        """
        self._require(matrix)
        left, right = read_vectors(self.info(step), self._require_record(matrix, step), count)
        return left.T, right.T

    def _spectrum(self, step: int, record: Record) -> NDArray[np.float64]:
        start = self._info[step].offsets[record.name][0]
        return self._sigma[step][start : start + record.rank]

    def _spectrum_or_none(self, matrix: str, step: int) -> NDArray[np.float64] | None:
        record = self._info[step].record(matrix)
        return None if record is None else self._spectrum(step, record)

    def _require(self, matrix: str) -> None:
        if matrix not in self.matrices:
            raise RequestError(f"{self.path} has no matrix {matrix!r}; it has {_listed(self.matrices)}")

    def _require_record(self, matrix: str, step: int) -> Record:
        record = self.info(step).record(matrix)
        if record is None:
            raise RequestError(f"{self.path} has no matrix {matrix!r} at step {step}")
        return record


def open(store: str | os.PathLike[str], steps: Sequence[int] | None = None) -> Trajectory:
    """Open a store of spectra; of `steps` only, where they are given.

    Damaged files are listed in `failures` of what is returned, and left out. Raises RequestError where the path is no
    store, StoreLocked where another process writes to one of its files, StoreError for files of a newer version.
    """
    path = Path(store)
    if not path.exists():
        raise RequestError(f"{path}: no such store; make one with `spectrascope analyze`")
    if not path.is_dir() or not step_files(path):
        raise RequestError(f"{path} is not a store of spectra (a directory that `spectrascope analyze` made)")
    return Trajectory(path, steps)


def write_plain(trajectory: Trajectory, path: Path) -> None:
    """One HDF5 file for other tools: `steps` (T,), `names` (M,), and `singular_values/0`, `/1`, ... (T, R).

    Names are text with escapes, as JSON has them; each dataset carries its own as the attribute `name`. NaN where a
    matrix is absent or was not decomposed. An existing file is replaced only once the new one is whole.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    names = [json.dumps(name)[1:-1] for name in trajectory.matrices]
    try:
        with _writing(path), h5py.File(temporary, "x", locking="best-effort") as file:
            file["steps"] = np.array(trajectory.steps, dtype=np.int64)
            file.create_dataset("names", data=names, dtype=h5py.string_dtype())
            for index, name in enumerate(trajectory.matrices):
                dataset = file.create_dataset(f"singular_values/{index}", data=trajectory.singular_values(name))
                dataset.attrs["name"] = names[index]
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _info(file: Any, path: Path) -> StepInfo:
    if file.attrs.get("format") != FORMAT:
        raise StoreDamaged(f"{path}: is not a file of spectra")
    version = int(file.attrs["format_version"])
    if version not in _READERS:
        raise StoreError(
            f"{path} has format version {version}, newer than this spectrascope {__version__} reads; "
            "upgrade spectrascope, or analyse into another store"
        )
    return _READERS[version](file, path)


def _info_version_1(file: Any, path: Path) -> StepInfo:
    catalogue = json.loads(_checked(file["catalogue"], path).tobytes())
    records = [
        Record(**(record | {"shape": tuple(record["shape"]), "tied": tuple(record["tied"])}))
        for record in catalogue["matrices"]
    ]
    info = StepInfo(
        path=path,
        step=int(file.attrs["step"]),
        source=json.loads(file.attrs["source"]),
        settings=json.loads(file.attrs["settings"]),
        records=records,
        skipped=catalogue["skipped"],
        coverage=catalogue["coverage"],
    )
    if info.sizes != tuple(file[name].size for name in ("singular_values", "left", "right")):
        raise StoreDamaged(f"{path}: its arrays do not have the sizes that its catalogue states")
    return info


# format version -> reader. A version that was once released stays here.
_READERS = {1: _info_version_1}


def _checked(dataset: Any, path: Path) -> NDArray[Any]:
    array: NDArray[Any] = dataset[()]
    if _hash(array) != dataset.attrs["sha256"]:
        raise StoreDamaged(f"{path}: {dataset.name[1:]} is not what was written")
    return array


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[Any]:
    try:
        with _open_patiently(path) as file:
            yield file
    except (StoreError, RequestError):
        raise
    except (OSError, KeyError, ValueError, TypeError, RuntimeError) as error:
        if isinstance(error, PermissionError):
            raise StoreError(f"{path}: may not be read") from error
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
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError) as error:
        code = getattr(error, "errno", None)
        cause = "no space is left on the disk" if code == errno.ENOSPC else str(error)
        raise StoreError(f"{path.parent}: cannot be written to ({cause})") from error


def _hash(*arrays: NDArray[Any]) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _after_path(error: StoreError) -> str:
    return str(error).split(": ", 1)[-1]


def _listed(items: Sequence[Any]) -> str:
    return ", ".join(map(str, items[:8])) + (", ..." if items[8:] else "")
