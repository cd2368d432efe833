"""Every format at the command line: what is read has the right singular values, what is not is refused by name."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import FORMATS, STORE, assert_plain, mat, row_of
from safetensors.torch import save_file
from torch.nn.utils import parametrizations, prune
from torch.nn.utils import spectral_norm as old_spectral_norm
from torch.nn.utils import weight_norm as old_weight_norm

pytestmark = pytest.mark.filterwarnings("ignore")


def largest(weight: Any) -> float:
    """sigma_1 of a weight, flattened as a convolution is."""
    array = np.asarray(weight, dtype=np.float64)
    return float(np.linalg.norm(array.reshape(array.shape[0], -1), 2))


READ = {
    "peft_lora": ("", []),
    "peft_rslora": ("", []),
    "peft_rank_alpha_pattern": ("", []),
    "peft_modules_to_save": ("", []),
    "bnb_int8": ("", []),
    "dcp_fsdp2": ("", []),
    "dcp_dtensor_colshard": ("", []),
    "accelerate_fsdp2": ("", []),
    "deepspeed_zero2": ("", []),
    "lightning_ema": ("live/", []),
    "ema_pytorch": ("live/", []),
    "timm_ema_v3": ("average/", ["--weights", "averaged"]),
}


@pytest.mark.parametrize("name", READ)
def test_what_libraries_wrote_is_read(case: Path, analyze: Any, name: str) -> None:
    prefix, options = READ[name]
    expected = np.load(FORMATS / f"{name}.npz")
    weights = {key.removeprefix(prefix): expected[key] for key in expected if key.startswith(prefix)}
    result = analyze(FORMATS / name, *options)
    assert result.code == 0, result.err
    rows = {row["matrix"]: row["spectral_norm"] for row in result.json["rows"]}
    for key, weight in weights.items():
        if weight.ndim > 1:
            assert rows.pop(key) == pytest.approx(largest(weight), rel=1e-6)
    assert not rows, "something else was taken for a matrix"


REFUSED = {
    "keras3/model.keras": "is a Keras or HDF5 file, which is not read here; in Python: numpy.savez",
    "keras3/model.weights.h5": "is a file of Keras weights, which is not read here; in Python",
    "gguf": "is a GGUF file, whose weights are quantised in blocks, which is not read here; analyse the model",
    "onnx": "is an ONNX graph, which is not read here; in Python: numpy.savez",
    "flax_msgpack": "is a Flax file, which is not read here; in Python: safetensors.flax",
    "torch_export": "is a program of torch.export, which is not read here; in Python: torch.save",
    "bnb_nf4": "bitsandbytes codes of 4 bits; analyse the model that was quantised, or dequantise it",
    "compressed_tensors_packed": "compressed-tensors codes; analyse the model that was quantised, or dequantise it",
    "torchao_int8": "torchao codes; analyse the model that was quantised, or dequantise it",
    "dcp_fsdp1_local": "holds parameters that FSDP has flattened (_flat_param), without their shapes; save it with",
    "dcp_zstd": "its parts are compressed",
    "dcp_hf_sharded_2ranks": "holds the shards of several processes; put them together first",
    "deepspeed_zero3": "is a DeepSpeed checkpoint whose weights are partitioned over 2 files; consolidate them first",
    "peft_dora": "DoRA, whose update depends on the weight below it; merge it into its model",
    "peft_ia3": "describes an adapter of type IA3, not LoRA; merge it into its model",
    "torchsave_fsdp1_flat_params/named_parameters_rank0.bin": "holds parameters that FSDP has flattened",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_read_is_refused_by_name(case: Path, cli: Any, name: str) -> None:
    result = cli("analyze", FORMATS / name, "-o", STORE)
    assert result.code == 1
    assert result.out == ""
    assert_plain(result)
    lines = [line for line in result.err.splitlines() if REFUSED[name] in line]
    assert len(lines) == 1, result.err
    assert str(FORMATS) in lines[0]
    assert not STORE.exists()


def test_programs_and_whole_models(case: Path, cli: Any) -> None:
    torch.jit.trace(torch.nn.Linear(3, 3), torch.ones(1, 3)).save(str(case / "step1.pt"))
    torch.save(torch.nn.Linear(3, 3), case / "step2.pt")
    save_file({"fc.weight": mat([1.0], 3, 3)}, case / "step3.safetensors")
    result = cli("analyze", case, "-o", STORE, "--format", "json")
    assert result.code == 3
    assert [row["step"] for row in result.json["rows"]] == [3]
    reasons = {failure["step"]: failure["reason"] for failure in result.json["failures"]}
    assert "is a TorchScript program, which is not read here" in reasons[1]
    assert "holds a whole pickled model, not a state dict" in reasons[2]
    assert "Save model.state_dict() instead" in reasons[2]


def test_refused_steps_among_others(case: Path, analyze: Any) -> None:
    """One line a checkpoint, and the others go on."""
    save_file({"fc.weight": mat([1.0], 3, 3)}, case / "step1.safetensors")
    shutil.copy(FORMATS / "gguf" / "model.gguf", case / "step2.gguf")
    shutil.copytree(FORMATS / "deepspeed_zero3", case / "step3")
    shutil.copytree(FORMATS / "dcp_fsdp1_local", case / "step4")
    result = analyze(case)
    assert result.code == 3
    assert [row["step"] for row in result.json["rows"]] == [1]
    assert sorted(failure["step"] for failure in result.json["failures"]) == [2, 3, 4]


REPARAMETRISED = {
    "pruning": lambda layer: prune.l1_unstructured(layer, "weight", amount=0.5),
    "weight norm": old_weight_norm,
    "weight norm as a parametrisation": parametrizations.weight_norm,
    "spectral norm": old_spectral_norm,
    "spectral norm as a parametrisation": parametrizations.spectral_norm,
}


@pytest.mark.parametrize("how", REPARAMETRISED)
def test_reparametrised_layers(case: Path, analyze: Any, how: str) -> None:
    torch.manual_seed(0)
    layer = REPARAMETRISED[how](torch.nn.Linear(8, 6))
    for _ in range(20):
        layer(torch.randn(2, 8))
    layer.eval()
    layer(torch.randn(2, 8))
    torch.save({f"fc.{name}": value for name, value in layer.state_dict().items()}, case / "step1.pt")
    (row,) = analyze(case / "step1.pt").json["rows"]
    assert (row["matrix"], row["shape"]) == ("fc.weight", [6, 8])
    assert row["spectral_norm"] == pytest.approx(largest(layer.weight.detach()), rel=1e-5)
    assert row["sparsity"] == (0.5 if how == "pruning" else 0)
    assert row["made_of"]


def test_a_parametrisation_that_is_not_in_the_file(case: Path, cli: Any) -> None:
    layer = parametrizations.orthogonal(torch.nn.Linear(4, 4))
    torch.save(layer.state_dict() | {"head.weight": mat([1.0], 3, 4)}, case / "step1.pt")
    result = cli("analyze", case / "step1.pt", "-o", STORE, "--format", "json")
    assert result.code == 3
    assert [row["matrix"] for row in result.json["rows"]] == ["head.weight"]
    assert "re-parametrised by a function that the file does not hold" in result.json["failures"][0]["reason"]


def test_float8(case: Path, analyze: Any) -> None:
    codes = (20 * mat([3.0, 1.0], 6, 4)).to(torch.float8_e4m3fn)
    wide = (20 * mat([3.0, 1.0], 6, 4)).to(torch.float8_e5m2)
    scaled = {
        "a.weight": codes,
        "a.weight_scale": torch.tensor(0.5),
        "b.weight": wide,
        "b.weight_scale": torch.rand(6, 1),
    }
    save_file(scaled | {"c.weight": codes.clone()}, case / "step1.safetensors")
    result = analyze(case / "step1.safetensors")
    assert row_of(result, "a.weight")["spectral_norm"] == pytest.approx(0.5 * largest(codes.float()))
    rows = wide.double() * scaled["b.weight_scale"].double()
    assert row_of(result, "b.weight")["spectral_norm"] == pytest.approx(largest(rows))
    assert row_of(result, "c.weight")["spectral_norm"] == pytest.approx(largest(codes.float()))
    assert row_of(result, "c.weight")["made_of"] == "float8_e4m3fn, no scale in the file"


def test_complex_and_sparse_tensors(case: Path, cli: Any) -> None:
    torch.save(
        {
            "z.weight": torch.ones(3, 3, dtype=torch.complex64),
            "s.weight": torch.eye(3).to_sparse(),
            "w.weight": mat([2.0], 3, 3),
        },
        case / "step1.pt",
    )
    result = cli("analyze", case / "step1.pt", "-o", STORE, "--format", "json")
    assert [row["matrix"] for row in result.json["rows"]] == ["w.weight"]
    assert result.code == 3
    assert "s.weight: stored as sparse_coo, which is not read; save tensor.to_dense()" in result.err
    skipped = {one["name"]: one["reason"] for one in cli("show", case, "--format", "json").json["skipped"]}
    assert skipped["z.weight"] == "complex64, which is not read as a weight"


def test_grouped_convolutions_are_flattened_and_marked(case: Path, cli: Any) -> None:
    weights = {
        "conv1.weight": torch.ones(8, 3, 3, 3),
        "conv2.weight": torch.nn.Conv2d(8, 16, 3, groups=4).weight.detach(),
    }
    torch.save(weights, case / "step1.pt")
    rows = {row["matrix"]: row for row in cli("show", case / "step1.pt", "--format", "json").json["rows"]}
    assert (rows["conv2.weight"]["shape"], rows["conv2.weight"]["role"]) == ([16, 18], "conv")
    assert rows["conv2.weight"]["guessed"]


def test_fused_gate_and_up_projections(case: Path, analyze: Any, cli: Any) -> None:
    gate, up = mat([3.0, 1.0], 6, 4, seed=1), mat([2.0], 6, 4, seed=2)
    save_file({"mlp.gate_up_proj.weight": torch.cat([gate, up])}, case / "step1.safetensors")
    result = analyze(case / "step1.safetensors")
    assert row_of(result, "mlp.gate_up_proj.weight")["shape"] == [12, 4]
    assert row_of(result, "mlp.gate_up_proj.weight[gate]")["spectral_norm"] == pytest.approx(3)
    assert row_of(result, "mlp.gate_up_proj.weight[up]")["spectral_norm"] == pytest.approx(2)
    assert "hold 100.0% of the parameters" in result.err
    only = cli("rank", STORE, "--matrix", "*[gate]", "--format", "json").json["rows"]
    assert [row["matrix"] for row in only] == ["mlp.gate_up_proj.weight[gate]"]
