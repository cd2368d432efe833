"""The numerical contract of SPEC, by construction and against float64 LAPACK."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import mat

from spectrascope import decompose as module
from spectrascope.decompose import Backend, decompose, torch_backend

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
RANDOM = torch.Generator().manual_seed(0)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=RANDOM, dtype=torch.float64)


MATRICES = {
    "tall": normal(300, 120),
    "wide": normal(120, 300),
    "square": normal(90, 90),
    "ill-conditioned": mat(np.logspace(0, -6, 50), 200, 50, dtype=np.float64),
    "ill-conditioned wide": mat(np.logspace(0, -6, 50), 50, 200, dtype=np.float64),
    "hopeless": mat(np.logspace(0, -14, 40), 150, 40, dtype=np.float64),
    "edge of the Gram matrix": mat(np.logspace(0, -4.69, 60), 300, 60, dtype=np.float64),
    "half of it small": mat(np.r_[np.ones(200), np.full(200, 2.1e-5)], 600, 400, dtype=np.float64),
    "many small": mat(np.r_[np.ones(30), np.full(60, 2.1e-5)], 400, 90, dtype=np.float64),
    "rank-deficient": mat([3.0, 2.0, 1.0], 50, 30, dtype=np.float64),
    "repeated": mat([2.0] * 20, 60, 20, dtype=np.float64),
    "zero": torch.zeros(7, 4),
    "1 x n": normal(1, 40),
    "n x 1": normal(40, 1),
    "1 x 1": normal(1, 1),
    "200,000 x 3": normal(200_000, 3),
    "3 x 200,000": normal(3, 200_000),
}


def assert_contract(matrix: torch.Tensor, top_k: int = 100, device: str = "cpu") -> None:
    """Values to 1e-10 sigma_1, residual and orthogonality to 1e-6, against the matrix as it is stored."""
    found = decompose(matrix, top_k, device)
    exact = matrix.to(torch.float64).numpy()
    sigma = np.linalg.svd(exact, compute_uv=False)
    scale = sigma[0] or 1.0
    k = min(top_k, len(sigma))
    assert found.reason is None
    assert found.left.shape == (k, matrix.shape[0])
    assert found.right.shape == (k, matrix.shape[1])
    np.testing.assert_allclose(found.singular_values, sigma, atol=1e-10 * scale, rtol=0)
    u, v = found.left.T.astype(np.float64), found.right.T.astype(np.float64)
    residual = np.linalg.norm(exact @ v - u * found.singular_values[:k], axis=0)
    assert residual.max() <= 1e-6 * scale
    np.testing.assert_allclose(u.T @ u, np.eye(k), atol=1e-6)
    np.testing.assert_allclose(v.T @ v, np.eye(k), atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", MATRICES)
def test_contract(name: str, dtype: torch.dtype) -> None:
    assert_contract(MATRICES[name].to(dtype))


@pytest.mark.parametrize("name", ["tall", "wide", "ill-conditioned wide", "rank-deficient", "zero", "many small"])
def test_contract_of_the_backend_that_gpus_use(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NUMPY", torch_backend("cpu"))
    assert_contract(MATRICES[name])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", MATRICES)
def test_contract_on_cuda(name: str) -> None:
    assert_contract(MATRICES[name].float(), device="cuda")


@pytest.mark.parametrize("block_bytes", [1, 4096])
def test_blocks_change_nothing(block_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK_BYTES", block_bytes)
    for name in ("tall", "wide", "ill-conditioned", "ill-conditioned wide"):
        assert_contract(MATRICES[name])


@pytest.mark.parametrize("scale", [1e-300, 1e-160, 1e160, 1e300])
def test_float64_beyond_the_range_of_squares(scale: float) -> None:
    sigma = np.array([3.0, 2.0, 1.0])
    found = decompose(mat(sigma, 6, 5, dtype=np.float64) * scale)
    np.testing.assert_allclose(found.singular_values[:3], sigma * scale, rtol=1e-10)


def test_no_vectors() -> None:
    found = decompose(MATRICES["tall"], top_k=0)
    assert found.left.shape == (0, 300)
    assert found.right.shape == (0, 120)
    np.testing.assert_allclose(found.singular_values, np.linalg.svd(MATRICES["tall"].numpy(), compute_uv=False))


def test_input_that_is_not_contiguous_and_is_left_alone() -> None:
    matrix = normal(40, 60).T[::2]
    before = matrix.clone()
    assert_contract(matrix)
    assert torch.equal(matrix, before)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(6, 4), (4, 6)])
def test_non_finite_is_counted_and_not_decomposed(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    matrix = mat([2.0, 1.0], *shape).to(dtype)
    matrix[0, 0], matrix[1, 1], matrix[2, 2] = float("nan"), float("inf"), -float("inf")
    found = decompose(matrix)
    assert found.reason == "non-finite: 1 NaN and 2 Inf of 24 entries"
    assert not found.failed
    assert np.isnan(found.singular_values).all()
    assert np.isnan(found.left).all()


def failing(times: int, real: Any) -> Any:
    """A routine that does not converge the first `times` times."""
    calls = iter(range(times))

    def routine(*arguments: Any, **options: Any) -> Any:
        if next(calls, None) is not None:
            raise np.linalg.LinAlgError("Eigenvalues did not converge")
        return real(*arguments, **options)

    return routine


def test_eigh_that_gives_up_falls_back_to_the_svd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(np.linalg, "eigh", failing(1, np.linalg.eigh))
    found = decompose(mat([3.0, 2.0, 1.0], 7, 5))
    np.testing.assert_allclose(found.singular_values, [3, 2, 1, 0, 0], atol=1e-6)
    assert found.note == "fallback used: eigh (NumPy) gave up: Eigenvalues did not converge"


def test_numpy_that_gives_up_falls_back_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(np.linalg, "eigh", failing(99, None))
    monkeypatch.setattr(np.linalg, "svd", failing(99, None))
    found = decompose(mat([3.0, 2.0, 1.0], 7, 5))
    np.testing.assert_allclose(found.singular_values, [3, 2, 1, 0, 0], atol=1e-6)
    assert "SVD of R (NumPy) gave up" in str(found.note)


def test_out_of_memory_on_the_device_falls_back_to_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    real = module.torch_backend

    def full(device: str) -> Backend:
        def upcast(block: torch.Tensor) -> Any:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")

        return replace(real("cpu"), name="torch on cuda", upcast=upcast)

    monkeypatch.setattr(module, "torch_backend", full)
    found = decompose(mat([3.0, 2.0, 1.0], 7, 5), device="cuda")
    np.testing.assert_allclose(found.singular_values, [3, 2, 1, 0, 0], atol=1e-6)
    assert found.note == "fallback used: out of memory (torch on cuda)"


def test_a_failure_of_the_second_product_falls_back_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Out of memory, or cuSOLVER, can strike anywhere."""
    real, calls = module._long_side, iter([RuntimeError("cusolver error: CUSOLVER_STATUS_INTERNAL_ERROR")])

    def long_side(*arguments: Any) -> Any:
        for error in calls:
            raise error
        return real(*arguments)

    monkeypatch.setattr(module, "_long_side", long_side)
    found = decompose(mat([3.0, 2.0, 1.0], 7, 5))
    np.testing.assert_allclose(found.singular_values, [3, 2, 1, 0, 0], atol=1e-6)
    assert "cusolver error" in str(found.note)


def test_wide_matrices_keep_ten_digits() -> None:
    """The error of a Gram matrix grows with its width: half of sigma just above 1e-5, 1600 columns."""
    random = np.random.default_rng(0)
    sigma = np.r_[np.ones(800), np.full(800, 2.1e-5)]
    left, right = random.standard_normal((2, 1600)) / 40
    reflect = [np.eye(1600) - 2 * np.outer(v, v) / (v @ v) for v in (left, right)]
    found = decompose(torch.from_numpy(reflect[0] * sigma @ reflect[1]), top_k=0)
    np.testing.assert_allclose(found.singular_values, sigma, atol=4e-11, rtol=0)


def test_every_attempt_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    for home in (np.linalg, torch.linalg):
        monkeypatch.setattr(home, "eigh", failing(99, None))
        monkeypatch.setattr(home, "svd", failing(99, None))
    found = decompose(mat([3.0, 2.0, 1.0], 7, 5))
    assert found.failed
    assert str(found.reason).startswith("not decomposed: eigh (NumPy) gave up")
    assert np.isnan(found.singular_values).all()
