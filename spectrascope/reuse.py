"""Decompositions that are known by the bytes of their tensors, so that none is computed twice."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .decompose import Decomposition
from .errors import StoreDamaged, StoreError
from .matrices import Matrix
from .store import Record, StepInfo, StepWriter, part_files, read_info, read_step, read_vectors, step_files

Key = tuple[str, tuple[int, int], str, str, int]


class Known:
    """What is known of tensors by the hash of their bytes: a decomposition under way, or how to read it back.

    Safe to use from several threads: one of them computes, the others wait for it.
    """

    def __init__(self) -> None:
        self._found: dict[Key, Future[Decomposition] | Callable[[], Decomposition | None]] = {}
        self._read: set[tuple[Path, int]] = set()

    def learn(self, store: Path) -> None:
        """Take in what the finished files of a store hold, and what a run that was killed has left of others."""
        for path in (*part_files(store), *step_files(store).values()):
            try:
                version = path, path.stat().st_mtime_ns
                records = read_info(path).records if version not in self._read else []
            except (StoreDamaged, FileNotFoundError):
                continue  # set aside when its step comes up, or done by another worker meanwhile
            self._read.add(version)
            for record in records:
                self.is_stored(record, path)

    def is_in(self, writer: StepWriter, record: Record) -> None:
        """A matrix was handed to the writer of a file, and need not be kept in memory."""
        self._found[_key(record.raw_hash, record, record.vectors)] = partial(_read_back, writer, record)

    def is_stored(self, record: Record, path: Path) -> None:
        """A matrix is in a finished file of the store."""
        key = _key(record.raw_hash, record, record.vectors)
        if record.failed:
            self._found.pop(key, None)
        else:
            self._found[key] = partial(_from_store, path, record.name, record.raw_hash)

    def get(self, raw_hash: str, matrix: Matrix, vectors: int, compute: Callable[[], Decomposition]) -> Decomposition:
        """The decomposition of a tensor of these bytes with so many vectors, computed if no other is known."""
        key = _key(raw_hash, matrix, vectors)
        mine: Future[Decomposition] = Future()
        known = self._found.setdefault(key, mine)
        if known is not mine:
            found = known.result() if isinstance(known, Future) else known()
            if found is not None:
                return found
            self._found[key] = mine
        try:
            mine.set_result(compute())
        except BaseException as error:
            self._found.pop(key, None)  # another copy may have better luck
            mine.set_exception(error)
            raise
        return mine.result()


def _key(raw_hash: str, matrix: Matrix | Record, vectors: int) -> Key:
    """Equal for matrices whose decompositions are equal."""
    layout = matrix.role if matrix.role in ("transposed conv", "depthwise conv") else ""
    if matrix.side is not None:  # of blocks, the shape tells along which axis they are cut
        layout += f"{matrix.block_count} blocks, {matrix.side}"
    return raw_hash, matrix.shape, matrix.dtype, layout, vectors


def _read_back(writer: StepWriter, record: Record) -> Decomposition | None:
    """The decomposition that an unfinished file holds, None where the file is closed by now."""
    try:
        sigma, left, right = writer.read_back(record)
    except StoreError:
        return None
    return Decomposition(sigma, left, right, record.reason, record.failed, record.note)


def _from_store(path: Path, name: str, raw_hash: str) -> Decomposition | None:
    """The decomposition that a step's file holds, None where the file is gone, damaged, or made anew of other bytes."""
    try:
        info, sigma = _read_once(path, path.stat().st_mtime_ns)
        record = info.record(name)
        if record is None or record.raw_hash != raw_hash:
            return None
        left, right = read_vectors(info, record)
    except (StoreError, OSError):
        return None
    start = info.offsets[name][0]
    return Decomposition(sigma[start : start + record.values], left, right, record.reason, False, record.note)


@lru_cache(maxsize=2)
def _read_once(path: Path, modified: int) -> tuple[StepInfo, NDArray[np.float64]]:
    """A file of which many matrices are wanted one after the other."""
    return read_step(path)
