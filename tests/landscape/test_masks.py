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
from safetensors.torch import save_file

from spectrascope.errors import RequestError
from spectrascope.landscape.masks import magnitude_masks, random_masks
from spectrascope.landscape.perturbation import perturb


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
    with pytest.raises(RequestError, match="from 0 to 1"):
        magnitude_masks({"a": torch.ones(3)}, 1.5)
    with pytest.raises(RequestError, match="NaN"):
        magnitude_masks({"a": torch.tensor([1.0, float("nan")])}, 0.5)
    assert not magnitude_masks({"a": torch.ones(3)}, 0)["a"].any()
    assert magnitude_masks({"a": torch.zeros(3)}, 1)["a"].all()


@pytest.mark.parametrize("name", [name for name in ORACLE if name.startswith("perturb/")])
def test_perturbation_oracle(name: str) -> None:
    torch.manual_seed(7)
    sizes = [12, 15, 15, 15, 5]
    layers = [torch.nn.Linear(*pair) for pair in pairwise(sizes)]
    weights = {f"model.layers.{i}.weight": layer.weight.detach() for i, layer in enumerate(layers)}
    found = weights | perturb(weights, list(weights)[:-1], float(name.rpartition("eta")[2]), seed=3)
    for one, expected in ORACLE[name].items():
        before, after = weights[one].flatten().double(), found[one].flatten().double()
        assert float(before.norm()) == pytest.approx(expected["norm_before"], rel=1e-6)
        assert float(after.norm()) == pytest.approx(expected["norm_after"], rel=1e-6)
        cosine = float(before @ after / before.norm() / after.norm())
        assert cosine == pytest.approx(expected["cos"], abs=1e-6)
        assert after[:5].tolist() == pytest.approx(expected["new_first5"], abs=1e-6)


def test_perturbation_without_rescaling() -> None:
    weight = torch.randn(50, 40, generator=torch.Generator().manual_seed(0))
    found = perturb({"w": weight, "b": torch.ones(3)}, ["w"], 0.5, seed=0, rescaled=False)
    assert float((found["w"] - weight).norm() / weight.norm()) == pytest.approx(0.5, rel=1e-5)
    assert list(found) == ["w"]
    assert torch.equal(perturb({"w": torch.zeros(2, 2)}, ["w"], 1.0, seed=0)["w"], torch.zeros(2, 2))


def test_memory_of_magnitude_masks(tmp_path: Path) -> None:
    """Weights are read as they are looked at: no more memory than they take, masks and all."""
    save_file({f"{i}.weight": torch.randn(1000, 1000) for i in range(40)}, tmp_path / "m.safetensors")
    program = """
import sys
from spectrascope.landscape.masks import magnitude_masks
from spectrascope.landscape.weights import StoredWeights, opened, the_only
def peak():
    return int(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
with opened(the_only(sys.argv[1])) as checkpoint:
    weights = StoredWeights(checkpoint.load, {name: name for name in checkpoint.tensors})
    before = peak()
    masks = magnitude_masks(weights, 0.3)
    print(peak() - before, sum(int(mask.sum()) for mask in masks.values()))
"""
    command = [sys.executable, "-c", program, tmp_path / "m.safetensors"]
    grown, kept = map(int, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
    assert kept == 12_000_000
    assert grown * 1024 < 4 * 40_000_000
