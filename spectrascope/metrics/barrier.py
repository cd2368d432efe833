"""How high the loss rises on the straight line between two sets of weights (thesis Eq. B.1; SPEC section 5)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


def deviations(alphas: ArrayLike, losses: ArrayLike) -> Array:
    """L(W(alpha)) - (L_1 + alpha (L_2 - L_1)) at each alpha, in the unit of the loss; exactly 0 at both ends.

    Parameters: `alphas` (T,), ascending from 0 to 1; `losses` (T,), NaN where there is none. Raises ValueError where
    they do not have one length, or the first alpha is not 0 and the last one 1.
    """
    a, loss = np.asarray(alphas, dtype=np.float64), np.asarray(losses, dtype=np.float64)
    if a.shape != loss.shape or a.ndim != 1 or a.size < 2:
        raise ValueError(f"alphas and losses are of one length, 2 or more, not {a.shape} and {loss.shape}")
    if a[0] != 0 or a[-1] != 1 or np.any(np.diff(a) <= 0):
        raise ValueError("alphas ascend from 0 to 1")
    with np.errstate(invalid="ignore"):
        found: Array = loss - (loss[0] + a * (loss[-1] - loss[0]))
    found[[0, -1]] = np.where(np.isfinite(loss[[0, -1]]), 0.0, np.nan)
    return found


def barrier(alphas: ArrayLike, losses: ArrayLike) -> float:
    """The largest deviation, ends included, and so 0 or more: Eq. B.1. NaN where a loss is not finite.

    A model with itself has a barrier of exactly 0. Raises ValueError as `deviations`.
    """
    if not np.isfinite(np.asarray(losses, dtype=np.float64)).all():
        return float("nan")
    return float(np.max(deviations(alphas, losses)))


def max_deviation(alphas: ArrayLike, losses: ArrayLike) -> tuple[float, float]:
    """The largest deviation between the ends, which may be negative, and the alpha at which it is.

    What the reference code calls the barrier. NaN and NaN where a loss is not finite, or there is no point between the
    ends. Raises ValueError as `deviations`.
    """
    found = deviations(alphas, losses)[1:-1]
    if not found.size or not np.isfinite(np.asarray(losses, dtype=np.float64)).all():
        return float("nan"), float("nan")
    place = int(np.argmax(found))
    return float(found[place]), float(np.asarray(alphas, dtype=np.float64)[1:-1][place])
