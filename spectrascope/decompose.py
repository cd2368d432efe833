"""Matrix -> singular values and the top singular vectors. The only caller of an eigenvalue or SVD routine.

The smaller Gram matrix is formed in float64 from blocks of rows that are upcast one at a time, so that no float64
copy of a large matrix ever exists; its eigenvectors are the singular vectors of the shorter side, and the other side
is W v / sigma. Squaring halves the digits: where the smallest sigma is below about 1e-5 sigma_1, the matrix is
decomposed again by a blocked QR and an SVD of R, both in float64. Singular values are then within 1e-10 sigma_1 of
exact ones, and vectors satisfy ||W v - sigma u|| <= 1e-6 sigma_1, for every stored dtype.

An array is NumPy's on the CPU and torch's on a GPU; the algorithm is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .arrays import BLOCK_BYTES, Array, as_array, count_zeros, to_torch

# Below this share of sigma_1 the Gram matrix no longer holds 1e-10 with room to spare. The error grows with 1 / sigma
# and with the width: 8e-11 at 1e-5 sigma_1 for a width of 500, 1.2e-10 at 2.1e-5 for 3200; so it stays near 4e-11.
GRAM_LIMIT, GRAM_LIMIT_PER_COLUMN = 2e-5, 2e-8
# Above this share of sigma_1, W v / sigma is orthonormal to 1e-9 as it is; below, it is orthonormalised.
SAFE_TO_DIVIDE = 1e-3
# Below this share of sigma_1, W v / sigma is rounding noise: the vector is completed orthonormally instead.
NULL_LIMIT = 1e-12

# torch's failures to converge, of cuSOLVER and of its allocators are all RuntimeErrors.
GivesUp = (np.linalg.LinAlgError, RuntimeError, MemoryError)


@dataclass(frozen=True)
class Decomposition:
    """W = U diag(sigma) V^T, cut to the top k vectors.

    singular_values : (R,) float64, descending, >= 0; NaN throughout where there is no decomposition
    left : (k, m) float32, the rows are u_1 .. u_k;  right : (k, n) float32, likewise v
    reason : why there is no decomposition, None where there is one
    failed : True where another attempt might succeed (every routine gave up), False for non-finite input
    note : what a person should know about how it was obtained, such as a fallback
    """

    singular_values: NDArray[np.float64]
    left: NDArray[np.float32]
    right: NDArray[np.float32]
    reason: str | None = None
    failed: bool = False
    note: str | None = None


@dataclass(frozen=True)
class Backend:
    """Where the arithmetic runs. `linalg` is numpy.linalg or torch.linalg.

    `take` brings a stored matrix there as it is, `upcast` makes a float64 array of a block of it.
    """

    name: str
    linalg: Any
    svd: Callable[[Any], tuple[Any, Any, Any]]
    take: Callable[[Array], Any]
    upcast: Callable[[Any], Any]
    concatenate: Callable[[list[Any]], Any]
    to_numpy: Callable[[Any], NDArray[np.float64]]
    from_numpy: Callable[[NDArray[np.float64]], Any]


NUMPY = Backend(
    name="NumPy",
    linalg=np.linalg,
    svd=lambda array: np.linalg.svd(array, full_matrices=False),
    take=lambda matrix: matrix,
    upcast=lambda block: np.ascontiguousarray(block, np.float64),
    concatenate=np.concatenate,
    to_numpy=np.asarray,
    from_numpy=np.asarray,
)


def torch_backend(device: str) -> Backend:
    """The same algorithm on torch arrays of `device`."""
    import torch

    # On a GPU the default driver, Jacobi, may not converge; QR iteration does, and is asked for rarely.
    driver = "gesvd" if device.startswith("cuda") else None
    return Backend(
        name=f"torch on {device}",
        linalg=torch.linalg,
        svd=lambda array: torch.linalg.svd(array, full_matrices=False, driver=driver),
        take=lambda matrix: to_torch(matrix).to(device),
        upcast=lambda block: block.contiguous().to(torch.float64),
        concatenate=torch.cat,
        to_numpy=lambda array: array.cpu().numpy(),
        from_numpy=lambda array: torch.from_numpy(np.ascontiguousarray(array)).to(device),
    )


def decompose(matrix: Any, top_k: int = 100, device: str = "cpu") -> Decomposition:
    """Singular values of a matrix and its first `top_k` singular vectors.

    Parameters
    ----------
    matrix : (m, n) array or tensor of float16, bfloat16, float32 or float64, m and n positive
    top_k : how many vectors of either side; min(top_k, R) are given, none for 0
    device : "cpu", "cuda" or "cuda:i"

    A zero matrix has singular values of 0 and some orthonormal vectors. A matrix with NaN or Inf is not decomposed;
    nor is one for which every routine on every device fails. No noise is ever added. Raises nothing of its own.
    """
    matrix = as_array(matrix)
    troubles: list[str] = []
    # torch is asked second on the CPU, and imported for that alone.
    for name in ("numpy", "cpu") if device == "cpu" else (device, "numpy"):
        backend = NUMPY if name == "numpy" else torch_backend(name)
        try:
            tall = _Tall(matrix, backend)
            sigma, short = _values_and_short_side(tall, top_k, troubles)
            long = _long_side(tall, sigma, short)
        except _NonFinite:
            return undecomposed(matrix.shape, top_k, _count_non_finite(matrix))
        except GivesUp as error:
            troubles.append(_trouble("SVD of R", backend, error))
        else:
            sigma = _descale(sigma, tall.exponent)
            if not np.isfinite(sigma[0]):
                return undecomposed(matrix.shape, top_k, "its singular values exceed the range of float64")
            left, right = (short, long) if tall.transposed else (long, short)
            note = f"fallback used: {'; '.join(dict.fromkeys(troubles))}" if troubles else None
            return Decomposition(sigma, _stored(left), _stored(right), note=note)
    return undecomposed(matrix.shape, top_k, f"not decomposed: {'; '.join(dict.fromkeys(troubles))}", failed=True)


def decompose_blocks(blocks: Array, side: str, top_k: int = 100, device: str = "cpu") -> Decomposition:
    """The decompositions of several matrices of one shape, of which one side is kept.

    blocks : (count, m, n);  side : "left" or "right"

    Singular values are (count R,), one block after the other; the vectors of that side (k, count, m or n), those of the
    other side (0, 0). The reason is that of the first block that is not decomposed, whose values are NaN.
    """
    found = [decompose(block, top_k, device) for block in blocks]
    vectors = np.stack([one.left if side == "left" else one.right for one in found], axis=1)
    none = np.zeros((0, 0), np.float32)
    reasons = [f"block {index}: {one.reason}" for index, one in enumerate(found) if one.reason]
    return Decomposition(
        np.concatenate([one.singular_values for one in found]),
        vectors if side == "left" else none,
        vectors if side == "right" else none,
        reasons[0] if reasons else None,
        any(one.failed for one in found),
        next((one.note for one in found if one.note), None),
    )


def norms_of_rows(filters: Array, shape: tuple[int, int]) -> Decomposition:
    """The decomposition of a depthwise convolution: (c, k) filters stand for a (c, c k) matrix with one in each row.

    Its singular values are the norms of the filters; the vectors, which are the filters one by one, are not kept.
    NaN or Inf as in `decompose`.
    """
    values = filters.astype(np.float64)
    if not np.isfinite(values).all():
        return undecomposed(shape, 0, _count_non_finite(filters))
    largest = float(np.abs(values).max()) or 1.0  # relative to it, squares neither overflow nor vanish
    norms = np.linalg.norm(values / largest, axis=1) * largest
    none = np.zeros((0, 0), np.float32)
    return Decomposition(-np.sort(-norms), none, none)


def share_of_zeros(matrix: Array) -> float:
    """The share of a matrix' entries that are exactly zero, in [0, 1]: its sparsity."""
    return count_zeros(matrix) / matrix.size


def undecomposed(shape: tuple[int, ...], top_k: int, reason: str, failed: bool = False) -> Decomposition:
    """The stand-in for a decomposition that does not exist: NaN in the shapes that it would have had."""
    m, n = shape
    k = min(top_k, m, n)
    return Decomposition(
        np.full(min(m, n), np.nan),
        np.full((k, m), np.nan, np.float32),
        np.full((k, n), np.nan, np.float32),
        reason,
        failed,
    )


class _NonFinite(Exception):
    """The Gram matrix, and so the matrix, holds a NaN or Inf."""


class _Tall:
    """A matrix seen with its longer side as rows, as float64 blocks on a backend.

    float64 input is scaled by a power of two, so that squares of its entries neither overflow nor vanish.
    """

    def __init__(self, matrix: Array, backend: Backend) -> None:
        self.backend = backend
        self.transposed = matrix.shape[0] < matrix.shape[1]
        self.length, self.width = max(matrix.shape), min(matrix.shape)
        self._matrix = backend.take(matrix)
        self.exponent = 0
        if matrix.dtype == np.float64:
            largest = max(float(matrix.max()), -float(matrix.min()))
            self.exponent = int(np.frexp(largest)[1]) if np.isfinite(largest) else 0

    def blocks(self, rows: int | None = None) -> Iterator[Any]:
        """float64 arrays (at most `rows`, width) from top to bottom."""
        rows = rows or max(1, BLOCK_BYTES // (8 * self.width))
        for start in range(0, self.length, rows):
            piece = self._matrix[:, start : start + rows] if self.transposed else self._matrix[start : start + rows]
            array = self.backend.upcast(piece)
            if self.exponent:
                half = self.exponent // 2  # in two steps: 2**-exponent alone may overflow
                array = array * 2.0**-half * 2.0 ** (half - self.exponent)
            yield array.T if self.transposed else array


def _values_and_short_side(
    tall: _Tall, top_k: int, troubles: list[str]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """sigma (R,) descending and the first top_k singular vectors of the shorter side as columns (R, k)."""
    try:
        sigma, short = _by_gram(tall, top_k)
        if sigma[-1] >= max(GRAM_LIMIT, GRAM_LIMIT_PER_COLUMN * tall.width) * sigma[0] > 0:
            return sigma, short
    except GivesUp as error:
        troubles.append(_trouble("eigh", tall.backend, error))
    return _by_qr(tall, top_k)


def _by_gram(tall: _Tall, top_k: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    backend = tall.backend
    gram: Any = None
    for block in tall.blocks():
        if gram is None:
            gram = block.T @ block
        else:
            gram += block.T @ block
    # A NaN or Inf of W is on the diagonal: the sum of the squares of its column.
    if not np.isfinite(backend.to_numpy(gram.diagonal())).all():
        raise _NonFinite
    if top_k == 0:
        eigenvalues = backend.to_numpy(backend.linalg.eigvalsh(gram))
        short = np.zeros((tall.width, 0))
    else:
        values, vectors = backend.linalg.eigh(gram)
        eigenvalues = backend.to_numpy(values)
        short = backend.to_numpy(vectors)[:, ::-1][:, :top_k]
    return np.sqrt(np.maximum(eigenvalues[::-1], 0.0)), short


def _by_qr(tall: _Tall, top_k: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    backend = tall.backend
    triangle = None
    for block in tall.blocks(rows=max(2 * tall.width, BLOCK_BYTES // (8 * tall.width))):
        stacked = block if triangle is None else backend.concatenate([triangle, block])
        triangle = _qr_triangle(backend, stacked)
    _, sigma, right = backend.svd(triangle)
    return backend.to_numpy(sigma), backend.to_numpy(right)[:top_k].T


def _qr_triangle(backend: Backend, array: Any) -> Any:
    factor = backend.linalg.qr(array, mode="r")
    return factor if isinstance(factor, np.ndarray) else factor[1]


def _long_side(tall: _Tall, sigma: NDArray[np.float64], short: NDArray[np.float64]) -> NDArray[np.float64]:
    """u = W v / sigma for the columns v of `short`, shape (length, k), orthonormal also where sigma vanishes."""
    backend = tall.backend
    k = short.shape[1]
    if k == 0:
        return np.zeros((tall.length, 0))
    on_device = backend.from_numpy(short)
    null = sigma[:k] <= NULL_LIMIT * sigma[0]
    divisors = np.where(null, 1.0, sigma[:k])
    long = np.empty((tall.length, k))
    start = 0
    for block in tall.blocks():
        np.divide(backend.to_numpy(block @ on_device), divisors, out=long[start : start + len(block)])
        start += len(block)
    if sigma[k - 1] >= SAFE_TO_DIVIDE * sigma[0] > 0:
        return long
    long[:, null] = np.random.default_rng(0).standard_normal((tall.length, int(null.sum())))
    basis, triangle = np.linalg.qr(long)
    return np.asarray(basis * np.where(np.diag(triangle) < 0, -1.0, 1.0))


def _descale(sigma: NDArray[np.float64], exponent: int) -> NDArray[np.float64]:
    with np.errstate(over="ignore"):
        return np.ldexp(sigma, exponent) if exponent else np.ascontiguousarray(sigma)


def _stored(vectors: NDArray[np.float64]) -> NDArray[np.float32]:
    return np.ascontiguousarray(vectors.T, dtype=np.float32)


def _count_non_finite(matrix: Array) -> str:
    nan, infinite = int(np.isnan(matrix).sum()), int(np.isinf(matrix).sum())
    counts = [f"{count} {name}" for count, name in ((nan, "NaN"), (infinite, "Inf")) if count]
    return f"non-finite: {' and '.join(counts)} of {matrix.size} entries"


def _trouble(routine: str, backend: Backend, error: BaseException) -> str:
    if isinstance(error, MemoryError) or "out of memory" in str(error) or "allocate memory" in str(error):
        return f"out of memory ({backend.name})"
    first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return f"{routine} ({backend.name}) gave up: {first_line}"
