"""The pairs of the oracle's recipes, with their sides, blocks and slices, on float64 vectors: to 1e-9."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from reference import ORACLE, recipe, svd

from spectrascope.architectures.facts import Facts
from spectrascope.architectures.pairs import Pair, Side
from spectrascope.checkpoints.payload import describe_tensor
from spectrascope.matrices import Plan, plan
from spectrascope.metrics.alignment import diagonal, score

RECIPES = [key for key in ORACLE if key.startswith("recipe_float64")]
# The reference reads the half of the columns that reads forward for both directions (SPEC section 3).
WRONG_IN_REFERENCE = "_reverse_model.linear"


def planned(weights: dict[str, torch.Tensor]) -> Plan:
    tensors = {name: describe_tensor(name, tensor) for name, tensor in weights.items()}
    return plan(tensors, {}, lambda name: weights[name], facts=Facts(heads=4))


def vectors(side: Side, todo: Plan, weights: dict[str, torch.Tensor], head: int) -> Any:
    """The vectors of a side, from the weights themselves."""
    (matrix,) = [one for one in todo.matrices if one.name == side.matrix]
    array = matrix.of(matrix.cut(lambda name, expert: weights[name])).numpy()
    if side.blocks is not None:
        index = head if side.index is None else side.index
        array = np.split(array, side.blocks.count, axis=side.blocks.axis)[index]
    u, _, v = svd(array)
    found = u if side.vectors == "left" else v
    return found if side.kept is None else found[side.kept.as_slice()]


def diagonals(pair: Pair, todo: Plan, weights: dict[str, torch.Tensor]) -> Any:
    """(heads, k)."""
    heads = range(pair.heads or 1)
    return np.array(
        [diagonal(*(vectors(side, todo, weights, head) for side in (pair.one, pair.other))) for head in heads]
    )


def key_of(pair: Pair) -> str:
    names = [side.matrix.partition("[")[0] for side in (pair.one, pair.other)]
    return f"{names[0]}_{names[1]}{'_qk' if pair.kind == 'q_k' else ''}_align"


@pytest.mark.parametrize("step", [0, 1])
@pytest.mark.parametrize("name", RECIPES)
def test_alignment_of_the_oracle(name: str, step: int) -> None:
    entry, weights = ORACLE[name], recipe(ORACLE[name], step)
    todo = planned(weights)
    assert todo.family != "unknown"
    by_key = {key_of(pair): pair for pair in todo.pairs if pair.kind != "v_o"}
    keys = [key for key in entry if key.endswith("_align") and WRONG_IN_REFERENCE not in key]
    for key in keys:
        values = diagonals(by_key[key], todo, weights)
        scores = np.array(entry[key]["score_per_step(inter_layer_alignment_score)"][step])
        if key.endswith("qk_align"):
            np.testing.assert_allclose(score(values), scores, atol=1e-9)
            expected = entry[key]["per_slice_diag_last_step_first10"]
        elif scores.ndim == 2:
            assert score(values[0]) == pytest.approx(scores[1, 1], abs=1e-9)
            expected = [entry[key]["centre_diag_last_step_first10"]]
        elif scores.ndim == 1:
            assert score(values[0]) == pytest.approx(scores[2], abs=1e-9)
            expected = entry[key]["per_slice_diag_last_step_first10"][2:3]
        else:
            assert score(values[0]) == pytest.approx(scores, abs=1e-9)
            expected = [entry[key]["diag_last_step_first10"]]
        if step == 1:
            np.testing.assert_allclose(values[:, :10], expected, atol=1e-9)


def test_values_to_output_per_head() -> None:
    expected = ORACLE["derived_thesis/vo_per_head_step0_tfmr"]
    weights = recipe(ORACLE["recipe_float64/tfmr_d128_h4_ff512_vocab12"], 0)
    todo = planned(weights)
    (pair,) = [pair for pair in todo.pairs if pair.kind == "v_o"]
    values = diagonals(pair, todo, weights)
    np.testing.assert_allclose(values[:, :10], expected["per_head_diag10"], atol=1e-9)
    assert score(values).mean() == pytest.approx(expected["score_mean_over_heads"], abs=1e-9)
