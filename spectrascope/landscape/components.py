"""The top components of a matrix, or the others (thesis 4.5.2; SPEC section 6)."""

from __future__ import annotations

from math import ceil
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..arrays import Array, row_blocks

Keep = Literal["top", "bottom"]


def count_of_top(rank: int, fraction: float) -> int:
    """k = ceil(f R), the components that are the top ones, for f in [0, 1]. Raises ValueError for another f."""
    if not 0 <= fraction <= 1:
        raise ValueError(f"a share of components is from 0 to 1, not {fraction}")
    return max(ceil(fraction * rank - 1e-9), int(fraction > 0))  # 0.1 * 30 is a little more than 3


def keep_components(matrix: Array, short: NDArray[np.float32], count: int, keep: Keep) -> Array:
    """The first `count` components of a matrix for "top", the matrix less those for "bottom".

    Parameters: `matrix` (m, n); `short` (k, min(m, n)), its first singular vectors on the shorter side, at least
    `count` of them unless all are the top ones. The matrix is projected on what they span, made orthonormal in float64
    first: so the top has rank `count` and the bottom R - `count` up to the rounding of the answer, which products of
    rounded vectors would not have. The
    answer is of the matrix' own type, the matrix itself where all is kept, and zero where nothing is. Raises ValueError
    where there are too few vectors.
    """
    is_top = keep == "top"
    if count in (0, min(matrix.shape)):
        return matrix.copy() if is_top == (count > 0) else np.zeros_like(matrix)
    if len(short) < count:
        raise ValueError(f"{len(short)} singular vectors are given of {count} that are wanted")
    basis, _ = np.linalg.qr(short[:count].T.astype(np.float64))
    kept = np.empty_like(matrix)
    tall = (matrix.T, kept.T) if matrix.shape[0] < matrix.shape[1] else (matrix, kept)
    for block, into in zip(*map(row_blocks, tall), strict=True):
        wide = block.astype(np.float64)
        top = wide @ basis @ basis.T
        into[...] = top if is_top else wide - top
    return kept


def keep_filters(filters: Array, count: int, keep: Keep) -> Array:
    """As `keep_components`, of a depthwise convolution (c, k): its components are its filters, by their norms."""
    norms = np.linalg.norm(filters.astype(np.float64), axis=1)
    order = np.argsort(-norms, kind="stable")
    dropped = order[count:] if keep == "top" else order[:count]
    kept = filters.copy()
    kept[dropped] = 0
    return kept
