"""Alignment and agreement of singular vectors: by construction, by invariants, and against the oracle."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from conftest import ROOT
from hypothesis import given
from hypothesis import strategies as st
from reference import ORACLE, recipe, svd

from spectrascope.metrics import agreement, alignment

INPUTS = np.load(ROOT / "tests" / "oracle" / "oracle_inputs.npz")


def orthogonal(n: int, k: int, seed: int) -> Any:
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((n, k)))[0]


def test_what_reads_exactly_what_was_written() -> None:
    shared = orthogonal(6, 3, 0)
    np.testing.assert_allclose(alignment.alignment(shared, shared), np.eye(3), atol=1e-12)
    np.testing.assert_allclose(alignment.diagonal(shared, -shared), [1, 1, 1], atol=1e-12)
    swapped = shared[:, [1, 0, 2]]
    np.testing.assert_allclose(alignment.diagonal(shared, swapped), [0, 0, 1], atol=1e-12)
    assert alignment.diagonal(shared, shared[:, :2]).shape == (2,)


def test_scores() -> None:
    assert alignment.score(np.arange(20.0)) == 4.5
    assert alignment.score([1.0, 0.5]) == 0.75
    assert alignment.score([1.0, np.nan, 0.0]) == 0.5
    assert math.isnan(alignment.score([np.nan]))
    assert math.isnan(alignment.score([]))


def test_random_directions_give_the_baseline() -> None:
    for dimension in (16, 128):
        u, v = orthogonal(dimension, dimension, 1), orthogonal(dimension, dimension, 2)
        mean = alignment.alignment(u, v).mean()
        assert mean == pytest.approx(alignment.random_baseline(dimension), rel=0.05)
        half = alignment.alignment(u[: dimension // 2], orthogonal(dimension, dimension, 3)[: dimension // 2]).mean()
        assert half == pytest.approx(alignment.random_baseline(dimension, share=0.5), rel=0.05)
    with pytest.raises(ValueError, match="a dimension is 1 or more, not 0"):
        alignment.random_baseline(0)


def test_vectors_of_two_spaces() -> None:
    for function in (alignment.alignment, alignment.diagonal):
        with pytest.raises(ValueError, match="vectors of 3 and of 4 numbers"):
            function(np.eye(3), np.eye(4))
        with pytest.raises(ValueError, match="1 dimensions"):
            function(np.ones(3), np.eye(3))


@pytest.mark.parametrize("recipe_name", [key for key in ORACLE if key.startswith("recipe_float64")])
def test_agreement_of_the_oracle_over_steps(recipe_name: str) -> None:
    entry = ORACLE[recipe_name]
    first, last = recipe(entry, 0), recipe(entry, 1)
    checked = 0
    for name in first:
        if f"{name}_sva" not in entry:
            continue
        flat = (first[name].reshape(first[name].shape[0], -1), last[name].reshape(last[name].shape[0], -1))
        if "tconv" in name:
            flat = tuple(w[name].swapaxes(0, 1).reshape(w[name].shape[1], -1) for w in (first, last))
        (u, _, v), (other_u, _, other_v) = map(svd, flat)
        diagonal = agreement.agreement_diagonal(u, v, other_u, other_v)
        assert alignment.score(diagonal) == pytest.approx(entry[f"{name}_sva"]["score_per_step"][0], abs=1e-9)
        np.testing.assert_allclose(diagonal[:10], entry[f"{name}_sva"]["diag_first_step_first10"], atol=1e-9)
        checked += 1
    assert checked >= 3


@pytest.mark.parametrize("name", [key for key in ORACLE if key.startswith("sva/")])
def test_agreement_of_the_oracle(name: str) -> None:
    expected = ORACLE[name]
    (u, _, v), (other_u, _, other_v) = (svd(INPUTS[f"{name}/{side}"]) for side in "ab")
    whole = agreement.agreement(u, v, other_u, other_v)
    np.testing.assert_allclose(np.diag(whole), expected["diag"], atol=1e-9)
    np.testing.assert_allclose(whole[0], expected["row0"], atol=1e-9)
    diagonal = agreement.agreement_diagonal(u, v, other_u, other_v)
    assert alignment.score(diagonal) == pytest.approx(expected["score_mean_first10_diag"], abs=1e-9)


@given(st.integers(0, 10**6), st.integers(2, 12), st.integers(2, 12))
def test_invariants(seed: int, m: int, n: int) -> None:
    random = np.random.default_rng(seed)
    w, reader = random.standard_normal((m, n)), random.standard_normal((5, m))
    (u, _, v), (_, _, reading) = svd(w), svd(reader)
    np.testing.assert_allclose(agreement.agreement_diagonal(u, v, u, v), 1, atol=1e-9)
    signs = random.choice([-1, 1], u.shape[1])
    np.testing.assert_allclose(agreement.agreement_diagonal(u, v, u * signs, v * signs), 1, atol=1e-9)
    # Hidden units permuted in both layers: nothing that either computes changes.
    order = random.permutation(m)
    (moved, _, _), (_, _, moved_reading) = svd(w[order]), svd(reader[:, order])
    before, after = alignment.diagonal(u, reading), alignment.diagonal(moved, moved_reading)
    np.testing.assert_allclose(before, after, atol=1e-7)
    assert np.all(alignment.alignment(u, reading) <= 1 + 1e-9)


def test_subspaces_do_not_fall_where_vectors_swap_places() -> None:
    u = orthogonal(8, 4, 0)
    swapped = u[:, [1, 0, 3, 2]]
    assert alignment.score(alignment.diagonal(u, swapped)) == pytest.approx(0, abs=1e-12)
    assert agreement.subspace_overlap(u, swapped, 2) == pytest.approx(1)
    assert agreement.subspace_overlap(u, swapped, 3) == pytest.approx(2 / 3)
    assert math.isnan(agreement.subspace_overlap(u, swapped, 5))
    with pytest.raises(ValueError, match="1 or more, not 0"):
        agreement.subspace_overlap(u, u, 0)


def test_values_without_vectors_of_their_own() -> None:
    spectra = [[3, 2, 1, 0.5], [3, 2, 2, 1], [3, 2, 1, 1], [1, 1 - 0.9e-6, 0.5, 0.5], [0, 0, 0, 0]]
    assert agreement.first_close(spectra).tolist() == [4, 1, 2, 0, 4]
    assert agreement.first_close([2.0]) == 1


def test_baselines_of_agreement() -> None:
    expected = math.sqrt(2 / (math.pi * 30)) * math.sqrt(2 / (math.pi * 20))
    assert agreement.agreement_baseline((30, 20)) == pytest.approx(expected)
    random = np.random.default_rng(0)
    scores = []
    for _ in range(200):
        (u, _, v), (other_u, _, other_v) = svd(random.standard_normal((30, 20))), svd(random.standard_normal((30, 20)))
        scores.append(alignment.score(agreement.agreement_diagonal(u, v, other_u, other_v)))
    assert np.mean(scores) == pytest.approx(expected, rel=0.1)
