"""Singular vector agreement, SVA: whether one matrix at two times has the same leading directions (thesis Eq. 4.5).

Singular vectors are the columns of arrays of shape (dimension, count), of the largest singular value first: u (m, k)
and v (n, k) of the one matrix, and those of the other.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .alignment import alignment, diagonal, random_baseline

Array = NDArray[np.float64]

# Singular values that are closer than this share of sigma_1 do not have vectors of their own.
CLOSE = 1e-6


def agreement(u: ArrayLike, v: ArrayLike, other_u: ArrayLike, other_v: ArrayLike) -> Array:
    """S_jk = |<u_j v_j^T, u'_k v'_k^T>_F| = |u_j . u'_k| |v_j . v'_k|, shape (j, k), in [0, 1]. Eq. 4.5.

    Raises ValueError where the matrices do not have one shape.
    """
    return alignment(u, other_u) * alignment(v, other_v)


def agreement_diagonal(u: ArrayLike, v: ArrayLike, other_u: ArrayLike, other_v: ArrayLike) -> Array:
    """S_ii for as many i as both have, shape (k,), in [0, 1]. Raises ValueError as `agreement`.

    Axes before the last two are matrices, each compared with its own: (count, m, k), ... give (count, k).
    """
    return diagonal(u, other_u) * diagonal(v, other_v)


def agreement_baseline(shape: tuple[int, int]) -> float:
    """What random directions in matrices of this shape (m, n) give: the product of the two sides' baselines."""
    return random_baseline(shape[0]) * random_baseline(shape[1])


def subspace_overlap(vectors: ArrayLike, others: ArrayLike, count: int) -> float:
    """||U_k^T U'_k||_F^2 / k of the first k vectors of either, in [0, 1]: 1 where they span one space.

    It does not fall where vectors swap places. NaN where one of the two has fewer than k vectors.
    Raises ValueError for k below 1, or vectors that are not in one space.
    """
    if count < 1:
        raise ValueError(f"a subspace has a dimension of 1 or more, not {count}")
    one, other = np.asarray(vectors, dtype=np.float64), np.asarray(others, dtype=np.float64)
    if min(one.shape[1], other.shape[1]) < count:
        return float("nan")
    return float(np.sum(alignment(one[:, :count], other[:, :count]) ** 2) / count)


def first_close(singular_values: ArrayLike) -> NDArray[np.int64]:
    """The first place (from 0) whose singular value is closer than 1e-6 sigma_1 to the next, R where none is.

    Singular values are descending along the last axis, (..., R); the answer is (...). A zero matrix has them at 0.
    """
    sigma = np.asarray(singular_values, dtype=np.float64)
    is_close = -np.diff(sigma, axis=-1) < CLOSE * sigma[..., :1]
    none = np.full(sigma.shape[:-1], sigma.shape[-1], dtype=np.int64)
    if not is_close.shape[-1]:
        return none
    return np.where(is_close.any(axis=-1), np.argmax(is_close, axis=-1), none)
