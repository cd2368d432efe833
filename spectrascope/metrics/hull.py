"""The convex hull of several sets of weights (thesis Algorithm 1; SPEC section 5), through their Gram matrix."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


def simplex_samples(count: int, corners: int, seed: int) -> Array:
    """`count` points that are uniform on the simplex, (count, corners): each row is 0 or more and sums to 1.

    Dirichlet(1, ..., 1). The mean of an entry is 1/P, its variance (P-1) / (P^2 (P+1)).
    """
    return np.random.default_rng(seed).dirichlet(np.ones(corners), size=count)


def share_below(losses: ArrayLike, references: ArrayLike) -> tuple[float, float]:
    """The share of losses that are below those they are compared with, and its standard error sqrt(p (1-p) / J).

    Pairs in which either is not finite count as not below. NaN and NaN for none.
    """
    loss, reference = np.asarray(losses, dtype=np.float64), np.asarray(references, dtype=np.float64)
    if not loss.size:
        return float("nan"), float("nan")
    with np.errstate(invalid="ignore"):
        share = float(np.mean(loss < reference))
    return share, float(np.sqrt(share * (1 - share) / loss.size))


def distances(gram: ArrayLike) -> Array:
    """||W_i - W_j|| of each pair, (P, P), from the Gram matrix of the flattened weights, (P, P)."""
    g = np.asarray(gram, dtype=np.float64)
    squares = np.diag(g)[:, None] + np.diag(g)[None, :] - 2 * g
    np.fill_diagonal(squares, 0.0)
    found: Array = np.sqrt(np.maximum(squares, 0.0))
    return found


def singular_values(gram: ArrayLike) -> Array:
    """Those of the stacked, flattened weights, (P,), descending: roots of the eigenvalues of their Gram matrix.

    NaN where the Gram matrix holds a number that is not finite.
    """
    if not np.isfinite(gram).all():
        return np.full(len(np.asarray(gram)), np.nan)
    found: Array = np.sqrt(np.maximum(np.linalg.eigvalsh(np.asarray(gram, dtype=np.float64))[::-1], 0.0))
    return found


def centred(gram: ArrayLike) -> Array:
    """The Gram matrix of the weights minus their mean, (P, P): its rank is P - 1 at most."""
    g = np.asarray(gram, dtype=np.float64)
    found: Array = g - g.mean(axis=0) - g.mean(axis=1)[:, None] + g.mean()
    return found
