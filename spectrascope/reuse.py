"""Decompositions that are known by the bytes of their tensors, so that none is computed twice."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path

from .decompose import Decomposition
from .errors import StoreDamaged, StoreError
from .matrices import Matrix
from .store import Record, StepWriter, read_info, read_step, read_vectors, step_files

Key = tuple[str, tuple[int, int], str, bool]


class Known:
    """What is known of tensors by the hash of their bytes: a decomposition under way, or how to read it back.

    Safe to use from several threads: one of them computes, the others wait for it.
    """

    def __init__(self, top_k: int) -> None:
        self._top_k = top_k
        self._found: dict[Key, Future[Decomposition] | Callable[[], Decomposition | None]] = {}

    def learn(self, store: Path) -> None:
        """Take in what the finished files of a store hold."""
        for path in step_files(store).values():
            try:
                records = read_info(path).records
            except StoreDamaged:
                continue  # set aside when its step comes up
            for record in records:
                self.is_stored(record, path)

    def is_in(self, writer: StepWriter, record: Record) -> None:
        """A matrix was handed to the writer of a file, and need not be kept in memory."""
        self._found[_key(record.raw_hash, record)] = partial(_read_back, writer, record)

    def is_stored(self, record: Record, path: Path) -> None:
        """A matrix is in a finished file of the store."""
        if not record.failed and record.vectors == min(self._top_k, record.rank):
            self._found[_key(record.raw_hash, record)] = partial(_from_store, path, record.name)

    def get(self, raw_hash: str, matrix: Matrix, compute: Callable[[], Decomposition]) -> Decomposition:
        """The decomposition of a tensor of these bytes, computed if no other is known."""
        key = _key(raw_hash, matrix)
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
            mine.set_exception(error)
            raise
        return mine.result()


def _key(raw_hash: str, matrix: Matrix | Record) -> Key:
    """Equal for matrices whose decompositions are equal."""
    return raw_hash, matrix.shape, matrix.dtype, matrix.role == "transposed conv"


def _read_back(writer: StepWriter, record: Record) -> Decomposition | None:
    """The decomposition that an unfinished file holds, None where the file is closed by now."""
    try:
        sigma, left, right = writer.read_back(record)
    except StoreError:
        return None
    return Decomposition(sigma, left, right, record.reason, record.failed, record.note)


def _from_store(path: Path, name: str) -> Decomposition | None:
    """The decomposition that a step's file holds, None where the file is gone or damaged."""
    try:
        info, sigma = read_step(path)
        record = info.record(name)
        assert record is not None
        left, right = read_vectors(info, record)
    except StoreError:
        return None
    start = info.offsets[name][0]
    return Decomposition(sigma[start : start + record.rank], left, right, record.reason, False, record.note)
