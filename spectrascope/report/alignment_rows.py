"""Alignment of consecutive matrices (SPEC section 3) as rows of plain values, one per step and pair."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..architectures.pairs import Pair, Side
from ..metrics import agreement, rank
from ..metrics.alignment import LEADING, alignment, diagonal, random_baseline, score
from ..store import Record, Trajectory
from .agreement_rows import NO_VECTORS
from .rows import ZERO_MATRIX, Row

Vectors = NDArray[np.float64]


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
    rows = []
    for step in steps:
        here = [by_step[step] for by_step in pairs.values() if step in by_step]
        sides = {(side.stored, side.vectors) for pair in here if pair.reason is None for side in (pair.one, pair.other)}
        read = trajectory.sides(step, sorted(sides), count)
        for name, by_step in pairs.items():
            pair = by_step.get(step)
            row: Row = {"step": step, "pair": name, "kind": next(iter(by_step.values())).kind}
            row |= {"score": None, "baseline": None, "diagonal": None, "per_head": None}
            row |= {"matrix": None} if whole else {}
            row |= {"guessed": next(iter(by_step.values())).guessed}
            rows.append(row | _values(trajectory, step, pair, read, whole))
    return rows


def _values(trajectory: Trajectory, step: int, pair: Pair | None, read: dict[Any, Any], whole: bool) -> Row:
    if pair is None:
        return {"reason": "not there at this step"}
    if pair.reason is not None:
        return {"reason": pair.reason}
    sides = [_read(trajectory, step, side, read) for side in (pair.one, pair.other)]
    for side in sides:
        if isinstance(side, str):
            return {"reason": side}
    one, other = (side.of_heads(pair) for side in sides if not isinstance(side, str))
    values = diagonal(one.vectors, other.vectors)
    null = np.minimum(one.numerical_ranks, other.numerical_ranks)
    values[np.arange(values.shape[-1]) >= null[:, None]] = np.nan
    scores = score(values)
    is_mean = pair.heads is not None
    row: Row = {
        "score": _plain(_mean(scores)),
        "baseline": random_baseline(one.dimension, one.share * other.share),
        "diagonal": [_plain(value) for value in _mean(values)],
        "per_head": [_plain(value) for value in scores] if is_mean else None,
    }
    if whole:
        row["matrix"] = [[_plain(value) for value in line] for line in _whole(one, other)]
    if row["score"] is None:
        return {"reason": _zero(one, other, pair)}
    return row | {"reason": _remark(one, other, pair, values.shape[-1])}


@dataclass(frozen=True)
class _Read:
    """A side of a pair at a step: singular `values` (blocks, R), `vectors` (blocks, d, k) cut to what is compared."""

    side: Side
    record: Record
    whole: tuple[int, int]
    values: NDArray[np.float64]
    vectors: Any

    @property
    def dimension(self) -> int:
        return int(self.vectors.shape[-2])

    @property
    def share(self) -> float:
        return self.side.share(self.whole)

    @property
    def numerical_ranks(self) -> NDArray[np.int64]:
        """How many directions of each block are more than rounding noise."""
        ranks = rank.numerical_rank(self.values, self.record.shape, self.record.dtype)
        return np.asarray(ranks, dtype=np.int64)

    def of_heads(self, pair: Pair) -> _Read:
        """With one block for each head of the pair; a block for several heads counts for each of them."""
        heads, blocks = pair.heads or 1, self.values.shape[0]
        if heads == blocks:
            return self
        picked = [head * blocks // heads for head in range(heads)]
        return _Read(self.side, self.record, self.whole, self.values[picked], self.vectors[picked])


def _read(trajectory: Trajectory, step: int, side: Side, read: dict[Any, Any]) -> _Read | str:
    """A side as the store has it, or why there is none."""
    info = trajectory.info(step)
    matrix, record = info.record(side.matrix), info.record(side.stored)
    if matrix is None:
        return f"{side.matrix} is not in the store"
    if matrix.reason:
        return f"{side.matrix}: {matrix.reason}"
    if record is None:
        return f"the blocks of {side.matrix} are not in the store: analyse again"
    if not record.vectors:
        return NO_VECTORS
    stored = read[side.stored, side.vectors]
    vectors = np.moveaxis(stored, 0, -1) if record.blocks else stored.T[None]
    values = trajectory.block_values(side.stored, step)
    if side.blocks is not None and side.index is not None:
        vectors, values = vectors[side.index, None], values[side.index, None]
    if side.kept is not None:
        vectors = vectors[:, side.kept.as_slice()]
    return _Read(side, record, matrix.shape, values, vectors)


def _whole(one: _Read, other: _Read) -> NDArray[np.float64]:
    """A, the mean over heads, with null directions as NaN."""
    found = []
    for u, v, first, second in zip(one.vectors, other.vectors, one.numerical_ranks, other.numerical_ranks, strict=True):
        products = alignment(u, v)
        products[first:], products[:, second:] = np.nan, np.nan
        found.append(products)
    return _mean(np.stack(found))


def _mean(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean over the first axis of what is there, NaN where nothing is."""
    present = ~np.isnan(values)
    counts = present.sum(axis=0)
    sums = np.where(present, values, 0.0).sum(axis=0)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def _zero(one: _Read, other: _Read, pair: Pair) -> str:
    """Why no direction is left: one side is a zero matrix, or not decomposed."""
    side = one if not (one.values[:, 0] > 0).all() else other
    return side.record.reason or f"{side.side.label}: {ZERO_MATRIX}"


def _remark(one: _Read, other: _Read, pair: Pair, kept: int) -> str | None:
    """What to know about a number that is there."""
    missing = [place for place in (one, other) if (place.numerical_ranks == 0).any()]
    if missing:
        places = ", ".join(str(index) for index in np.flatnonzero(missing[0].numerical_ranks == 0))
        return f"without head {places}, a zero matrix in {missing[0].side.matrix}"
    needed = min(LEADING, one.record.rank, other.record.rank)
    if kept < needed:
        return f"{kept} singular vectors are kept, and the score asks for {needed}: analyse with a larger --top-k"
    for place in (one, other):
        there = np.minimum(np.minimum(one.numerical_ranks, other.numerical_ranks), needed)
        for head, values in enumerate(place.values):
            close = agreement.close_values(values[: place.numerical_ranks[head]], int(there[head]))
            if close is not None:
                where = f"of head {head} of {place.side.matrix}" if pair.heads else f"of {place.side.label}"
                places = f"sigma_{close[0] + 1} and sigma_{close[1] + 1}"
                return f"{places} {where} are equal to 1e-6: their vectors are not unique"
    return None


def _plain(value: Any) -> float | None:
    number = float(value)
    return number if np.isfinite(number) else None
