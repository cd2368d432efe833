"""What one spectrum says: ranks and norms (SPEC section 2; thesis 4.3; Roy & Vetterli 2007).

Every function takes singular values along the last axis, in any order, shape (..., R), and returns shape (...).
The trailing NaN of a spectrum that is padded to a longer one are left out. A spectrum that is NaN throughout
(a matrix that was not decomposed) gives NaN; one without a value raises ValueError. Nothing is added to a singular
value and no input is changed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

# The distance from 1 to the next number, by the dtype that the checkpoint stored.
# That of int8 codes is relative to the largest number that they can be.
MACHINE_EPSILON = {
    "float8_e5m2": 2.0**-2,
    "float8_e5m2fnuz": 2.0**-2,
    "float8_e4m3fn": 2.0**-3,
    "float8_e4m3fnuz": 2.0**-3,
    "int8": 1 / 127,
    "float16": 2.0**-10,
    "bfloat16": 2.0**-7,
    "float32": 2.0**-23,
    "float64": 2.0**-52,
}


def spectral_entropy(singular_values: ArrayLike) -> Array:
    """H = -sum p_i log p_i with p_i = sigma_i / sum_j sigma_j, in nats; in [0, log R]. Eq. 4.1 as printed.

    0 log 0 is 0. A zero matrix has no distribution p: NaN.
    """
    p = _shares(_spectrum(singular_values))
    terms = p * np.log(np.where(p > 0, p, 1.0))
    return _where_present(p, 0.0 - _sum(terms))  # not -0.0 for rank one


def effective_rank(singular_values: ArrayLike) -> Array:
    """exp(H), H the spectral entropy (Roy & Vetterli 2007); in [1, R]. NaN for a zero matrix."""
    return np.exp(spectral_entropy(singular_values))


def norm_effective_rank(singular_values: ArrayLike) -> Array:
    """exp(H) / R, R the number of singular values; in [1/R, 1]. Eq. 4.2. NaN for a zero matrix."""
    sigma = _spectrum(singular_values)
    count = np.sum(~np.isnan(sigma), axis=-1)
    return effective_rank(sigma) / np.where(count > 0, count, np.nan)


def stable_rank(singular_values: ArrayLike) -> Array:
    """sum sigma_i^2 / sigma_1^2; in [1, R]. NaN for a zero matrix."""
    ratio = _relative(_spectrum(singular_values))
    return _where_present(ratio, _sum(ratio**2))


def spectral_norm(singular_values: ArrayLike) -> Array:
    """sigma_1, in the unit of the weights; 0 for a zero matrix."""
    return _largest(_spectrum(singular_values))


def frobenius_norm(singular_values: ArrayLike) -> Array:
    """sqrt(sum sigma_i^2), in the unit of the weights; 0 for a zero matrix."""
    sigma = _spectrum(singular_values)
    top = _largest(sigma)
    # Relative to sigma_1, so that the squares of very large or very small float64 weights exist.
    ratio = sigma / np.where(top > 0, top, 1.0)[..., None]
    return _where_present(sigma, np.sqrt(_sum(ratio**2)) * np.where(top > 0, top, 1.0))


def nuclear_norm(singular_values: ArrayLike) -> Array:
    """sum sigma_i, in the unit of the weights; 0 for a zero matrix."""
    sigma = _spectrum(singular_values)
    return _where_present(sigma, _sum(sigma))


def rank_99(singular_values: ArrayLike) -> Array:
    """The fewest of the largest sigma_i^2 that hold 99% of the energy; in [1, R]. NaN for a zero matrix."""
    ratio = _relative(_spectrum(singular_values))
    squares = np.nan_to_num(ratio) ** 2
    if np.any(squares[..., 1:] > squares[..., :-1]):
        squares = -np.sort(-squares, axis=-1)
    energy = np.cumsum(squares, axis=-1)
    enough = energy >= 0.99 * energy[..., -1:]
    return _where_present(ratio, 1.0 + np.argmax(enough, axis=-1))


def numerical_rank(singular_values: ArrayLike, shape: tuple[int, int], dtype: str) -> Array:
    """How many sigma_i exceed the norm of the rounding noise of an m x n matrix in its stored dtype; in [0, R].

    The floor is eps / sqrt(12) * ||W||_F * (1/sqrt(m) + 1/sqrt(n)): rounding adds to each entry an error of
    variance about (eps |w|)^2 / 12, and a random m x n matrix has a spectral norm of sqrt(m) + sqrt(n) times the
    deviation of its entries. A zero matrix has rank 0.

    Parameters: `shape` is (m, n); `dtype` is one of float16, bfloat16, float32, float64, one of torch's
    float8 types of weights, int8 (whose floor is a lower bound: the error of a code is relative to the largest entry).
    Raises ValueError for any other dtype.
    """
    if dtype not in MACHINE_EPSILON:
        raise ValueError(f"dtype {dtype!r} is none of {', '.join(MACHINE_EPSILON)}")
    m, n = shape
    sigma = _spectrum(singular_values)
    per_norm = MACHINE_EPSILON[dtype] / np.sqrt(12.0) * (m**-0.5 + n**-0.5)
    floor = np.asarray(per_norm * frobenius_norm(sigma))
    return _where_present(sigma, np.sum(sigma > floor[..., None], axis=-1))


def _spectrum(singular_values: ArrayLike) -> Array:
    sigma = np.asarray(singular_values, dtype=np.float64)
    if sigma.ndim == 0 or sigma.shape[-1] == 0:
        raise ValueError("a spectrum needs at least one singular value along its last axis")
    return sigma


def _largest(sigma: Array) -> Array:
    """NaN where the spectrum is NaN throughout."""
    largest: Array = np.fmax.reduce(sigma, axis=-1)
    return largest


def _sum(values: Array) -> Array:
    """The sum along the last axis without NaN; that of none is 0."""
    sums: Array = np.sum(values, axis=-1)
    return np.nansum(values, axis=-1) if np.isnan(sums).any() else sums


def _relative(sigma: Array) -> Array:
    """sigma / sigma_1; all NaN where sigma_1 is 0."""
    top = _largest(sigma)
    return sigma / np.where(top > 0, top, np.nan)[..., None]


def _shares(sigma: Array) -> Array:
    ratio = _relative(sigma)
    total = _sum(ratio)
    return ratio / np.where(total > 0, total, np.nan)[..., None]


def _where_present(sigma: Array, value: ArrayLike) -> Array:
    """`value`, and NaN where the spectrum is NaN throughout."""
    return np.where(np.isnan(_largest(sigma)), np.nan, value)
