"""Alignment of consecutive matrices (SPEC section 3) as rows of plain values, one per step and pair."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..architectures.pairs import Pair, Side
from ..metrics.alignment import LEADING, alignment, diagonal, random_baseline, score
from ..remarks import few_directions
from ..store import Record, Trajectory
from .agreement_rows import NO_VECTORS
from .directions import Directions, directions_of
from .pairs import of_architecture, pairs_over, select_pairs
from .rows import ABSENT, ZERO_MATRIX, Row, in_runs, plain_list, plain_lists

Array = NDArray[Any]
Read = dict[tuple[str, str], NDArray[np.float32]]


def align(
    trajectory: Trajectory, pairs: Sequence[str] = (), steps: Sequence[int] | None = None, lstm_gate: str | None = None
) -> list[Row]:
    """Alignment of consecutive matrices: the rows of `spectrascope align --format json`.

    Parameters
    ----------
    trajectory : an opened store
    pairs : globs of names ('mlp.up->mlp.down') or kinds ('q_k') of pairs; all by default
    steps : those to report; all by default
    lstm_gate : i, f, g or o of an LSTM, r, z or n of a GRU; g and n by default

    Raises RequestError for a pair or step that is not there.
    """
    chosen = trajectory.steps if steps is None else list(steps)
    found = pairs_over(trajectory, chosen, of_architecture(lstm_gate))
    return align_rows(trajectory, chosen, select_pairs(found, pairs), None)


def align_rows(
    trajectory: Trajectory,
    steps: Sequence[int],
    pairs: dict[str, dict[int, Pair]],
    count: int | None = LEADING,
    whole: bool = False,
) -> list[Row]:
    """One row per step and pair, by step and then in the model's order; a pair that a step lacks has one as well.

    Parameters: `count` is how many entries of the diagonal, None for all that the store has vectors for; `whole` adds
    the matrix A of all of them, the mean over heads where the pair has heads.
    """
    sides = {side for by_step in pairs.values() for pair in by_step.values() for side in (pair.one, pair.other)}
    directions = directions_of(trajectory, steps, {side.stored for side in sides})
    rows = []
    for step in steps:
        here = {
            name: _sides(trajectory, step, pair, directions) if (pair := by_step.get(step)) else ABSENT
            for name, by_step in pairs.items()
        }
        values = _values(
            trajectory,
            step,
            here,
            {name: by_step[step] for name, by_step in pairs.items() if step in by_step},
            count,
            whole,
        )
        for name in here:
            pair = pairs[name].get(step) or next(iter(pairs[name].values()))
            row: Row = {"step": step, "pair": name, "kind": pair.kind, **NO_VALUES, "guessed": pair.guessed}
            rows.append(row | ({"matrix": None} if whole else {}) | values[name])
    return rows


def _values(
    trajectory: Trajectory,
    step: int,
    here: dict[str, tuple[_Side, _Side] | str],
    pairs: dict[str, Pair],
    count: int | None,
    whole: bool,
) -> dict[str, Row]:
    """The columns of each pair of a step: its numbers, or the reason why there are none."""
    found = {name: sides for name, sides in here.items() if not isinstance(sides, str)}
    values: dict[str, Row] = {name: {"reason": sides} for name, sides in here.items() if isinstance(sides, str)}
    for names in in_runs({name: sum(side.bytes(count) for side in sides) for name, sides in found.items()}):
        read = trajectory.sides(step, dict.fromkeys(side.key for name in names for side in found[name]), count)
        compared = {name: _Compared(pairs[name], *found[name], read) for name in names}
        values |= {name: compared[name].row(row, whole) for name, row in _numbers(compared).items()}
    return values


LEFT_OUT = "not in the store: left out by --match or --skip"
NO_VALUES: Row = {"score": None, "baseline": None, "diagonal": None, "per_head": None}


@dataclass(frozen=True)
class _Side:
    """One side of a pair at a step, as the store has it. `whole` is the shape of the matrix that blocks are cut of."""

    side: Side
    record: Record
    whole: tuple[int, int]
    directions: Directions

    @property
    def key(self) -> tuple[str, str]:
        return self.side.stored, self.side.vectors

    def bytes(self, count: int | None) -> int:
        """How much there is to read."""
        return 4 * prod(self.record.vectors_shape(self.side.vectors, count))

    def blocks_for(self, heads: int) -> list[int]:
        """The block of each head; one for several heads counts for each of them."""
        if self.side.index is not None:
            return [self.side.index]
        blocks = max(self.record.block_count, 1)
        return [head * blocks // heads for head in range(heads)]

    def vectors(self, read: Read, blocks: list[int]) -> Array:
        """The vectors as columns, cut to what is compared: (d, k), or (heads, d, k)."""
        stored = read[self.key]
        if self.record.block_count:
            stored = stored.transpose(1, 0, 2)
            if blocks != list(range(len(stored))):
                stored = stored[blocks]
        else:
            stored = stored[None]
        if self.side.kept is not None:
            stored = stored[..., self.side.kept.as_slice()]
        return stored.swapaxes(-1, -2)


def _sides(
    trajectory: Trajectory, step: int, pair: Pair, directions: dict[tuple[int, str], Directions]
) -> tuple[_Side, _Side] | str:
    """Both sides of a pair as the store has them, or why there is no number."""
    info = trajectory.info(step)
    absent = [side.matrix for side in (pair.one, pair.other) if info.record(side.matrix) is None]
    if absent and absent[0] in trajectory.matrices:
        return f"{absent[0]} is not there at this step"
    if pair.reason is not None:
        return pair.reason
    found = []
    for side in (pair.one, pair.other):
        matrix, record = info.record(side.matrix), info.record(side.stored)
        if matrix is None:
            return f"{side.matrix}: {LEFT_OUT}"
        if matrix.reason:
            return f"{side.matrix}: {matrix.reason}"
        if record is None:
            return f"the blocks of {side.matrix} are not in the store: analyse again"
        if side.blocks is not None and not record.block_count:
            return f"the blocks of {side.matrix} have the name of a tensor, {side.stored}"
        if not record.vectors:
            return NO_VECTORS
        of_side = directions[step, side.stored]
        if not of_side.ranks.any():
            return f"{side.label}: {ZERO_MATRIX}"
        found.append(_Side(side, record, matrix.shape, of_side))
    return found[0], found[1]


class _Compared:
    """A pair at a step: `u` (heads, d, j) and `v` (heads, d, k) are the vectors that are compared."""

    def __init__(self, pair: Pair, one: _Side, other: _Side, read: Read) -> None:
        self._pair, self._one, self._other = pair, one, other
        heads = pair.heads or 1
        self._blocks = one.blocks_for(heads), other.blocks_for(heads)
        self.u, self.v = one.vectors(read, self._blocks[0]), other.vectors(read, self._blocks[1])
        self.kept = min(self.u.shape[-1], self.v.shape[-1])

    def leave_out_noise(self, diagonals: Array) -> None:
        """Directions that are noise become NaN in the diagonals of its heads, (heads, k)."""
        if min(self._one.directions.least, self._other.directions.least) < self.kept:
            diagonals[np.arange(self.kept) >= np.minimum(*self._ranks)[:, None]] = np.nan

    @property
    def _ranks(self) -> tuple[Array, Array]:
        """The numerical ranks of either side, by head."""
        return self._one.directions.ranks[self._blocks[0]], self._other.directions.ranks[self._blocks[1]]

    def row(self, numbers: Row, whole: bool) -> Row:
        """The columns of its row; `numbers` are its score, diagonal and per_head."""
        pair, one, other = self._pair, self._one, self._other
        if numbers["score"] is None:
            return {"reason": f"each head is a {ZERO_MATRIX}"}
        row = numbers | {"baseline": _baseline(one.side, one.whole, other.side, other.whole)}
        row["per_head"] = None if pair.heads is None else row["per_head"]
        if whole:
            row["matrix"] = [plain_list(line) for line in self._matrix()]
        needed = min(LEADING, one.record.rank, other.record.rank)
        if one.directions.is_simple and other.directions.is_simple and self.kept >= needed:
            return row | {"reason": None}
        there = np.minimum(*self._ranks)
        return row | {"reason": _remark(pair, one, other, self._blocks, there, self.kept)}

    def _matrix(self) -> Array:
        """A, the mean over heads, with the directions that are noise as NaN."""
        found = [alignment(left, right) for left, right in zip(self.u, self.v, strict=True)]
        for products, rows, columns in zip(found, *self._ranks, strict=True):
            products[rows:], products[:, columns:] = np.nan, np.nan
        return _mean(np.stack(found), axis=0)


@lru_cache(maxsize=4096)
def _baseline(one: Side, first: tuple[int, int], other: Side, second: tuple[int, int]) -> float:
    """What random directions give, for sides of matrices of these shapes."""
    return random_baseline(one.dimension(first), one.share(first) * other.share(second))


def _numbers(compared: dict[str, _Compared]) -> dict[str, Row]:
    """The score, the mean diagonal and the scores of the heads of each pair; those of one shape at once."""
    shapes: dict[tuple[tuple[int, ...], tuple[int, ...]], list[str]] = {}
    for name, one in compared.items():
        shapes.setdefault((one.u.shape, one.v.shape), []).append(name)
    found: dict[str, Row] = {}
    for names in shapes.values():
        members = [compared[name] for name in names]
        values = diagonal(np.stack([one.u for one in members]), np.stack([one.v for one in members]))
        for one, diagonals in zip(members, values, strict=True):
            one.leave_out_noise(diagonals)
        scores = score(values)
        columns = [plain_lists(array) for array in (_mean(scores, axis=1), _mean(values, axis=1), scores)]
        for name, mean, line, of_heads in zip(names, *columns, strict=True):
            found[name] = {"score": mean, "diagonal": line, "per_head": of_heads}
    return found


def _mean(values: Array, axis: int) -> Array:
    """The mean along an axis of what is there, NaN where nothing is."""
    if values.shape[axis] == 1:
        return values.squeeze(axis)
    present = ~np.isnan(values)
    counts = present.sum(axis=axis)
    sums = np.where(present, values, 0.0).sum(axis=axis)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def _remark(
    pair: Pair, one: _Side, other: _Side, blocks: tuple[list[int], list[int]], there: Array, kept: int
) -> str | None:
    """What to know about a number that is there."""
    if not there.all():
        places = ", ".join(str(head) for head in np.flatnonzero(there == 0))
        zero = one if (one.directions.ranks == 0).any() else other
        return f"without head {places}, a zero matrix in {zero.side.matrix}"
    needed = min(LEADING, one.record.rank, other.record.rank)
    if kept < needed:
        return f"{kept} singular vectors are kept, and the score asks for {needed}: analyse with a larger --top-k"
    for side, of_heads in zip((one, other), blocks, strict=True):
        for head, block in enumerate(of_heads):
            close = side.directions.close_among(min(needed, int(there[head])), block)
            if close is not None:
                where = f"of head {head} of {side.side.matrix}" if pair.heads else f"of {side.side.label}"
                places = f"sigma_{close[0] + 1} and sigma_{close[1] + 1}"
                return f"{places} {where} are equal to 1e-6: their vectors are not unique"
    return few_directions(int(there.min()), needed) if there.min() < needed else None
