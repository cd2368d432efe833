"""A store opened for reading."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..copies import describe_copies
from ..errors import RequestError, StoreDamaged
from ..remarks import AVERAGED, describe_refused
from ..words import choices, listed
from .directory import step_files
from .step_file import Record, Side, StepInfo, read_sides, read_step, read_vectors


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
                self._info[step], sigma = read_step(file)
                sigma.setflags(write=False)  # views of it are handed out
                self._sigma[step] = sigma
            except StoreDamaged as error:
                self.failures.append({"path": str(file), "step": step, "matrix": None, "reason": _after_path(error)})
        self.failures += [
            {"path": info.source["path"], "step": step, "matrix": record.name, "reason": record.reason}
            for step, info in self._info.items()
            for record in info.records
            if record.reason and not record.block_count  # the matrix that they are of has a reason of its own
        ]
        for step, info in self._info.items():
            if refused := describe_refused(info.refused):
                place = info.source["path"]
                self.failures.append({"path": place, "step": step, "matrix": None, "reason": refused})
        self.steps = list(self._info)
        records = [record for info in self._info.values() for record in info.records if not record.block_count]
        self.matrices = list(dict.fromkeys(record.name for record in records))
        self.warnings = [
            f"{record.name} at step {step}: {record.note}"
            for step, info in self._info.items()
            for record in info.records
            if record.note
        ]
        if any(info.settings.get("weights") == "averaged" for info in self._info.values()):
            self.warnings.append(AVERAGED)
        self.warnings += describe_copies(
            {
                step: {record.name: record.raw_hash for record in info.records if not record.block_count}
                for step, info in self._info.items()
            },
            {step: info.source["content"] for step, info in self._info.items()},
        )

    def __repr__(self) -> str:
        return f"<Trajectory {self.path}: {len(self.steps)} steps, {len(self.matrices)} matrices>"

    def info(self, step: int) -> StepInfo:
        """What the file of a step says beside its arrays. Raises RequestError for a step that is not there."""
        if step not in self._info:
            raise RequestError(f"{self.path} has no step {step}; it has {listed(self.steps)}")
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

    def sides(self, step: int, wanted: Iterable[Side], count: int | None = None) -> dict[Side, NDArray[np.float32]]:
        """The first `count` singular vectors of some sides of matrices at a step: {("mlp.up.weight", "left"): ...}.

        One vector a row, (k, d), or (k, blocks, d) for the blocks of a matrix; all that the store holds, for None. What
        it does not hold is left out. Nothing else is read. Raises RequestError for a step that is not there.
        """
        return read_sides(self.info(step), wanted, count)

    def block_values(self, name: str, step: int) -> NDArray[np.float64]:
        """The singular values of what the store has under this name, (blocks, R); (1, R) for a matrix as a whole."""
        record = self._require_record(name, step)
        start = self._info[step].offsets[name][0]
        return self._sigma[step][start : start + record.values].reshape(max(record.block_count, 1), record.rank)

    def _spectrum(self, step: int, record: Record) -> NDArray[np.float64]:
        start = self._info[step].offsets[record.name][0]
        return self._sigma[step][start : start + record.rank]

    def _spectrum_or_none(self, matrix: str, step: int) -> NDArray[np.float64] | None:
        record = self._info[step].record(matrix)
        return None if record is None else self._spectrum(step, record)

    def _require(self, matrix: str) -> None:
        if matrix not in self.matrices:
            raise RequestError(f"{self.path} has no matrix {matrix!r}; {choices(matrix, self.matrices)}")

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
        raise RequestError(f"{path} is not a store of spectra; make one of checkpoints with `spectrascope analyze`")
    return Trajectory(path, steps)


def _after_path(error: StoreDamaged) -> str:
    return str(error).split(": ", 1)[-1]
