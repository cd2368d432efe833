"""Which singular directions of a trajectory are more than noise, and are unique: for all its matrices at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..metrics import agreement, rank
from ..metrics.alignment import LEADING
from ..store import Trajectory
from .rows import by_shape

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Directions:
    """Of one matrix, or of each of its blocks, (blocks,).

    `ranks`: its numerical rank, 0 for a zero matrix; `close`: the first place (from 0) among the leading ten whose
    singular value is that of the next, a larger number where there is none; `least` is the smallest of the ranks, and
    `is_simple` says that the leading ten of every block are more than noise and apart.
    """

    ranks: Integers
    close: Integers
    least: int
    is_simple: bool

    def close_among(self, count: int, block: int = 0) -> tuple[int, int] | None:
        """The first two places that are equal, the first of them among the leading `count`; neither of them noise."""
        place = int(self.close[block])
        is_among = place < min(count, LEADING) and place + 1 < self.ranks[block]
        return (place, place + 1) if is_among else None


def directions_of(
    trajectory: Trajectory, steps: Sequence[int], names: Iterable[str]
) -> dict[tuple[int, str], Directions]:
    """Those of everything that these steps have under these names, {(step, name): ...}, a shape at a time."""
    found: dict[tuple[int, str], Directions] = {}
    for (shape, dtype), members in by_shape(trajectory, steps, list(names)).items():
        spectra = np.concatenate([trajectory.block_values(record.name, step) for step, record in members])
        with np.errstate(invalid="ignore"):
            ranks = np.nan_to_num(rank.numerical_rank(spectra, shape, dtype)).astype(np.int64)
        close = agreement.first_close(spectra[:, : LEADING + 1])
        is_simple = (ranks >= min(LEADING, *shape)) & (close >= min(LEADING, *shape))
        start = 0
        for step, record in members:
            end = start + max(record.block_count, 1)
            mine = ranks[start:end]
            found[step, record.name] = Directions(
                mine, close[start:end], int(mine.min()), bool(is_simple[start:end].all())
            )
            start = end
    return found
