"""Ranks by construction, by invariants, and against the reference code's numbers."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import spectrascope
from spectrascope.metrics import rank

ORACLE = Path(__file__).parent.parent / "oracle"
NUMBERS = json.loads((ORACLE / "oracle.json").read_text())
INPUTS = np.load(ORACLE / "oracle_inputs.npz")
CASES = [key for key in NUMBERS if key.startswith("effective_rank/") and "float64" in NUMBERS[key]]
# Where a singular value is 0 the reference's 1e-10 shows: SPEC section 2 calls that a defect.
EXACT = {"rank1_8x5_seed3": 1.0, "diag_1_0_0": 1.0}

spectra = hnp.arrays(np.float64, st.integers(1, 30), elements=st.floats(0, 1e6)).filter(lambda s: s.max() > 1e-3)


@pytest.mark.parametrize("key", CASES)
def test_the_reference_code_agrees(key: str) -> None:
    name = key.removeprefix("effective_rank/")
    sigma = np.linalg.svd(INPUTS[f"effrank/{name}"], compute_uv=False)
    theirs = NUMBERS[key]["float64"]
    np.testing.assert_allclose(sigma, theirs["singular_values"], atol=1e-9)
    if name == "zeros_3x4":
        assert math.isnan(rank.effective_rank(sigma))
        return
    effective = EXACT.get(name, theirs["code_entropy_normalize_False__exp_of_entropy"])
    assert rank.effective_rank(sigma) == pytest.approx(effective, abs=1e-9)
    assert rank.norm_effective_rank(sigma) == pytest.approx(effective / len(sigma), abs=1e-9)
    assert rank.spectral_entropy(sigma) == pytest.approx(math.log(effective), abs=1e-9)


def test_the_oracle_is_not_empty() -> None:
    assert len(CASES) == 9


def test_values_by_hand() -> None:
    sigma = [4.0, 2.0, 1.0]
    entropy = -(4 / 7 * math.log(4 / 7) + 2 / 7 * math.log(2 / 7) + 1 / 7 * math.log(1 / 7))
    assert rank.spectral_entropy(sigma) == pytest.approx(entropy, abs=1e-14)
    assert rank.effective_rank(sigma) == pytest.approx(2.6005, abs=5e-5)
    assert rank.stable_rank(sigma) == pytest.approx(1.3125)
    assert rank.frobenius_norm(sigma) == pytest.approx(math.sqrt(21))
    assert (rank.spectral_norm(sigma), rank.nuclear_norm(sigma)) == (4.0, 7.0)
    assert rank.rank_99(sigma) == 3
    assert rank.rank_99([10.0, 1.0, 0.01]) == 1  # 100 of 101 is 99.0099%
    assert rank.rank_99([10.0, 1.1, 0.01]) == 2


@pytest.mark.parametrize("count", [1, 2, 7, 100])
def test_equal_singular_values_have_full_rank(count: int) -> None:
    sigma = np.full(count, 3.0)
    assert rank.effective_rank(sigma) == pytest.approx(count)
    assert rank.norm_effective_rank(sigma) == pytest.approx(1)
    assert rank.stable_rank(sigma) == pytest.approx(count)


def test_a_zero_matrix_has_norms_and_no_rank() -> None:
    sigma = np.zeros(4)
    for name in ("spectral_entropy", "effective_rank", "norm_effective_rank", "stable_rank", "rank_99"):
        assert math.isnan(getattr(rank, name)(sigma)), name
    for name in ("spectral_norm", "frobenius_norm", "nuclear_norm"):
        assert getattr(rank, name)(sigma) == 0, name
    assert rank.numerical_rank(sigma, (4, 6), "float32") == 0


def test_padding_and_absent_spectra_are_left_out() -> None:
    table = np.array([[2.0, 2.0, np.nan], [np.nan] * 3, [1.0, 1.0, 1.0]])
    np.testing.assert_allclose(rank.effective_rank(table), [2, np.nan, 3])
    np.testing.assert_allclose(rank.norm_effective_rank(table), [1, np.nan, 1])
    np.testing.assert_allclose(rank.nuclear_norm(table), [4, np.nan, 3])
    np.testing.assert_allclose(rank.numerical_rank(table, (3, 3), "float64"), [2, np.nan, 3])


def test_rounding_noise_is_not_rank() -> None:
    """SPEC section 2: 16 x 8 with values 2, 1, 0.25 in bfloat16 has a floor of 0.0031 and noise of 0.0020."""
    sigma = [2.0, 1.0, 0.25, 0.00196, 0.0017, 0.0015, 0.001, 0.0008]
    assert rank.numerical_rank(sigma, (16, 8), "bfloat16") == 3
    assert rank.numerical_rank(sigma, (16, 8), "float32") == 8
    assert rank.numerical_rank([2.0, 1.0, 0.25, 0.00305, 0.0], (16, 8), "bfloat16") == 3
    assert rank.numerical_rank([2.0, 1.0, 0.25, 0.00308, 0.0], (16, 8), "bfloat16") == 4


def test_huge_and_tiny_float64_weights_keep_their_ranks() -> None:
    for scale in (1e-300, 1e300):
        sigma = np.array([4.0, 2.0, 1.0]) * scale
        assert rank.effective_rank(sigma) == pytest.approx(2.6005, abs=5e-5)
        assert rank.stable_rank(sigma) == pytest.approx(1.3125)
        assert rank.frobenius_norm(sigma) == pytest.approx(math.sqrt(21) * scale)


def test_the_entropy_of_rank_one_is_a_positive_zero() -> None:
    assert math.copysign(1, rank.spectral_entropy([3.0, 0.0])) == 1


def test_what_makes_no_sense_is_an_error() -> None:
    with pytest.raises(ValueError, match="dtype 'int4' is none of float8_e5m2"):
        rank.numerical_rank([1.0], (1, 1), "int4")
    with pytest.raises(ValueError, match="at least one singular value"):
        rank.effective_rank([])


@given(spectra, st.floats(1e-3, 1e3))
def test_invariants(sigma: np.ndarray, scale: float) -> None:
    before = sigma.copy()
    count = len(sigma)
    effective = rank.effective_rank(sigma)
    assert 1 - 1e-9 <= effective <= count * (1 + 1e-9)
    assert 1 - 1e-9 <= rank.stable_rank(sigma) <= count * (1 + 1e-9)
    assert 1 <= rank.rank_99(sigma) <= count
    np.testing.assert_allclose(rank.effective_rank(sigma * scale), effective, rtol=1e-9)
    np.testing.assert_allclose(rank.effective_rank(sigma[::-1]), effective, rtol=1e-9)
    np.testing.assert_allclose(rank.effective_rank(np.append(sigma, 0.0)), effective, rtol=1e-9)
    np.testing.assert_array_equal(sigma, before)


def test_the_functions_are_the_public_ones() -> None:
    assert spectrascope.effective_rank is rank.effective_rank
