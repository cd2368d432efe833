"""Small failing inputs from public bug reports: containers, re-parametrised and quantised weights, weight layouts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from conftest import STORE, assert_plain, mat, row_of
from safetensors.torch import save_file

pytestmark = pytest.mark.filterwarnings("ignore")


def top(values: list[float], count: int) -> Any:
    """These singular values, and zeros up to `count`."""
    return pytest.approx(values + [0.0] * (count - len(values)), abs=1e-5)


# 9. A training framework's file is no state dict.


def lightning(path: Path, live: float = 1.0, ema: float = 0.5, step: int = 1200) -> None:
    w = mat([2.0, 1.0], 6, 4)
    moments = {0: {"exp_avg": torch.randn(6, 4), "exp_avg_sq": torch.rand(6, 4)}}
    weights = {"model.fc.weight": live * w, "model.fc.bias": torch.zeros(6), "model_ema.fcweight": ema * w}
    torch.save(
        {
            "epoch": 3,
            "global_step": step,
            "pytorch-lightning_version": "2.4.0",
            "loops": {},
            "callbacks": {},
            "state_dict": weights if live else {"model_ema.fcweight": ema * w},
            "optimizer_states": [{"state": moments, "param_groups": []}],
            "lr_schedulers": [],
        },
        path,
    )


@pytest.mark.parametrize("name", ["epoch=3-step=1200.ckpt", "last.ckpt"])
def test_case_09_only_the_state_dict_is_read(case: Path, analyze: Any, spectra: Any, cli: Any, name: str) -> None:
    lightning(case / name)
    result = analyze(case / name)
    assert result.code == 0
    assert [(row["step"], row["matrix"]) for row in result.json["rows"]] == [(1200, "model.fc.weight")]
    assert spectra("model.fc.weight")[1200] == top([2.0, 1.0], 4)
    skipped = {one["name"]: one["reason"] for one in cli("show", case / name, "--format", "json").json["skipped"]}
    assert skipped["model_ema.fcweight"] == "an averaged (EMA) copy"
    assert not any("exp_avg" in one for one in skipped)


def test_case_09_the_average_can_be_asked_for_and_is_labelled(case: Path, analyze: Any, cli: Any) -> None:
    lightning(case / "last.ckpt")
    result = analyze(case / "last.ckpt", "--weights", "averaged")
    assert row_of(result, "model.fc.weight")["spectral_norm"] == pytest.approx(1.0)
    label = "these are averaged (EMA) weights, not the live ones"
    assert label in result.json["warnings"]
    assert label in cli("rank", STORE).err
    assert label in cli("show", case / "last.ckpt", "--weights", "averaged").err


def test_case_09_averages_and_live_weights_are_never_mixed(case: Path, analyze: Any, cli: Any) -> None:
    for step, live in ((10, 1.0), (20, 0.0)):
        lightning(case / f"step={step}.ckpt", live=live, step=step)
    result = cli("analyze", case, "-o", STORE)
    assert result.code == 2
    assert "step=20.ckpt holds averaged weights alone, where live ones are read" in result.err
    assert "--weights" in result.err
    assert cli("show", case).code == 2
    averaged = analyze(case, "--weights", "averaged", "-o", "averaged.spectra")
    assert [row["step"] for row in averaged.json["rows"]] == [10, 20]
    assert analyze(case, "--steps", "10").code == 0
    again = cli("analyze", case, "-o", STORE, "--weights", "averaged")
    assert again.code == 2
    assert "holds live weights of step 10, which are not mixed with averaged ones" in again.err
    assert "--weights is one of auto, live, averaged" in cli("analyze", case, "-o", STORE, "--weights", "both").err
    # Nor in the other direction, in steps that the store does not have.
    for step in (30, 40):
        lightning(case / f"step={step}.ckpt", step=step)
    assert cli("analyze", case, "-o", "new.spectra", "--weights", "averaged", "--steps", "30").code == 0
    back = cli("analyze", case, "-o", "new.spectra", "--weights", "live", "--steps", "40")
    assert back.code == 2
    assert "holds averaged weights of step 30, which are not mixed with live ones" in back.err


# 11. A directory of torch.distributed.checkpoint.


def test_case_11_distributed_checkpoints_are_read_in_one_process(case: Path, analyze: Any, spectra: Any) -> None:
    for step in (10, 20):
        state = {
            "model": {"fc.weight": mat([float(step), 1.0], 6, 4), "fc.bias": torch.zeros(6)},
            "optim": {"exp_avg": torch.randn(6, 4)},
            "step": step,
        }
        dcp.save(state, checkpoint_id=str(case / f"step-{step}"), no_dist=True)
    result = analyze(case)
    assert result.code == 0
    assert [(row["step"], row["matrix"]) for row in result.json["rows"]] == [(10, "fc.weight"), (20, "fc.weight")]
    assert {step: values[0] for step, values in spectra("fc.weight").items()} == pytest.approx({10: 10.0, 20: 20.0})
    assert not torch.distributed.is_initialized()


# 12. Names without weights.


def zero(case: Path) -> None:
    states = case / "checkpoint-5" / "global_step5"
    states.mkdir(parents=True)
    (case / "checkpoint-5" / "latest").write_text("global_step5")
    torch.save(
        {
            "module": {"fc.weight": torch.empty(0), "fc.bias": torch.empty(0)},
            "param_shapes": [{"fc.weight": torch.Size([6, 4]), "fc.bias": torch.Size([6])}],
        },
        states / "zero_pp_rank_0_mp_rank_00_model_states.pt",
    )
    torch.save(
        {"optimizer_state_dict": {"zero_stage": 3, "partition_count": 1, "fp32_flat_groups": [torch.randn(30)]}},
        states / "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt",
    )


@pytest.mark.parametrize("source", [".", "checkpoint-5", "checkpoint-5/global_step5"])
def test_case_12_partitioned_weights_name_the_way_out(case: Path, cli: Any, source: str) -> None:
    zero(case)
    result = cli("analyze", case / source, "-o", STORE)
    assert result.code == 1
    assert_plain(result)
    assert "is a DeepSpeed checkpoint whose weights are partitioned over 1 file" in result.err
    assert "zero_to_fp32.py" in result.err


def test_case_12_the_file_of_one_process_names_the_way_out(case: Path, cli: Any) -> None:
    zero(case)
    (states,) = case.glob("*/*/*model_states.pt")
    result = cli("analyze", states, "-o", STORE)
    assert result.code == 1
    assert "tensors of size 0 and no weights" in result.err
    assert "zero_to_fp32.py" in result.err


def test_case_12_meta_tensors_are_no_weights(case: Path, cli: Any) -> None:
    torch.save({"fc.weight": torch.empty(6, 4, device="meta")}, case / "meta.pt")
    result = cli("analyze", case / "meta.pt", "-o", STORE)
    assert result.code == 1
    assert_plain(result)
    assert "meta.pt: holds names and shapes without values" in result.err
    assert "load the model's weights before it is saved" in result.err


def test_case_12_empty_tensors_among_others_are_skipped(case: Path, analyze: Any, cli: Any) -> None:
    torch.save(
        {"fc.weight": torch.zeros(0, 4), "g": torch.tensor(3.0), "ok.weight": mat([2.0], 5, 4)}, case / "mixed.pt"
    )
    result = analyze(case / "mixed.pt")
    assert result.code == 0
    assert [row["matrix"] for row in result.json["rows"]] == ["ok.weight"]
    assert row_of(result, "ok.weight")["spectral_norm"] == pytest.approx(2.0)
    skipped = cli("show", case / "mixed.pt", "--format", "json").json["skipped"]
    assert {one["name"]: one["reason"] for one in skipped} == {"fc.weight": "empty", "g": "a single number"}


# 19. Codes of 8 bits are no numbers.


def test_case_19_int8_codes_are_dequantised(case: Path, analyze: Any, spectra: Any, cli: Any) -> None:
    w = mat([3.0, 1.0, 0.5], 8, 6)
    w[0] *= 20
    scb = w.abs().amax(1)
    codes = torch.round(w / scb[:, None] * 127).to(torch.int8)
    save_file(
        {"fc.weight": codes, "fc.SCB": scb, "fc.weight_format": torch.tensor(0, dtype=torch.uint8)},
        case / "model.safetensors",
    )
    result = analyze(case)
    assert [row["matrix"] for row in result.json["rows"]] == ["fc.weight"]
    assert row_of(result, "fc.weight")["dtype"] == "int8"
    assert row_of(result, "fc.weight")["made_of"] == "int8 * SCB / 127"
    assert row_of(result, "fc.weight")["numerical_rank"] == 3
    exact = np.linalg.svd(codes.double().numpy() * scb.double().numpy()[:, None] / 127, compute_uv=False)
    np.testing.assert_allclose(spectra("fc.weight")[0], exact, atol=1e-10 * exact[0])
    assert spectra("fc.weight")[0][:3] == pytest.approx([5.489, 2.635, 0.938], abs=1e-3)
    skipped = cli("show", case, "--format", "json").json["skipped"]
    assert {one["name"]: one["reason"] for one in skipped} == dict.fromkeys(
        ["fc.SCB", "fc.weight_format"], "part of fc.weight"
    )


def test_case_19_codes_of_few_bits_are_refused_by_name(case: Path, analyze: Any, cli: Any) -> None:
    codes = {
        "fc.qweight": torch.ones(2, 8, dtype=torch.int32),
        "fc.qzeros": torch.ones(1, 1, dtype=torch.int32),
        "fc.scales": torch.ones(1, 8, dtype=torch.float16),
        "fc.g_idx": torch.zeros(16, dtype=torch.int32),
    }
    save_file({**codes, "embed.weight": mat([2.0], 9, 4)}, case / "model.safetensors")
    result = analyze(case)
    assert result.code == 3
    assert [row["matrix"] for row in result.json["rows"]] == ["embed.weight"]
    (failure,) = result.json["failures"]
    assert failure["reason"].startswith("1 weight refused: fc.qweight: GPTQ codes")
    assert "dequantise" in failure["reason"]
    assert "1 matrix holds 22.0% of the parameters" in result.err  # 36 of 36 + 128: eight codes in each number
    assert cli("rank", STORE, "--format", "json").json["failures"] == [failure]
    assert cli("rank", STORE).code == 3
    assert cli("show", case).code == 3
    # Who does not ask for it does not hear of it.
    assert cli("analyze", case, "-o", "embed.spectra", "--match", "embed*").code == 0
    assert cli("rank", "embed.spectra").code == 0
    assert cli("analyze", case, "-o", STORE, "--match", "embed*").code == 0
    save_file(codes, case / "model.safetensors")
    alone = cli("analyze", case, "-o", "other.spectra")
    assert alone.code == 1
    assert "fc.qweight: GPTQ codes" in alone.err


# 23. A pruned model has `weight_orig` and `weight_mask`.


def test_case_23_the_effective_matrix_is_what_is_reported(case: Path, analyze: Any, spectra: Any, cli: Any) -> None:
    w, mask = mat([3.0, 2.0, 1.0], 6, 6), torch.ones(6, 6)
    mask[:, 3:] = 0
    torch.save({"fc.weight_orig": w, "fc.weight_mask": mask, "fc.bias": torch.zeros(6)}, case / "m.pt")
    result = analyze(case / "m.pt")
    assert [row["matrix"] for row in result.json["rows"]] == ["fc.weight"]
    row = row_of(result, "fc.weight")
    assert row["sparsity"] == 0.5
    assert row["numerical_rank"] == 3
    assert row["made_of"] == "weight_orig * weight_mask"
    assert spectra("fc.weight")[0][:4] == pytest.approx([2.406, 1.7192, 0.8032, 0.0], abs=1e-3)
    assert "weight_orig * weight_mask; 50.0% zeros" in cli("rank", STORE, "--all").out
    assert "50.0% zeros" in cli("rank", STORE).out


# 25. An adapter is its scaled update.


def test_case_25_adapters_are_their_scaled_update(case: Path, analyze: Any, spectra: Any) -> None:
    b, a = mat([2.0, 1.0], 8, 2, seed=1), mat([1.0, 1.0], 2, 6, seed=2)
    save_file(
        {"base_model.model.fc.lora_A.weight": a, "base_model.model.fc.lora_B.weight": b},
        case / "adapter_model.safetensors",
    )
    config = {"r": 2, "lora_alpha": 16, "target_modules": ["fc"], "peft_type": "LORA"}
    (case / "adapter_config.json").write_text(json.dumps(config))
    result = analyze(case)
    assert result.code == 0
    (row,) = result.json["rows"]
    assert (row["matrix"], row["shape"]) == ("fc.weight", [8, 6])
    assert row["effective_rank"] == pytest.approx(1.8899, abs=1e-4)
    assert spectra("fc.weight")[0] == pytest.approx([16.0, 8.0, 0, 0, 0, 0], abs=1e-5)


def test_case_25_adapters_of_a_trainer_are_a_trajectory(case: Path, analyze: Any) -> None:
    for step in (5, 10):
        folder = case / f"checkpoint-{step}"
        folder.mkdir()
        a, b = mat([1.0], 1, 6), mat([float(step)], 8, 1)
        save_file({"fc.lora_A.weight": a, "fc.lora_B.weight": b}, folder / "adapter_model.safetensors")
        (folder / "adapter_config.json").write_text('{"r": 1, "lora_alpha": 2, "peft_type": "LORA"}')
        torch.save({}, folder / "optimizer.pt")
    rows = analyze(case).json["rows"]
    assert {row["step"]: row["spectral_norm"] for row in rows} == pytest.approx({5: 10.0, 10: 20.0})


# 56. Experts are one 3-D tensor.


def test_case_56_every_expert_is_a_matrix(case: Path, analyze: Any, spectra: Any) -> None:
    experts = torch.stack([mat([float(i + 1), 1.0], 6, 5, seed=i) for i in range(3)])
    experts[2] = 0
    down = torch.stack([mat([5.0], 5, 3, seed=i) for i in range(3)])
    stem = "model.layers.0.mlp"
    save_file(
        {
            f"{stem}.experts.gate_up_proj": experts,
            f"{stem}.experts.down_proj": down,
            f"{stem}.router.weight": mat([2.0, 1.0], 3, 5),
        },
        case / "model.safetensors",
    )
    result = analyze(case)
    assert spectra(f"{stem}.experts.gate_up_proj[0]")[0] == top([1.0, 1.0, 0, 0, 0], 5)
    assert spectra(f"{stem}.experts.gate_up_proj[1]")[0] == top([2.0, 1.0, 0, 0, 0], 5)
    zero_row = row_of(result, f"{stem}.experts.gate_up_proj[2]")
    assert zero_row["reason"] == "zero matrix: it has no effective rank"
    assert zero_row["shape"] == [6, 5]
    for i in range(3):
        assert spectra(f"{stem}.experts.down_proj[{i}]")[0] == top([5.0, 0, 0], 3)
    assert "7 matrices hold 100.0% of the parameters" in result.err


# 57. Depthwise and grouped convolutions.


def test_case_57_depthwise_convolutions_are_groups(case: Path, analyze: Any, spectra: Any, cli: Any) -> None:
    dw = torch.zeros(4, 1, 3, 3)
    dw[0], dw[1], dw[2] = 1 / 3, 2 / 3, 1.0
    pw = mat([2.0, 1.0], 8, 4).view(8, 4, 1, 1)
    torch.save(
        {
            "c0.weight": pw.transpose(0, 1).contiguous(),
            "dw.weight": dw,
            "pw.weight": pw,
            "full.weight": mat([3.0, 1.0], 8, 36).view(8, 4, 3, 3),
            "c1d.weight": mat([2.0], 6, 12).view(6, 4, 3),
            "c3d.weight": mat([2.0], 3, 24).view(3, 3, 2, 2, 2),
        },
        case / "m.pt",
    )
    assert analyze(case / "m.pt").code == 0
    assert spectra("full.weight")[0] == top([3.0, 1.0, 0, 0, 0, 0, 0, 0], 8)
    assert spectra("pw.weight")[0] == top([2.0, 1.0, 0, 0], 4)
    assert spectra("c0.weight")[0] == top([2.0, 1.0, 0, 0], 4)
    assert spectra("c1d.weight")[0][0] == pytest.approx(2.0)
    assert spectra("c3d.weight")[0][0] == pytest.approx(2.0)
    assert spectra("dw.weight")[0] == pytest.approx([3.0, 2.0, 1.0, 0.0], abs=1e-6)
    roles = {row["matrix"]: row["role"] for row in cli("show", case / "m.pt", "--format", "json").json["rows"]}
    assert roles["dw.weight"] == "depthwise conv"
    assert {roles[name] for name in roles if name != "dw.weight"} == {"conv"}
