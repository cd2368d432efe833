"""Barriers and hulls: by construction, against the oracle, and by the moments of what is drawn."""

from __future__ import annotations

import numpy as np
import pytest
from reference import ORACLE

from spectrascope.metrics import barrier as module
from spectrascope.metrics import hull

CURVES = [name for name in ORACLE if name.startswith("barrier/")]


@pytest.mark.parametrize("name", CURVES)
def test_oracle(name: str) -> None:
    found = ORACLE[name]
    alphas, losses = np.linspace(0, 1, len(found["y"])), found["y"]
    deviation, _ = module.max_deviation(alphas, losses)
    assert deviation == pytest.approx(found["code_compute_barrier_interior_max"], abs=1e-12)
    assert module.barrier(alphas, losses) == pytest.approx(found["thesis_B1_max_incl_endpoints__derived"], abs=1e-12)


def test_a_model_with_itself_has_none() -> None:
    assert module.barrier(np.linspace(0, 1, 11), [0.1] * 11) == 0.0
    assert module.barrier([0, 0.3, 1], [0.7, 0.1, 0.2]) == 0.0
    value, alpha = module.max_deviation([0, 0.3, 1], [0.7, 0.1, 0.2])
    assert (value, alpha) == (pytest.approx(0.1 - (0.7 - 0.3 * 0.5)), 0.3)


@pytest.mark.parametrize("losses", [[1, np.nan, 1], [np.inf, 1, 1], [1, 1, np.nan]])
def test_a_loss_that_is_not_finite(losses: list[float]) -> None:
    assert np.isnan(module.barrier([0, 0.5, 1], losses))
    assert all(np.isnan(module.max_deviation([0, 0.5, 1], losses)))


def test_wrong_input() -> None:
    with pytest.raises(ValueError, match="ascend"):
        module.barrier([0, 0.5], [1, 1])
    with pytest.raises(ValueError, match="one length"):
        module.barrier([0, 1], [1, 1, 1])


def test_samples_are_uniform_on_the_simplex() -> None:
    """The first two moments of Dirichlet(1, ..., 1)."""
    corners, count = 4, 200_000
    samples = hull.simplex_samples(count, corners, seed=0)
    assert samples.shape == (count, corners)
    assert samples.min() >= 0
    assert np.allclose(samples.sum(axis=1), 1)
    assert np.allclose(samples.mean(axis=0), 1 / corners, atol=2e-3)
    covariance = np.cov(samples.T)
    variance = (corners - 1) / (corners**2 * (corners + 1))
    between = -1 / (corners**2 * (corners + 1))
    expected = np.full((corners, corners), between) + np.eye(corners) * (variance - between)
    assert np.allclose(covariance, expected, atol=1e-3)
    assert np.array_equal(samples, hull.simplex_samples(count, corners, seed=0))


def test_gram_matrix_tells_distances_and_spectra() -> None:
    weights = np.random.default_rng(0).standard_normal((5, 300))
    gram = weights @ weights.T
    expected = np.linalg.norm(weights[:, None] - weights[None, :], axis=-1)
    assert np.allclose(hull.distances(gram), expected, atol=1e-9)
    assert np.allclose(hull.singular_values(gram), np.linalg.svd(weights, compute_uv=False), rtol=1e-10)
    centred = np.linalg.svd(weights - weights.mean(axis=0), compute_uv=False)
    found = hull.singular_values(hull.centred(gram))
    assert np.allclose(found[:-1], centred[:-1], rtol=1e-10)
    assert found[-1] < 1e-6 * found[0]  # rank P - 1


def test_shares_and_their_errors() -> None:
    assert hull.share_below([0, 0, 3, np.nan], [1, 1, 1, 1]) == (0.5, 0.25)
    assert all(np.isnan(hull.share_below([], [])))
