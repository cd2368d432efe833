"""What the store says, as rows of plain values, one per step and matrix. A number that does not exist is None."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
MOST_BYTES = 256 * 2**20  # of singular vectors that a report holds at a time
ABSENT = "not there at this step"
ZERO_MATRIX = "zero matrix: it has no effective rank"


def rank_rows(trajectory: Trajectory, steps: list[int], matrices: list[str]) -> list[Row]:
    """One row per step and matrix, by step and then in the model's order, with every column of SPEC section 2."""
    rows: dict[tuple[int, str], Row] = {}
    for (shape, dtype), group in by_shape(trajectory, steps, matrices).items():
        spectra = np.concatenate([trajectory.block_values(record.name, step) for step, record in group])
        for (step, record), columns in zip(group, _rank_values(spectra, shape, dtype), strict=True):
            rows[step, record.name] = _rank_row(step, record.name, record, columns, record.reason)
    return [rows[step, matrix] for step in steps for matrix in matrices if (step, matrix) in rows]


def head_rows(trajectory: Trajectory, steps: list[int]) -> list[Row]:
    """As `rank_rows`, of the blocks that pairs of layers read: `NAME[q,3]` is head 3 of the queries."""
    rows = []
    blocks = [record.name for step in steps for record in trajectory.info(step).records if record.word == "head"]
    found: dict[tuple[int, str], list[Row]] = {}
    for (shape, dtype), group in by_shape(trajectory, steps, list(dict.fromkeys(blocks))).items():
        values = iter(
            _rank_values(np.concatenate([trajectory.block_values(r.name, s) for s, r in group]), shape, dtype)
        )
        for step, record in group:
            found[step, record.name] = [next(values) for _ in range(record.block_count)]
    for step in steps:
        for record in trajectory.info(step).records:
            names = record.block_names if record.word == "head" else []
            for name, columns in zip(names, found.get((step, record.name), ()), strict=True):
                reason = record.reason if columns["spectral_norm"] is None else None
                rows.append(_rank_row(step, name, record, columns, reason))
    return rows


def _rank_values(spectra: NDArray[np.float64], shape: tuple[int, int], dtype: str) -> list[Row]:
    """The columns of SPEC section 2 for each of some spectra of one shape, (count, R)."""
    entropy = rank.spectral_entropy(spectra)
    effective = np.exp(entropy)
    columns = {
        "spectral_entropy": entropy,
        "effective_rank": effective,
        "norm_effective_rank": effective / spectra.shape[-1],
        "numerical_rank": rank.numerical_rank(spectra, shape, dtype),
    }
    columns |= {name: getattr(rank, name)(spectra) for name in RANK_COLUMNS if name not in columns}
    lists = [
        [_as_count(value) for value in plain_list(columns[name])] if name in COUNTS else plain_list(columns[name])
        for name in RANK_COLUMNS
    ]
    return [dict(zip(RANK_COLUMNS, values, strict=True)) for values in zip(*lists, strict=True)]


def _as_count(value: float | None) -> int | None:
    return None if value is None else int(value)


def _rank_row(step: int, name: str, record: Record, columns: Row, reason: str | None) -> Row:
    return {
        "step": step,
        "matrix": name,
        "shape": list(record.shape),
        "dtype": record.dtype,
        **columns,
        "sparsity": None if record.block_count else record.sparsity,
        "made_of": record.made_of,
        "reason": reason or (ZERO_MATRIX if columns["spectral_norm"] == 0 else None),
    }


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


def by_shape(
    trajectory: Trajectory, steps: Sequence[int], matrices: Sequence[str]
) -> dict[tuple[tuple[int, int], str], list[tuple[int, Record]]]:
    """What these steps have under these names, by shape and dtype: their spectra are of one length."""
    groups: defaultdict[tuple[tuple[int, int], str], list[tuple[int, Record]]] = defaultdict(list)
    for step in steps:
        info = trajectory.info(step)
        for matrix in matrices:
            record = info.record(matrix)
            if record is not None:
                groups[record.shape, record.dtype].append((step, record))
    return groups


def in_runs(sizes: dict[str, int]) -> Iterator[list[str]]:
    """Names in their order, in runs of which what is read, of these sizes in bytes, stays within a bound."""
    run: list[str] = []
    total = 0
    for name, size in sizes.items():
        if run and total + size > MOST_BYTES:
            yield run
            run, total = [], 0
        run.append(name)
        total += size
    if run:
        yield run


def plain(value: Any) -> float | None:
    """A number for JSON: None for one that does not exist."""
    number = float(value)
    return number if number == number and abs(number) != float("inf") else None


def plain_list(values: NDArray[np.float64]) -> list[float | None]:
    """Numbers for JSON, with None for those that do not exist."""
    numbers = values.tolist()
    return numbers if np.isfinite(values).all() else [plain(value) for value in numbers]


def plain_lists(values: NDArray[np.float64]) -> list[Any]:
    """As `plain_list`, of an array of any number of dimensions, as nested lists."""
    if values.ndim == 1:
        return plain_list(values)
    numbers: list[Any] = values.tolist()
    return numbers if np.isfinite(values).all() else [plain_lists(line) for line in values]
