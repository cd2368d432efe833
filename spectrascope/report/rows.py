"""What the store says, as rows of plain values, one per step and matrix. A number that does not exist is None."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import RequestError
from ..metrics import rank
from ..store import Record, Trajectory
from ..words import listed

Row = dict[str, Any]

# The columns of SPEC section 2, in its order.
RANK_COLUMNS = (
    "spectral_entropy",
    "effective_rank",
    "norm_effective_rank",
    "stable_rank",
    "spectral_norm",
    "frobenius_norm",
    "nuclear_norm",
    "rank_99",
    "numerical_rank",
)
COUNTS = ("rank_99", "numerical_rank")
ZERO_MATRIX = "zero matrix: it has no effective rank"


def rank_rows(trajectory: Trajectory, steps: list[int], matrices: list[str]) -> list[Row]:
    """One row per step and matrix, by step and then in the model's order, with every column of SPEC section 2."""
    rows: dict[tuple[int, str], Row] = {}
    for matrix in matrices:
        for (shape, dtype), group in _by_shape(trajectory, steps, matrix).items():
            spectra = np.stack([trajectory.singular_values(matrix, step) for step, _ in group])
            columns = {name: getattr(rank, name)(spectra) for name in RANK_COLUMNS if name != "numerical_rank"}
            columns["numerical_rank"] = rank.numerical_rank(spectra, shape, dtype)
            for index, (step, record) in enumerate(group):
                values = {name: _plain(name, columns[name][index]) for name in RANK_COLUMNS}
                reason = record.reason or (ZERO_MATRIX if values["spectral_norm"] == 0 else None)
                rows[step, matrix] = {
                    "step": step,
                    "matrix": matrix,
                    "shape": list(shape),
                    "dtype": dtype,
                    **values,
                    "sparsity": record.sparsity,
                    "made_of": record.made_of,
                    "reason": reason,
                }
    return [rows[step, matrix] for step in steps for matrix in matrices if (step, matrix) in rows]


def require_rows(rows: list[Row], matrices: Sequence[str]) -> list[Row]:
    """Raises RequestError where none of the matrices is at any of the steps that were asked for."""
    if not rows:
        raise RequestError(f"at the steps asked for there is no {listed(matrices)}")
    return rows


def spectrum_rows(trajectory: Trajectory, steps: list[int], matrix: str) -> list[Row]:
    """One row per step of one matrix, with all its singular values, descending."""
    rows = []
    for step in steps:
        record = trajectory.info(step).record(matrix)
        if record is not None:
            values = None if record.reason else trajectory.singular_values(matrix, step).tolist()
            rows.append(
                {
                    "step": step,
                    "matrix": matrix,
                    "shape": list(record.shape),
                    "singular_values": values,
                    "reason": record.reason,
                }
            )
    return rows


def failures_among(trajectory: Trajectory, steps: list[int], matrices: list[str]) -> list[Row]:
    """The failures of a trajectory that concern these steps and matrices; those of whole checkpoints do."""
    read = set(trajectory.steps)
    return [
        failure
        for failure in trajectory.failures
        if failure["matrix"] is None
        or (failure["matrix"] in matrices and (failure["step"] in steps or failure["step"] not in read))
    ]


def _by_shape(
    trajectory: Trajectory, steps: list[int], matrix: str
) -> dict[tuple[tuple[int, int], str], list[tuple[int, Record]]]:
    groups: defaultdict[tuple[tuple[int, int], str], list[tuple[int, Record]]] = defaultdict(list)
    for step in steps:
        record = trajectory.info(step).record(matrix)
        if record is not None:
            groups[record.shape, record.dtype].append((step, record))
    return groups


def _plain(name: str, value: Any) -> float | int | None:
    number = float(value)
    if not np.isfinite(number):
        return None
    return int(number) if name in COUNTS else number
