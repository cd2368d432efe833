"""The file of one step: what it says, and writing it."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from .. import __version__
from ..architectures.pairs import block_word
from ..errors import StoreDamaged, StoreError
from .directory import step_path, temporary_path
from .hdf5 import Disk, attribute, find_array, hash_arrays, identity, read_array, reading, reading_bytes, writing

Side = tuple[str, str]
SIDES = ("left", "right")
FORMAT = "spectrascope-step"
LEADING = 10  # vectors that most reports read, and whose bytes are checked then
FORMAT_VERSION = 2
READABLE = (1, 2)  # a version that was once released stays here
# Metadata with checksums, which 1.8 brought, and without the flags of a writer, which 1.10 brought: a process that is
# killed while it has a file open must not make the file unreadable.
LIBVER = ("v108", "v110")  # and text of fixed length: that of varying length is kept without checksums


@dataclass
class Record:
    """What the catalogue says of one matrix.

    `raw_hash` is the sha256 of the tensor's bytes, `vectors_hash` that of the vectors as stored, `left_hash` and
    `right_hash` are the first digits of that of the leading ten of a side; `reason` says why
    there is no decomposition, `failed` whether another attempt might give one, `note` what else to know; `made_of`
    how the weight comes of what the checkpoint stores, `sparsity` the share of its entries that are exactly zero,
    `kernel` the spatial size of a convolution. A record with a `block_count` is of so many equal blocks of a matrix, of
    which `shape` is one; only the vectors of one `side` of them are kept, and `word` is what a block is: head or
    direction.
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
    made_of: str | None = None
    sparsity: float | None = None
    left_hash: str = ""
    right_hash: str = ""
    kernel: tuple[int, ...] = ()
    block_count: int = 0
    side: str | None = None
    word: str = ""

    @property
    def rank(self) -> int:
        """R, the number of singular values, of one block where there are several."""
        return min(self.shape)

    @property
    def values(self) -> int:
        """How many singular values are kept."""
        return self.rank * max(self.block_count, 1)

    @property
    def block_names(self) -> list[str]:
        """What each block is called: `NAME[q,0]`, `NAME[q,1]`, ... for `NAME[q,head]`."""
        start = self.name.removesuffix(f"{self.word}]")
        return [f"{start}{block_word(self.word, index)}]" for index in range(self.block_count)]

    def vectors_shape(self, side: str, count: int | None = None) -> tuple[int, ...]:
        """The shape of the vectors of a side as they are kept, or of the first `count` of them: one a row.

        (k, d); of blocks (k, blocks, d); with k = 0 for the side of which none is kept.
        """
        k = self.vectors if count is None else min(count, self.vectors)
        k = k if self.side in (None, side) else 0
        dimension = self.shape[0 if side == "left" else 1]
        return (k, self.block_count, dimension) if self.block_count else (k, dimension)


@dataclass
class StepInfo:
    """A step's file without its arrays. `source` identifies the checkpoint, `settings` what was asked for.

    `architecture` is the name of its family, and what is known of it: {"family", "facts"}.
    """

    path: Path
    step: int
    source: dict[str, Any]
    settings: dict[str, Any]
    records: list[Record]
    skipped: list[dict[str, Any]]
    coverage: float
    architecture: dict[str, Any] = field(default_factory=dict)
    offsets: dict[str, tuple[int, int, int]] = field(init=False, default_factory=dict)
    sizes: tuple[int, int, int] = field(init=False)
    version: int = field(init=False, default=FORMAT_VERSION)
    # Where the vectors of either side begin in the file, and which file that is.
    places: dict[str, tuple[int, np.dtype[Any]]] = field(init=False, default_factory=dict)
    identity: tuple[int, ...] = field(init=False, default=(), compare=False)

    def __post_init__(self) -> None:
        self._by_name = {record.name: record for record in self.records}
        sigma = left = right = 0
        for record in self.records:
            self.offsets[record.name] = (sigma, left, right)
            rows, columns = record.shape
            count = record.block_count or 1
            sigma += count * (rows if rows < columns else columns)
            left += record.vectors * count * rows if record.side != "right" else 0
            right += record.vectors * count * columns if record.side != "left" else 0
        self.sizes = (sigma, left, right)

    @property
    def refused(self) -> list[tuple[str, str]]:
        """Name and reason of every weight of the checkpoint that was refused."""
        return [(one["name"], one["reason"]) for one in self.skipped if one.get("refused")]

    def record(self, matrix: str) -> Record | None:
        """The record of a matrix, None where this step has none of that name."""
        return self._by_name.get(matrix)


def read_info(path: Path) -> StepInfo:
    """A step's file without its arrays. Raises StoreDamaged, StoreLocked, or StoreError for a newer format."""
    with reading(path) as file:
        return _info(file, path)


def read_step(path: Path) -> tuple[StepInfo, NDArray[np.float64]]:
    """A step's file and all its singular values, one matrix after the other. Raises as `read_info`."""
    with reading(path) as file:
        return _info(file, path), _checked(file, "singular_values", path).astype(np.float64, copy=False)


def read_vectors(info: StepInfo, record: Record, count: int | None = None) -> tuple[Any, Any]:
    """The first `count` left and right vectors of a matrix as rows: (k, m) and (k, n) float32. All, for None.

    Raises StoreDamaged where all are read and they are not those that were written.
    """
    with reading(info.path) as file:
        u, v = (_read_side(file, info, record, side, count) for side in SIDES)
    if (count is None or count >= record.vectors) and hash_arrays(u, v) != record.vectors_hash:
        raise StoreDamaged(f"{info.path}: the vectors of {record.name} are not those that were written")
    return u, v


def read_sides(info: StepInfo, wanted: Iterable[Side], count: int | None = None) -> dict[Side, NDArray[np.float32]]:
    """The first `count` vectors of sides of matrices, ("mlp.up.weight", "left"), as rows: (k, d), or (k, blocks, d).

    All vectors, for None. Names that are not there are left out. The arrays lie in the file in one piece each, and are
    read from where HDF5 says they begin: asking it for a hundred pieces would take longer than all else that a report
    does. Raises StoreDamaged where the file is not the one that was opened.
    """
    found: dict[Side, NDArray[np.float32]] = {}
    with reading_bytes(info.path) as file:
        if info.identity != identity(file.fileno()):
            raise StoreDamaged(f"{info.path}: changed while it was read; run the command again")
        for name, side in wanted:
            record = info.record(name)
            if record is not None:
                shape = record.vectors_shape(side, count)
                start, dtype = info.places[side]
                offset = start + info.offsets[name][1 if side == "left" else 2] * dtype.itemsize
                found[name, side] = read_array(info.path, file.fileno(), offset, shape, dtype)
                _require_intact(found[name, side], record, side, info.path)
    return found


def _require_intact(vectors: NDArray[np.float32], record: Record, side: str, path: Path) -> None:
    """What a report reads is what was written: the leading vectors by their hash, the others by their length, 1."""
    if record.reason or not vectors.size:
        return
    expected = record.left_hash if side == "left" else record.right_hash
    checked = min(LEADING, record.vectors) if expected else 0
    is_intact = len(vectors) < checked or not expected or _hash_of_leading(vectors) == expected
    if is_intact and len(vectors) > checked:
        rest = vectors[checked:]
        is_intact = bool(np.all(np.abs(np.einsum("...d,...d->...", rest, rest) - 1.0) < 1e-3))
    if not is_intact:
        raise StoreDamaged(f"{path}: the vectors of {record.name} are not those that were written; analyse again")


def _hash_of_leading(vectors: NDArray[np.float32]) -> str:
    return hashlib.sha256(np.ascontiguousarray(vectors[:LEADING]).data).hexdigest()[:16] if vectors.size else ""


def _read_side(file: Any, info: StepInfo, record: Record, side: str, count: int | None) -> Any:
    start = info.offsets[record.name][1 if side == "left" else 2]
    shape = record.vectors_shape(side, count)
    return file[side][start : start + prod(shape)].reshape(shape)


class StepWriter:
    """Writes the file of one step, matrix by matrix in any order; the same bytes come out in every order."""

    def __init__(self, store: Path, info: StepInfo) -> None:
        self._info = info
        self._target = step_path(store, info.step)
        self._temporary = temporary_path(self._target)
        self._file: Any = None
        self._disk: Any = None
        self._arrays: dict[str, Any] = {}
        self._sigma = np.full(info.sizes[0], np.nan)

    def __enter__(self) -> StepWriter:
        try:
            with writing(self._temporary):
                self._require_space()
                self._disk = Disk(self._temporary)
                self._file = h5py.File(self._disk, "w", libver=LIBVER)
                for name, size in zip(("left", "right"), self._info.sizes[1:], strict=True):
                    array = self._file.create_dataset(name, shape=(size,), dtype=np.float32)
                    self._arrays[name] = array
                    if size:
                        array[-1:] = 0  # takes the space now: its place does not depend on the order of writing
                self._disk.require_written()
        except BaseException:
            self._clear()
            raise
        return self

    def _require_space(self) -> None:
        """A disk that is too small is found out before any work is done."""
        sigma, left, right = self._info.sizes
        if shutil.disk_usage(self._temporary.parent).free < 8 * sigma + 4 * (left + right) + 2**20:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave nothing behind but a finished file."""
        self._clear()

    def _clear(self) -> None:
        for file in (self._file, self._disk):
            with contextlib.suppress(Exception):
                file.close()
        with contextlib.suppress(OSError):
            self._temporary.unlink(missing_ok=True)

    def add(self, record: Record, sigma: NDArray[np.float64], left: Any, right: Any) -> None:
        """Store one matrix; completes its record."""
        at_sigma, at_left, at_right = self._info.offsets[record.name]
        record.vectors_hash = hash_arrays(left, right)
        record.left_hash, record.right_hash = map(_hash_of_leading, (left, right))
        self._sigma[at_sigma : at_sigma + sigma.size] = sigma
        with writing(self._temporary):
            if left.size:
                self._arrays["left"][at_left : at_left + left.size] = left.ravel()
            if right.size:
                self._arrays["right"][at_right : at_right + right.size] = right.ravel()
            self._disk.require_written()

    def read_back(self, record: Record) -> tuple[NDArray[np.float64], Any, Any]:
        """What `add` was given for a matrix. Raises StoreError where the file is closed."""
        at_sigma = self._info.offsets[record.name][0]
        try:
            left, right = (_read_side(self._arrays, self._info, record, side, None) for side in SIDES)
            self._disk.require_written()
        except (ValueError, KeyError, OSError, RuntimeError) as error:
            raise StoreError(f"{self._temporary}: is closed") from error
        return self._sigma[at_sigma : at_sigma + record.values], left, right

    def finish(self) -> Path:
        """Write what is left, sync, and give the file its name."""
        info = self._info
        catalogue = {
            "step": info.step,
            "source": info.source,
            "settings": info.settings,
            "matrices": [asdict(record) for record in info.records],
            "skipped": info.skipped,
            "coverage": info.coverage,
            "architecture": info.architecture,
        }
        text = np.frombuffer(json.dumps(catalogue).encode("ascii"), dtype=np.uint8)
        with writing(self._temporary):
            for name, array in (("singular_values", self._sigma), ("catalogue", text)):
                self._file.create_dataset(name, data=array).attrs["sha256"] = np.bytes_(hash_arrays(array))
            self._file.attrs.update(
                {
                    "format": np.bytes_(FORMAT),
                    "format_version": FORMAT_VERSION,
                    "spectrascope": np.bytes_(__version__),
                }
            )
            self._file.close()
            self._disk.close()
            self._disk.require_written()
            _sync(self._temporary)
            os.replace(self._temporary, self._target)
            _sync(self._target.parent)
        return self._target


def _info(file: Any, path: Path) -> StepInfo:
    """The catalogue. Version 1 is without blocks and the architecture, which 2 brought."""
    if "format" not in file.attrs or attribute(file.id, "format") != np.bytes_(FORMAT):
        raise StoreDamaged(f"{path}: is not a file of spectra")
    version = int(attribute(file.id, "format_version"))
    if version not in READABLE:
        raise StoreError(
            f"{path} has format version {version}, newer than this spectrascope {__version__} reads; "
            "upgrade spectrascope, or analyse into another store"
        )
    catalogue = json.loads(_checked(file, "catalogue", path).tobytes())
    for record in catalogue["matrices"]:
        for name in ("shape", "tied", "kernel"):
            record[name] = tuple(record.get(name, ()))
    info = StepInfo(
        path=path,
        step=catalogue["step"],
        source=catalogue["source"],
        settings=catalogue["settings"],
        records=[Record(**record) for record in catalogue["matrices"]],
        skipped=catalogue["skipped"],
        coverage=catalogue["coverage"],
        architecture=catalogue.get("architecture", {}),
    )
    if step_path(path.parent, info.step).name != path.name:
        raise StoreDamaged(f"{path}: holds step {info.step}, which its name does not say")
    arrays = [find_array(file, name) for name in ("singular_values", *SIDES)]
    if info.sizes != tuple(array.size for array in arrays):
        raise StoreDamaged(f"{path}: its arrays do not have the sizes that its catalogue states")
    info.identity = identity(file.id.get_vfd_handle())
    info.version = version
    info.places = {side: (array.offset, array.dtype) for side, array in zip(SIDES, arrays[1:], strict=True)}
    return info


def _checked(file: Any, name: str, path: Path) -> NDArray[Any]:
    found = find_array(file, name)
    array = read_array(path, file.id.get_vfd_handle(), found.offset, (found.size,), found.dtype)
    if hash_arrays(array).encode() != found.digest:
        raise StoreDamaged(f"{path}: {name} is not what was written")
    return array


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
