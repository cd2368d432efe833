"""Singular vector agreement (SVA, SPEC section 4) as rows of plain values, one per step and matrix."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..metrics import agreement
from ..metrics.alignment import LEADING, score
from ..remarks import few_directions
from ..store import Record, Trajectory
from .directions import Directions, directions_of
from .rows import ABSENT, ZERO_MATRIX, Row, in_runs, plain, plain_list, plain_lists

Sides = dict[tuple[str, str], NDArray[np.float32]]
NO_VECTORS = "no singular vectors are kept: analyse with a --top-k above 0"
SAME_BYTES = "the same bytes as at the reference: a copy, no finding"


@dataclass(frozen=True)
class Reference:
    """What steps are compared with: a trajectory, and which of its steps for each step; None where there is none."""

    trajectory: Trajectory
    step_for: Callable[[int], int | None]


def sva(trajectory: Trajectory, reference: int | Trajectory | None = None, subspace: int | None = None) -> list[Row]:
    """Singular vector agreement between checkpoints: the rows of `spectrascope sva --format json`.

    Parameters
    ----------
    trajectory : an opened store
    reference : a step of it, the last one by default; or another store, compared step by step
    subspace : a number of vectors, to report the overlap of the spaces that they span as well

    Raises RequestError for a step that is not there.
    """
    if isinstance(reference, Trajectory):
        there = set(reference.steps)
        compared = Reference(reference, lambda step: step if step in there else None)
    else:
        at = trajectory.info(trajectory.steps[-1] if reference is None else reference).step
        compared = Reference(trajectory, lambda _: at)
    return sva_rows(trajectory, trajectory.steps, trajectory.matrices, compared, None, subspace)


def sva_rows(
    trajectory: Trajectory,
    steps: Sequence[int],
    matrices: Sequence[str],
    reference: Reference,
    count: int | None = LEADING,
    subspace: int | None = None,
) -> list[Row]:
    """One row per step and matrix, by step and then in the model's order.

    Parameters: `count` is how many entries of the diagonal, None for all that the store has vectors for; `subspace`
    a number of vectors, of which the overlap is reported as well.
    """
    wanted = None if count is None else max(count, subspace or 0)
    mine = directions_of(trajectory, steps, matrices)
    reference_steps = list(dict.fromkeys(step for one in steps if (step := reference.step_for(one)) is not None))
    theirs = directions_of(reference.trajectory, reference_steps, matrices)
    there = set(trajectory.matrices)
    rows: dict[tuple[int, str], Row] = {}
    for names in in_runs({name: _bytes(trajectory, steps, name, wanted) for name in matrices}):
        sides = [(name, side) for name in names for side in ("left", "right")]
        read: tuple[int | None, Sides] = (None, {})
        for step in steps:
            other_step = reference.step_for(step)
            here = trajectory.sides(step, sides, wanted)
            if other_step is not None and read[0] != other_step:
                read = (other_step, reference.trajectory.sides(other_step, sides, wanted))
            is_itself = reference.trajectory is trajectory and other_step == step
            compared: dict[str, tuple[_Side, _Side | None]] = {}
            for name in names:
                record = trajectory.info(step).record(name)
                if record is not None:
                    one = _Side(record, mine[step, name], here)
                    compared[name] = one, _other_side(reference.trajectory, other_step, name, read[1], theirs)
                if record is not None or name in there:
                    row = {"step": step, "reference": other_step, "matrix": name} | _no_numbers(subspace)
                    rows[step, name] = row | {"reason": ABSENT}
            for name, columns in _compared(compared, is_itself, count, subspace).items():
                rows[step, name] |= columns
    return [rows[step, name] for step in steps for name in matrices if (step, name) in rows]


def _bytes(trajectory: Trajectory, steps: Sequence[int], name: str, count: int | None) -> int:
    """How much there is to read of a matrix at a step and at its reference, at most."""
    records = [record for step in steps if (record := trajectory.info(step).record(name)) is not None]
    return max((2 * 4 * (count or one.vectors) * sum(one.shape) for one in records), default=0)


def _no_numbers(subspace: int | None) -> Row:
    row: Row = {"score": None, "baseline": None, "diagonal": None}
    return row if subspace is None else row | {"left_overlap": None, "right_overlap": None}


@dataclass(frozen=True)
class _Side:
    """One of the two matrices of a row."""

    record: Record
    directions: Directions
    read: Sides

    @property
    def vectors(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """U and V, with vectors as columns."""
        return self.read[self.record.name, "left"].T, self.read[self.record.name, "right"].T

    @property
    def numerical_rank(self) -> int:
        return int(self.directions.ranks[0])


def _other_side(
    trajectory: Trajectory,
    step: int | None,
    matrix: str,
    read: Sides,
    directions: dict[tuple[int, str], Directions],
) -> _Side | None:
    record = None if step is None else trajectory.info(step).record(matrix)
    return None if record is None or step is None else _Side(record, directions[step, matrix], read)


def _compared(
    sides: dict[str, tuple[_Side, _Side | None]], is_itself: bool, count: int | None, subspace: int | None
) -> dict[str, Row]:
    """The columns of each matrix of a step: its numbers, or why there are none; matrices of one shape at once."""
    columns: dict[str, Row] = {}
    shapes: dict[tuple[tuple[int, ...], ...], list[tuple[str, _Side, _Side]]] = {}
    for name, (one, other) in sides.items():
        reason = _reason_for_no_number(one, other)
        if reason is not None or other is None:
            columns[name] = {"reason": reason}
        else:
            key = tuple(vectors.shape for vectors in (*one.vectors, *other.vectors))
            shapes.setdefault(key, []).append((name, one, other))
    for members in shapes.values():
        vectors = zip(*((*one.vectors, *other.vectors) for _, one, other in members), strict=True)
        values = agreement.agreement_diagonal(*map(np.stack, vectors))
        for line, (_, one, other) in zip(values, members, strict=True):
            line[min(one.numerical_rank, other.numerical_rank) :] = np.nan
        baseline = agreement.agreement_baseline(members[0][1].record.shape)
        numbers = plain_list(score(values)), plain_lists(values[:, :count])
        for (name, one, other), mean, diagonal in zip(members, *numbers, strict=True):
            reason = _remark(one, other, is_itself, values.shape[1])
            columns[name] = {"score": mean, "baseline": baseline, "diagonal": diagonal, "reason": reason}
            if subspace is not None:
                columns[name] |= _overlaps(one, other, subspace)
    return columns


def _overlaps(one: _Side, other: _Side, subspace: int) -> Row:
    both = zip(("left_overlap", "right_overlap"), one.vectors, other.vectors, strict=True)
    return {name: plain(agreement.subspace_overlap(mine, theirs, subspace)) for name, mine, theirs in both}


def _reason_for_no_number(one: _Side, other: _Side | None) -> str | None:
    if other is None:
        return "not there at the reference"
    if one.record.reason or other.record.reason:
        return one.record.reason or f"at the reference: {other.record.reason}"
    if one.record.shape != other.record.shape:
        return f"its shape at the reference is {'x'.join(map(str, other.record.shape))}"
    if one.record.role == "depthwise conv":
        return "separate filters, of which no singular vectors are kept"
    if not one.record.vectors or not other.record.vectors:
        return NO_VECTORS
    if not one.numerical_rank or not other.numerical_rank:
        return ZERO_MATRIX
    return None


def _remark(one: _Side, other: _Side, is_itself: bool, kept: int) -> str | None:
    """What to know about a number that is there."""
    if not is_itself and one.record.raw_hash == other.record.raw_hash:
        return SAME_BYTES
    needed = min(LEADING, one.record.rank)
    if kept < needed:
        return f"{kept} singular vectors are kept, and the score asks for {needed}: analyse with a larger --top-k"
    there = min(needed, one.numerical_rank, other.numerical_rank)
    for side, where in ((one, ""), (other, " at the reference")):
        close = side.directions.close_among(there)
        if close is not None and not is_itself:
            places = f"sigma_{close[0] + 1} and sigma_{close[1] + 1}"
            return f"{places}{where} are equal to 1e-6: their vectors are not unique"
    return few_directions(there, needed) if there < needed and not is_itself else None
