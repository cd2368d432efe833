"""Wrapper prefixes, and the state dict inside a training checkpoint."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from spectrascope.checkpoints.names import without_wrappers
from spectrascope.checkpoints.payload import find_state_dict, step_in
from spectrascope.errors import CheckpointError

W = torch.ones(2, 3)


@pytest.mark.parametrize(
    ("stored", "bare"),
    [
        (["fc.weight"], ["fc.weight"]),
        (["module.fc.weight", "module.module_list.0.weight"], ["fc.weight", "module_list.0.weight"]),
        (["_orig_mod.module.fc.weight"], ["fc.weight"]),
        (["module._orig_mod.fc.weight"], ["fc.weight"]),
        (["module.module.fc.weight"], ["fc.weight"]),
        (["_fsdp_wrapped_module.layer.0._fsdp_wrapped_module.weight"], ["layer.0.weight"]),
        (
            ["layer.0._checkpoint_wrapped_module.fc.weight", "layer.1.fc.weight"],
            ["layer.0.fc.weight", "layer.1.fc.weight"],
        ),
        (["encoder.module.fc.weight", "head.weight"], ["encoder.fc.weight", "head.weight"]),
        (["n_averaged", "module.fc.weight"], ["n_averaged", "fc.weight"]),
        # Not wrappers: a layer that is called so and has siblings, and a tensor of that name.
        (["module.fc.weight", "head.weight"], ["module.fc.weight", "head.weight"]),
        (["encoder.module.weight", "encoder.norm.weight"], ["encoder.module.weight", "encoder.norm.weight"]),
        (["module_list.0.weight"], ["module_list.0.weight"]),
        (["module"], ["module"]),
        (["a//b", ".", "x/", ""], ["a//b", ".", "x/", ""]),
    ],
)
def test_wrappers(stored: list[str], bare: list[str]) -> None:
    assert list(without_wrappers(stored).values()) == bare


@pytest.mark.parametrize(
    "payload",
    [
        {"fc.weight": W},
        {"state_dict": {"fc.weight": W}, "epoch": 3},
        {"model": {"fc.weight": W}, "loss": torch.tensor(0.1), "optimizer": {"state": {0: {"exp_avg": W}}}},
        {"model_state_dict": {"fc.weight": W}, "optimizer_state_dict": {"exp_avg": W}, "ema": {"fc.weight": 2 * W}},
        {"module": {"fc.weight": W}, "lr_scheduler": {"w": W}},
        {"checkpoint": {"model": {"fc.weight": W}}, "rng_state": torch.zeros(3)},
        {"whatever": {"fc.weight": W}, "optim_g": {"a": W}, "random_state": {"b": W}},
        {"fc.weight": W, "optimizer": {"w": W}, "fc.exp_avg": W, "momentum_buffer": W},
    ],
)
def test_the_model_is_found(payload: Any) -> None:
    found = find_state_dict(payload, "x.pt")
    assert list(found.tensors) == ["fc.weight"]
    assert found.tensors["fc.weight"] is W
    assert not any("fc.weight" in key for key in found.left_out)


def test_several_models_keep_their_keys() -> None:
    found = find_state_dict({"encoder": {"fc.weight": W}, "decoder": {"fc.weight": W}, "epoch": 1}, "x.pt")
    assert list(found.tensors) == ["encoder.fc.weight", "decoder.fc.weight"]


def test_what_is_left_out_is_listed() -> None:
    payload = {
        "model": {"fc.weight": W},
        "critic": {"fc.weight": W},
        "optimizer": {"state": {0: {"exp_avg": W}}},
        "losses": [torch.ones(3)],
        "epoch": 3,
        "lr": torch.tensor(0.1),
    }
    found = find_state_dict(payload, "x.pt")
    assert list(found.tensors) == ["fc.weight"]
    assert found.left_out == dict.fromkeys(["critic", "optimizer", "losses"], "beside the model, which is under model")
    found = find_state_dict({0: W, "w": W, "blocks": [W], "w.exp_avg": W}, "x.pt")
    assert list(found.left_out) == ["0", "blocks", "w.exp_avg"]


def test_names_that_only_look_like_an_optimizer() -> None:
    names = ["semantic.weight", "gemma.schema.weight", "optimal_transport.weight", "scheduled.weight", "random.weight"]
    assert list(find_state_dict(dict.fromkeys(names, W), "x.pt").tensors) == names


def test_layers_of_a_nested_model_may_have_any_name() -> None:
    model = {"lr_head": {"weight": W}, "random_proj": {"weight": W}, "params": {"weight": W}, "fc": {"weight": W}}
    names = [f"{name}.weight" for name in model]
    assert list(find_state_dict({"model": model, "optimizer": {"a": W}}, "x.pt").tensors) == names
    assert list(find_state_dict({"model": {"params": {"a": W}, "head.weight": W}}, "x.pt").tensors) == [
        "head.weight",
        "params.a",
    ]


def test_two_tensors_of_one_name_are_an_error() -> None:
    with pytest.raises(CheckpointError, match=r"two tensors of one name, encoder\.weight"):
        find_state_dict({"encoder.weight": W, "encoder": {"weight": 2 * W}}, "x.pt")
    with pytest.raises(CheckpointError, match=r"two tensors of one name, a\.b\.c"):
        find_state_dict({"a": {"b.c": W}, "a.b": {"c": 2 * W}}, "x.pt")


def test_models_whose_names_look_like_training_state() -> None:
    for payload in (
        {"opt.decoder.fc.weight": W, "opt.lm_head.weight": W},
        {"model": {"opt.decoder.fc.weight": W, "opt.lm_head.weight": W}, "optimizer": {"state": {0: {"exp_avg": W}}}},
    ):
        assert list(find_state_dict(payload, "x.pt").tensors) == ["opt.decoder.fc.weight", "opt.lm_head.weight"]
    nested = {"lr_encoder": {"a": W}, "hr_encoder": {"a": W}, "random_proj": {"a": W}}
    assert list(find_state_dict(nested, "x.pt").tensors) == ["lr_encoder.a", "hr_encoder.a", "random_proj.a"]


def test_an_average_without_names_is_listed() -> None:
    found = find_state_dict({"model": {"fc.weight": W}, "ema": {"shadow_params": [W]}}, "x.pt")
    assert list(found.left_out) == ["ema"]


@pytest.mark.parametrize("payload", [{"epoch": 3, "optimizer": {"exp_avg": W}}, {}, [W], W, 3])
def test_no_model_is_an_error(payload: Any) -> None:
    with pytest.raises(CheckpointError, match=r"x\.pt: holds"):
        find_state_dict(payload, "x.pt")


@pytest.mark.parametrize(
    ("payload", "step"),
    [
        ({"global_step": 7, "step": 3}, 7),
        ({"step": torch.tensor(5)}, 5),
        ({"step": True}, None),
        ({"step": -1}, None),
        ({"step": torch.ones(2)}, None),
        ({"step": "7"}, None),
        ([], None),
    ],
)
def test_the_step_in_the_content(payload: Any, step: int | None) -> None:
    assert step_in(payload) == step
