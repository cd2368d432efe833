"""Masks and perturbations: exact counts, the oracle, and the memory that they take."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import ORACLE, ORACLE_INPUTS
from safetensors.torch import load_file, save_file

from spectrascope.landscape.masks import magnitude_masks, random_masks
from spectrascope.landscape.perturbation import perturb_checkpoint, step_away
from spectrascope.landscape.weights import the_only


@pytest.mark.parametrize("name", [name for name in ORACLE if name.startswith("mask/")])
def test_oracle(name: str) -> None:
    """The reference keeps one weight less than it says; each layer keeps what it keeps there, and one has that one."""
    found = ORACLE[name]
    weights = {one: torch.tensor(ORACLE_INPUTS[f"mask/{one}"]) for one in found["masked_params"]}
    kept = {one: int(mask.sum()) for one, mask in magnitude_masks(weights, found["keep_fraction"]).items()}
    assert sum(kept.values()) == round(found["keep_fraction"] * found["N_maskable"])
    more = {one: kept[one] - count for one, count in found["kept_per_layer_magnitude"].items()}
    assert sorted(more.values()) == [0] * (len(more) - 1) + [1]


@given(
    st.lists(st.lists(st.sampled_from([0.0, 1.0, -1.0, 2.0, -3.5, 1e-30, 1e30]), min_size=1, max_size=9), min_size=1),
    st.floats(0, 1),
    st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64]),
)
@settings(max_examples=200, deadline=None)
def test_the_largest_are_kept_and_of_equal_ones_the_first(
    lists: list[list[float]], share: float, dtype: object
) -> None:
    tensors = {str(i): torch.tensor(values).to(dtype) for i, values in enumerate(lists)}
    masks = magnitude_masks(tensors, share)
    flat = np.concatenate([np.abs(tensor.double().numpy()) for tensor in tensors.values()])
    kept = np.concatenate([mask.numpy() for mask in masks.values()])
    expected = np.zeros(len(flat), dtype=bool)
    expected[np.argsort(-flat, kind="stable")[: round(share * len(flat))]] = True
    assert np.array_equal(kept, expected)


def test_more_than_a_quantile_takes() -> None:
    """Case 51."""
    count = 8_400_000
    weight = (torch.arange(2 * count, dtype=torch.float32) + 1).reshape(count, 2) / count
    mask = magnitude_masks({"fc.weight": weight}, 0.5)["fc.weight"]
    assert int(mask.sum()) == count
    assert weight[mask].min() > weight[~mask].max()


def test_a_random_mask_keeps_as_many_in_each_layer() -> None:
    random = torch.Generator().manual_seed(0)
    tensors = {"a": torch.randn(30, 20, generator=random), "b": 5 * torch.randn(10, 7, generator=random)}
    masks = magnitude_masks(tensors, 0.3)
    found = random_masks(masks, seed=1)
    assert [int(found[name].sum()) for name in tensors] == [int(masks[name].sum()) for name in tensors]
    assert all(torch.equal(found[name], random_masks(masks, seed=1)[name]) for name in tensors)
    assert not all(torch.equal(found[name], masks[name]) for name in tensors)


def test_wrong_requests() -> None:
    with pytest.raises(ValueError, match="from 0 to 1"):
        magnitude_masks({"a": torch.ones(3)}, 1.5)
    with pytest.raises(ValueError, match="a holds NaN"):
        magnitude_masks({"a": torch.tensor([1.0, float("nan")])}, 0.5)
    assert not magnitude_masks({"a": torch.ones(3)}, 0)["a"].any()
    assert magnitude_masks({"a": torch.zeros(3)}, 1)["a"].all()


@pytest.mark.parametrize("name", [name for name in ORACLE if name.startswith("perturb/")])
def test_perturbation_oracle(name: str, tmp_path: Path) -> None:
    torch.manual_seed(7)
    sizes = [12, 15, 15, 15, 5]
    layers = [torch.nn.Linear(*pair) for pair in pairwise(sizes)]
    weights = {f"model.layers.{i}.weight": layer.weight.detach() for i, layer in enumerate(layers)}
    torch.save(weights, tmp_path / "m.pt")
    perturb_checkpoint(
        the_only(tmp_path / "m.pt"), tmp_path / "p.safetensors", float(name.rpartition("eta")[2]), seed=3
    )
    found = load_file(tmp_path / "p.safetensors")
    for one, expected in ORACLE[name].items():
        before, after = weights[one].flatten().double(), found[one].flatten().double()
        assert float(before.norm()) == pytest.approx(expected["norm_before"], rel=1e-6)
        assert float(after.norm()) == pytest.approx(expected["norm_after"], rel=1e-6)
        cosine = float(before @ after / before.norm() / after.norm())
        assert cosine == pytest.approx(expected["cos"], abs=1e-6)
        assert after[:5].tolist() == pytest.approx(expected["new_first5"], abs=1e-6)


def test_the_formula_of_a_step() -> None:
    random = np.random.default_rng(0)
    weight, noise = random.standard_normal((2, 50, 40))
    moved = step_away(weight, noise, 0.5, rescaled=False)
    expected = weight + 0.5 * np.linalg.norm(weight) * noise / np.linalg.norm(noise)
    np.testing.assert_allclose(moved, expected, rtol=1e-13)
    assert np.linalg.norm(step_away(weight, noise, 0.5)) == pytest.approx(np.linalg.norm(weight), rel=1e-13)
    np.testing.assert_allclose(step_away(weight * 1e200, noise, 0.5), step_away(weight, noise, 0.5) * 1e200, rtol=1e-12)
    assert not step_away(np.zeros((2, 2)), noise[:2, :2], 1.0).any()


def test_memory_of_magnitude_masks(tmp_path: Path) -> None:
    """Weights are read as they are looked at: no more memory than they take, masks and all."""
    save_file({f"{i}.weight": torch.randn(1000, 1000) for i in range(40)}, tmp_path / "m.safetensors")
    program = """
import sys
from spectrascope.landscape.masks import magnitude_masks
from spectrascope.landscape.weights import opened, stored_weights, the_only
def peak():
    return int(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
with opened(the_only(sys.argv[1])) as checkpoint:
    weights = stored_weights(checkpoint.load, {name: name for name in checkpoint.tensors})
    before = peak()
    masks = magnitude_masks(weights, 0.3)
    print(peak() - before, sum(int(mask.sum()) for mask in masks.values()))
"""
    command = [sys.executable, "-c", program, tmp_path / "m.safetensors"]
    grown, kept = map(int, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
    assert kept == 12_000_000
    assert grown * 1024 < 4 * 40_000_000
