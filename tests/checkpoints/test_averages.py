"""Live weights and averages of them (EMA) are told apart, whoever wrote the file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import FORMATS, equal, mat
from safetensors.torch import save_file

from spectrascope.checkpoints import Checkpoint, find_checkpoints
from spectrascope.errors import RequestError
from spectrascope.matrices import plan

W, E = mat([2.0, 1.0], 6, 4), mat([5.0, 4.0], 6, 4)


def opened(source: Path, weights: str = "auto") -> Checkpoint:
    (reference,) = find_checkpoints([source]).references
    return Checkpoint(reference.open()[0], weights)


@pytest.mark.parametrize("weights", ["live", "averaged"])
@pytest.mark.parametrize("name", ["lightning_ema", "ema_pytorch", "ema_pytorch_wrapped", "timm_ema_v3"])
def test_files_of_libraries(name: str, weights: str) -> None:
    checkpoint = opened(FORMATS / name, weights)
    prefix = "live/" if weights == "live" else "average/"
    expected = {
        key.removeprefix(prefix): value for key, value in np.load(FORMATS / f"{name}.npz").items() if prefix in key
    }
    planned = plan(checkpoint.tensors, checkpoint.tied, checkpoint.load)
    assert {matrix.name for matrix in planned.matrices} == {key for key, value in expected.items() if value.ndim > 1}
    for key, value in expected.items():
        np.testing.assert_allclose(checkpoint.load(key), value, rtol=1e-6, atol=1e-8)
    assert planned.coverage > 0.8
    copies = [one.name for one in planned.skipped if one.reason.endswith(" copy")]
    assert len(copies) >= 9
    assert checkpoint.weights == weights


def test_live_weights_come_first() -> None:
    assert opened(FORMATS / "lightning_ema").weights == "live"


def test_averages_of_torch(tmp_path: Path) -> None:
    average = torch.optim.swa_utils.AveragedModel(torch.nn.Linear(4, 6))
    torch.save(average.state_dict(), tmp_path / "m.pt")
    assert opened(tmp_path / "m.pt").weights == "averaged"
    assert list(opened(tmp_path / "m.pt").tensors) == ["n_averaged", "weight", "bias"]


@pytest.mark.parametrize(
    ("payload", "live", "averaged"),
    [
        ({"fc.weight": W, "ema.fc.weight": E}, "fc.weight", "fc.weight"),
        ({"model.fc.weight": W, "model_ema.fcweight": E}, "model.fc.weight", "model.fc.weight"),
        ({"net.fc.weight": W, "ema_model.module.fc.weight": E}, "net.fc.weight", "net.fc.weight"),
        ({"model": {"fc.weight": W}, "model_ema": {"fc.weight": E}}, "fc.weight", "fc.weight"),
        ({"model": {"fc.weight": W}, "ema_state_dict": {"module.fc.weight": E}}, "fc.weight", "fc.weight"),
        ({"module.model.fc.weight": W, "module.model_ema.fc.weight": E}, "model.fc.weight", "model.fc.weight"),
        ({"model.fc.weight": W, "model.model_ema.fc.weight": E}, "model.fc.weight", "model.fc.weight"),
        (
            {"model.fc.weight": W, "avg.module.fc.weight": E, "avg.n_averaged": torch.tensor(2)},
            "model.fc.weight",
            "model.fc.weight",
        ),
        (
            {"model": {"fc.weight": W}, "ema": {"n_averaged": torch.tensor(3), "module.fc.weight": E}},
            "fc.weight",
            "fc.weight",
        ),
        ({"net": {"fc.weight": W}, "swa_state_dict": {"fc.weight": E}}, "fc.weight", "fc.weight"),
        ({"encoder": {"fc.weight": W}, "swa_encoder": {"fc.weight": E}}, "fc.weight", "fc.weight"),
        ({"state_dict": {"fc.weight": E}, "current_model_state": {"fc.weight": W}}, "fc.weight", "fc.weight"),
    ],
)
def test_names_of_averages(tmp_path: Path, payload: object, live: str, averaged: str) -> None:
    torch.save(payload, tmp_path / "m.pt")
    assert equal(opened(tmp_path / "m.pt").load(live), W)
    assert equal(opened(tmp_path / "m.pt", "averaged").load(averaged), E)
    for weights in ("live", "averaged"):
        checkpoint = opened(tmp_path / "m.pt", weights)
        planned = plan(checkpoint.tensors, checkpoint.tied, checkpoint.load)
        assert len(planned.matrices) == 1
        assert planned.coverage == 1.0


def test_names_that_differ_in_their_dots_alone(tmp_path: Path) -> None:
    live = {"net.1.1.weight": W, "net.11.weight": 2 * W}
    torch.save({"model": live, "ema": {name: 5 * one for name, one in live.items()}}, tmp_path / "m.pt")
    for name, one in live.items():
        assert equal(opened(tmp_path / "m.pt", "averaged").load(name), 5 * one)
    torch.save({"model": live, "ema": {"net.11.weight": E}}, tmp_path / "m.pt")
    assert equal(opened(tmp_path / "m.pt", "averaged").load("net.11.weight"), E)
    # Without dots it may be either: it keeps its name.
    torch.save({**live, "model_ema.net11weight": E}, tmp_path / "m.pt")
    assert equal(opened(tmp_path / "m.pt", "averaged").load("net11weight"), E)


def test_averages_of_several_models(tmp_path: Path) -> None:
    live = {"G": {"fc.weight": W}, "D": {"fc.weight": 2 * W}}
    torch.save(live | {"G_ema": {"fc.weight": E}, "D_ema": {"fc.weight": 2 * E}}, tmp_path / "m.pt")
    checkpoint = opened(tmp_path / "m.pt", "averaged")
    assert equal(checkpoint.load("G.fc.weight"), E)
    assert equal(checkpoint.load("D.fc.weight"), 2 * E)


def test_an_average_alone(tmp_path: Path) -> None:
    torch.save({"ema": {"fc.weight": E}, "step": 3}, tmp_path / "m.pt")
    assert opened(tmp_path / "m.pt").weights == "averaged"
    assert equal(opened(tmp_path / "m.pt").load("fc.weight"), E)
    with pytest.raises(RequestError, match=r"m\.pt holds averaged weights alone, where live ones are read"):
        opened(tmp_path / "m.pt", "live")


def test_an_average_under_wrappers(tmp_path: Path) -> None:
    torch.save({"module.n_averaged": torch.tensor(2), "module.module.fc.weight": E}, tmp_path / "m.pt")
    assert opened(tmp_path / "m.pt").weights == "averaged"
    assert equal(opened(tmp_path / "m.pt").load("fc.weight"), E)


def test_averages_in_archives_with_slashes(tmp_path: Path) -> None:
    arrays = {"target/fc/kernel": W, "ema/fc/kernel": E, "mu/fc/kernel": W, "opt_state/0/nu/fc/kernel": W}
    np.savez(tmp_path / "m.npz", **{name: one.numpy() for name, one in arrays.items()})
    assert equal(opened(tmp_path / "m.npz", "averaged").load("target/fc/kernel"), E)
    tensors = opened(tmp_path / "m.npz").tensors
    assert [name for name, info in tensors.items() if info.problem is None] == ["target/fc/kernel"]


@pytest.mark.parametrize("name", ["ema_attn.q.weight", "model.ema_block.fc.weight", "swa.weight", "q_ema.fc.weight"])
def test_layers_that_are_called_like_an_average(tmp_path: Path, name: str) -> None:
    torch.save({name: W, "head.weight": E}, tmp_path / "m.pt")
    checkpoint = opened(tmp_path / "m.pt")
    assert all(info.kind == "parameter" for info in checkpoint.tensors.values())


def test_names_that_only_look_like_an_average(tmp_path: Path) -> None:
    names = ["swa_blocks.0.weight", "gemma.fc.weight", "schema.weight", "layers.0.ema.weight", "emag.weight"]
    save_file({name: W.clone() for name in names}, tmp_path / "m.safetensors")
    checkpoint = opened(tmp_path / "m.safetensors")
    assert checkpoint.weights == "live"
    assert all(info.problem is None for info in checkpoint.tensors.values())
