"""How the output directions of one matrix meet the input directions of the next (thesis Eq. 4.3, 4.4).

Singular vectors are the columns of arrays of shape (dimension, count), of the largest singular value first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

# The score is the mean over so many leading entries of the diagonal.
LEADING = 10


def alignment(left: ArrayLike, right: ArrayLike) -> Array:
    """A_jk = |<u_j, v'_k>|, shape (j, k), in [0, 1]. Eq. 4.3.

    Parameters: `left` (d, j), vectors of the one side; `right` (d, k), of the other.
    Raises ValueError where the two are not in one space.
    """
    u, v = _vectors(left), _vectors(right)
    if u.shape[0] != v.shape[0]:
        raise ValueError(f"vectors of {u.shape[0]} and of {v.shape[0]} numbers are not in one space")
    products: Array = np.abs(u.T @ v)
    return products


def diagonal(left: ArrayLike, right: ArrayLike) -> Array:
    """A_ii = |<u_i, v'_i>| for as many i as both sides have, shape (min(j, k),). Raises ValueError as `alignment`.

    Axes before the last two are heads, each a pair of its own: (heads, d, j) and (heads, d, k) give (heads, min(j, k)).
    """
    u, v = _vectors(left, heads=True), _vectors(right, heads=True)
    if u.shape[-2] != v.shape[-2]:
        raise ValueError(f"vectors of {u.shape[-2]} and of {v.shape[-2]} numbers are not in one space")
    count = min(u.shape[-1], v.shape[-1])
    sums: Array = np.sum(u[..., :count] * v[..., :count], axis=-2, dtype=np.float64)
    return np.abs(sums)


def score(values: ArrayLike) -> Any:
    """The mean of the first min(10, length) entries of a diagonal. Eq. 4.4. NaN entries are left out.

    NaN where none is left. Axes before the last are heads: (heads, length) gives (heads,); a number for one diagonal.
    """
    leading = np.asarray(values, dtype=np.float64)[..., :LEADING]
    present = ~np.isnan(leading)
    counts = present.sum(axis=-1)
    sums = np.where(present, leading, 0.0).sum(axis=-1)
    means = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
    return means if means.ndim else float(means)


def random_baseline(dimension: int, share: float = 1.0) -> float:
    """What unit vectors of random directions give: E|<u, v>| ~ sqrt(2 / (pi d)).

    Times sqrt(share) for slices that keep this share of the rows of one side, in (0, 1].
    Raises ValueError for a dimension below 1.
    """
    if dimension < 1:
        raise ValueError(f"a dimension is 1 or more, not {dimension}")
    return float(np.sqrt(share * 2.0 / (np.pi * dimension)))


def _vectors(columns: ArrayLike, heads: bool = False) -> NDArray[Any]:
    """Floats as they are: a product of two stored float32 numbers is as exact as they are, and sums are in float64."""
    vectors = np.asarray(columns)
    if vectors.dtype != np.float32 or not heads:
        vectors = vectors.astype(np.float64, copy=False)
    if vectors.ndim < 2 or (vectors.ndim > 2 and not heads):
        raise ValueError(f"singular vectors are the columns of a matrix, not of an array of {vectors.ndim} dimensions")
    return vectors
