"""Re-parametrised, quantised and adapted weights come out as they act in the network.

Torch's own parametrisations are written here by torch; what other libraries wrote is in tests/data/formats.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import FORMATS, equal, mat
from safetensors.torch import save_file
from torch.nn.utils import parametrizations, prune
from torch.nn.utils import spectral_norm as old_spectral_norm
from torch.nn.utils import weight_norm as old_weight_norm

from spectrascope.checkpoints import Checkpoint, find_checkpoints
from spectrascope.errors import CheckpointError

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


def only(source: Path, weights: str = "auto") -> Checkpoint:
    (reference,) = find_checkpoints([source]).references
    return Checkpoint(reference.open()[0], weights)


def saved(directory: Path, module: torch.nn.Module, suffix: str = ".pt") -> Checkpoint:
    path = directory / f"m{suffix}"
    if suffix == ".pt":
        torch.save(module.state_dict(), path)
    else:
        save_file({name: tensor.contiguous() for name, tensor in module.state_dict().items()}, path)
    return only(path)


def refused(checkpoint: Checkpoint) -> dict[str, str]:
    return {name: str(info.problem) for name, info in checkpoint.tensors.items() if info.kind == "refused"}


def matrices_of(checkpoint: Checkpoint) -> list[str]:
    infos = checkpoint.tensors.values()
    return [info.name for info in infos if info.kind == "parameter" and info.problem is None and len(info.shape) > 1]


def trained(module: torch.nn.Module) -> torch.nn.Module:
    """A network after some steps in training mode, in evaluation mode."""
    torch.manual_seed(0)
    for _ in range(3):
        for layer, size in ((module.fc, (2, 6)), (module.conv, (2, 3, 9))):
            layer(torch.randn(size)).sum().backward()
        with torch.no_grad():
            for parameter in module.parameters():
                parameter += 0.1 * torch.randn_like(parameter)
    return module.eval()


def network() -> Any:
    torch.manual_seed(1)
    return torch.nn.ModuleDict({"fc": torch.nn.Linear(6, 5), "conv": torch.nn.Conv1d(3, 4, 2)})


WRAPS = {
    "prune": lambda layer: prune.l1_unstructured(layer, "weight", amount=0.3),
    "weight_norm": old_weight_norm,
    "weight_norm of axis 1": lambda layer: old_weight_norm(layer, dim=1),
    "weight_norm of the whole": lambda layer: old_weight_norm(layer, dim=None),
    "new weight_norm": parametrizations.weight_norm,
    "spectral_norm": old_spectral_norm,
    "new spectral_norm": parametrizations.spectral_norm,
}


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
@pytest.mark.parametrize("how", WRAPS)
def test_torch_reparametrisations(tmp_path: Path, how: str, suffix: str) -> None:
    module = network()
    for layer in module.values():
        WRAPS[how](layer)
    if "prune" not in how:
        trained(module)
    checkpoint = saved(tmp_path, module, suffix)
    assert sorted(matrices_of(checkpoint)) == ["conv.weight", "fc.weight"]
    module.fc(torch.ones(1, 6)), module.conv(torch.ones(1, 3, 9))  # hooks bring .weight up to date
    for name, layer in module.items():
        weight = layer.weight.detach()
        np.testing.assert_allclose(checkpoint.load(f"{name}.weight"), weight, rtol=2e-6, atol=1e-7)
        assert checkpoint.tensors[f"{name}.weight"].shape == tuple(weight.shape)
        assert checkpoint.tensors[f"{name}.weight"].dtype == "float32"
        assert checkpoint.tensors[f"{name}.weight"].made_of
    parts = [info for info in checkpoint.tensors.values() if info.kind == "part"]
    assert all(info.problem == f"part of {info.name.split('.')[0]}.weight" for info in parts)
    assert len(parts) >= 4


def test_transposed_convolutions_and_recurrent_layers(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = torch.nn.ModuleDict({"up": torch.nn.ConvTranspose1d(3, 4, 2), "lstm": torch.nn.LSTM(3, 5)})
    parametrizations.spectral_norm(module["up"])
    parametrizations.weight_norm(module["lstm"], "weight_hh_l0")
    prune.l1_unstructured(module["lstm"], "weight_ih_l0", amount=3)
    for _ in range(20):
        module["up"](torch.randn(1, 3, 7))
    module.eval()
    checkpoint = saved(tmp_path, module)
    for name, weight in (
        ("up.weight", module["up"].weight),
        ("lstm.weight_hh_l0", module["lstm"].weight_hh_l0),
        ("lstm.weight_ih_l0", module["lstm"].weight_ih_l0),
    ):
        np.testing.assert_allclose(checkpoint.load(name), weight.detach(), rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("how", ["spectral_norm", "new spectral_norm"])
@pytest.mark.parametrize("kind", ["transposed", "conv", "linear"])
def test_spectral_norms_of_square_layers(tmp_path: Path, how: str, kind: str, seed: int) -> None:
    """Where inputs and outputs are as many, u may belong to either axis."""
    torch.manual_seed(seed)
    layers = {
        "transposed": lambda: torch.nn.ConvTranspose2d(4, 4, 2),
        "conv": lambda: torch.nn.Conv2d(4, 4, 2),
        "linear": lambda: torch.nn.Linear(4, 4),
    }
    layer = WRAPS[how](layers[kind]())
    x = torch.randn(2, 4) if kind == "linear" else torch.randn(2, 4, 6, 6)
    for _ in range(30):
        layer(x)
    layer.eval()
    layer(x)
    np.testing.assert_allclose(saved(tmp_path, layer).load("weight"), layer.weight.detach(), rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("how", ["spectral_norm", "new spectral_norm"])
def test_spectral_norms_before_the_first_step(tmp_path: Path, how: str) -> None:
    torch.manual_seed(0)
    layer = WRAPS[how](torch.nn.Linear(20, 20)).eval()
    checkpoint = saved(tmp_path, layer)
    layer(torch.ones(1, 20))
    np.testing.assert_allclose(checkpoint.load("weight"), layer.weight.detach(), rtol=2e-5, atol=1e-6)


def test_weight_norm_is_computed_in_float64(tmp_path: Path) -> None:
    layer = torch.nn.utils.weight_norm(torch.nn.Linear(50, 40))
    checkpoint = saved(tmp_path, layer)
    v, g = layer.weight_v.detach().double(), layer.weight_g.detach().double()
    assert checkpoint.load("weight").dtype == np.float64
    np.testing.assert_allclose(checkpoint.load("weight"), g * v / v.norm(dim=1, keepdim=True), rtol=1e-14)


def test_functions_that_the_file_does_not_hold(tmp_path: Path) -> None:
    module = network()
    parametrizations.orthogonal(module.fc)
    parametrizations.weight_norm(module.conv)
    parametrizations.spectral_norm(module.conv)
    checkpoint = saved(tmp_path, module)
    assert matrices_of(checkpoint) == []
    reasons = refused(checkpoint)
    assert list(reasons) == ["fc.parametrizations.weight.original", "conv.parametrizations.weight.original1"]
    assert all("a function that the file does not hold" in reason for reason in reasons.values())


def test_pruned_weight_norm_is_refused(tmp_path: Path) -> None:
    layer = prune.random_unstructured(old_weight_norm(torch.nn.Linear(6, 5)), "weight_v", 0.5)
    checkpoint = saved(tmp_path, layer)
    assert "pruned below another parametrisation" in refused(checkpoint)["weight_v_orig"]
    assert matrices_of(checkpoint) == []
    layer = parametrizations.weight_norm(torch.nn.Linear(6, 5))
    prune.random_unstructured(layer.parametrizations.weight, "original1", 0.5)
    checkpoint = saved(tmp_path, layer)
    assert matrices_of(checkpoint) == []
    assert any("pruned below another parametrisation" in reason for reason in refused(checkpoint).values())


def test_functions_of_vectors_and_numbers_are_nothing_to_refuse(tmp_path: Path) -> None:
    weights = {"fc.weight": mat([1.0], 3, 3), "fc.parametrizations.bias.original": torch.ones(3)}
    torch.save({**weights, "parametrizations.scale.original": torch.tensor(2.0)}, tmp_path / "m.pt")
    assert refused(only(tmp_path / "m.pt")) == {}


def test_two_weights_of_one_name(tmp_path: Path) -> None:
    w = mat([2.0, 1.0], 4, 3)
    pruned = {"fc.weight_orig": w, "fc.weight_mask": torch.ones(4, 3)}
    torch.save({**pruned, "fc.weight_v": w, "fc.weight_g": torch.ones(4, 1)}, tmp_path / "m.pt")
    checkpoint = only(tmp_path / "m.pt")
    assert matrices_of(checkpoint) == ["fc.weight"]
    assert refused(checkpoint) == {"fc.weight_v": "another weight has the name that it would have"}


def test_names_that_only_look_like_weight_norm(tmp_path: Path) -> None:
    """RWKV's `time_mix_v` and `time_mix_g` are no parts of a `time_mix`."""
    mixes = {"att.time_mix_v": torch.ones(1, 1, 8), "att.time_mix_g": torch.ones(1, 1, 8)}
    torch.save({**mixes, "W_v": torch.eye(8), "W_g": torch.ones(8, 1)}, tmp_path / "m.pt")
    assert all(info.made_of is None for info in only(tmp_path / "m.pt").tensors.values())


def test_tied_weights_stay_tied(tmp_path: Path) -> None:
    layers = torch.nn.ModuleDict({"a": torch.nn.Linear(4, 4), "b": torch.nn.Linear(4, 4)})
    prune.l1_unstructured(layers["a"], "weight", amount=3)
    layers["b"] = layers["a"]
    checkpoint = saved(tmp_path, layers)
    assert checkpoint.tied == {"b.weight": "a.weight", "b.bias": "a.bias"}
    assert checkpoint.tensors["b.weight_orig"].problem == "part of b.weight"


def test_a_mask_that_is_gone(tmp_path: Path) -> None:
    torch.save({"fc.weight_orig": mat([1.0], 3, 3)}, tmp_path / "m.pt")
    assert "its mask is not in the file" in refused(only(tmp_path / "m.pt"))["fc.weight_orig"]


def test_a_weight_beside_what_it_is_made_of_is_taken_as_it_is(tmp_path: Path) -> None:
    w = mat([2.0, 1.0], 4, 3)
    torch.save({"weight": 5 * w, "weight_g": torch.ones(4, 1), "weight_v": w}, tmp_path / "m.pt")
    checkpoint = only(tmp_path / "m.pt")
    assert equal(checkpoint.load("weight"), 5 * w)
    assert matrices_of(checkpoint) == ["weight"]
    torch.save({"fc.weight": w, "fc.weight_mask": (w > 0).float()}, tmp_path / "m.pt")
    assert equal(only(tmp_path / "m.pt").load("fc.weight"), w * (w > 0))


@pytest.mark.parametrize("name", ["peft_lora", "peft_rslora", "peft_rank_alpha_pattern", "peft_modules_to_save"])
def test_adapters_of_peft(name: str) -> None:
    checkpoint = only(FORMATS / name)
    expected = np.load(FORMATS / f"{name}.npz")
    assert sorted(matrices_of(checkpoint)) == sorted(expected)
    for layer in expected:
        update = checkpoint.load(layer)
        # The weight of a Conv1D is stored (in, out); ours are (out, in).
        delta = expected[layer].T if layer == "c1d.weight" else expected[layer]
        np.testing.assert_allclose(update, delta, rtol=1e-6, atol=1e-6 * np.abs(delta).max())
        assert (layer == "classifier.weight") == (checkpoint.tensors[layer].made_of is None)


def test_adapters_whose_update_is_not_known(tmp_path: Path) -> None:
    assert all("DoRA" in reason for reason in refused(only(FORMATS / "peft_dora")).values())
    with pytest.raises(CheckpointError, match=r"adapter_config\.json: describes an adapter of type IA3, not LoRA"):
        only(FORMATS / "peft_ia3")
    weights = {"fc.lora_A.weight": mat([1.0], 2, 6), "fc.lora_B.weight": mat([1.0], 8, 2)}
    save_file(weights, tmp_path / "adapter_model.safetensors")
    config = tmp_path / "adapter_config.json"

    def reason(text: str | None) -> str:
        if text is not None:
            config.write_text(text)
        (found,) = refused(only(tmp_path)).values()
        return found

    assert "there is no adapter_config.json beside it" in reason(None)
    assert "does not state r and lora_alpha" in reason('{"r": 2}')
    assert "does not state r and lora_alpha" in reason('{"r": "2", "lora_alpha": 1}')
    assert "of rank 2, where adapter_config.json states 4" in reason('{"r": 4, "lora_alpha": 1}')
    for text in ("not json", "[]", "[" * 100_000):
        config.write_text(text)
        with pytest.raises(CheckpointError, match=r"adapter_config\.json: is not"):
            only(tmp_path)


@pytest.mark.parametrize(
    ("pattern", "alpha"),
    [
        ("q_proj", 3),
        ("layers.0.q_proj", 3),
        (r"layers\\.\\d+\\.q_proj", 3),
        (".*q_proj", 3),
        ("(k_proj|q_proj)", 3),
        ("k_proj", 16),
        ("proj", 16),
        ("(q_+)+proj", None),
        ("q_proj(", None),
        (".*.*.*proj", None),
    ],
)
def test_patterns_of_peft(tmp_path: Path, pattern: str, alpha: int | None) -> None:
    """Patterns are regular expressions of strangers: those that could take for ever are refused, not skipped."""
    factors = {"layers.0.q_proj.lora_A.weight": mat([1.0], 2, 6), "layers.0.q_proj.lora_B.weight": mat([1.0], 8, 2)}
    save_file(factors, tmp_path / "adapter_model.safetensors")
    config = f'{{"r": 2, "lora_alpha": 16, "alpha_pattern": {{"{pattern}": 3}}}}'
    (tmp_path / "adapter_config.json").write_text(config)
    checkpoint = only(tmp_path)
    if alpha is None:
        assert "plainly" in next(iter(refused(checkpoint).values()))
    else:
        assert checkpoint.tensors["layers.0.q_proj.weight"].made_of == f"LoRA update, {alpha / 2:.6g} * B A"


ADAPTER = {"fc.lora_A.weight": mat([1.0], 2, 6, seed=1), "fc.lora_B.weight": mat([1.0], 8, 2, seed=2)}


def adapter(directory: Path, weights: dict[str, torch.Tensor], **config: object) -> Checkpoint:
    torch.save(weights, directory / "adapter_model.bin")
    (directory / "adapter_config.json").write_text(json.dumps({"r": 2, "lora_alpha": 4, "peft_type": "LORA"} | config))
    return only(directory)


def test_biases_of_factors(tmp_path: Path) -> None:
    checkpoint = adapter(tmp_path, ADAPTER | {"fc.lora_B.bias": torch.ones(8)}, lora_bias=True)
    assert matrices_of(checkpoint) == ["fc.weight"]
    assert refused(checkpoint) == {}


@pytest.mark.parametrize("variant", ["use_qalora", "use_bdlora", "use_dora"])
def test_variants_of_lora_are_refused(tmp_path: Path, variant: str) -> None:
    checkpoint = adapter(tmp_path, ADAPTER, **{variant: True})
    assert matrices_of(checkpoint) == []
    assert len(refused(checkpoint)) == 1


def test_factors_beside_the_weight_that_they_change(tmp_path: Path) -> None:
    checkpoint = adapter(
        tmp_path, ADAPTER | {"fc.base_layer.weight": mat([1.0], 8, 6), "fc.base_layer.bias": torch.ones(8)}
    )
    assert matrices_of(checkpoint) == []
    assert "beside the weight that it changes; merge it" in refused(checkpoint)["fc.lora_A.weight"]
    checkpoint = adapter(tmp_path, ADAPTER | {"fc.weight": mat([1.0], 8, 6)})
    assert matrices_of(checkpoint) == []
    assert list(refused(checkpoint)) == ["fc.lora_A.weight"]


def test_layers_saved_whole(tmp_path: Path) -> None:
    w = mat([1.0], 3, 3)
    whole = {"out.original_module.weight": w, "out.modules_to_save.default.weight": 2 * w}
    checkpoint = adapter(tmp_path, ADAPTER | whole)
    assert matrices_of(checkpoint) == ["fc.weight", "out.weight"]
    assert equal(checkpoint.load("out.weight"), 2 * w)
    two = {"out.modules_to_save.a.weight": w, "out.modules_to_save.b.weight": 2 * w}
    checkpoint = adapter(tmp_path, ADAPTER | two)
    assert equal(checkpoint.load("out.weight[b]"), 2 * w)


@pytest.mark.parametrize(
    "name",
    [
        "lora_unet_a.hada_w1_a",
        "x.lokr_w2",
        "x.ia3_l",
        "x.oft_r",
        "unet.to_q_lora.down.weight",
        "unet.to_q.lora.up.weight",
        "q_proj.lora_a.weight",
        "q_proj.lora_b",
        "prompt_embeddings",
        "emb.token_adapter.trainable_tokens_delta",
        "q.lora_E.default",
    ],
)
def test_other_adapters_are_refused_by_name(tmp_path: Path, name: str) -> None:
    torch.save({name: torch.ones(4, 4), "fc.weight": torch.eye(3)}, tmp_path / "m.pt")
    checkpoint = only(tmp_path / "m.pt")
    assert matrices_of(checkpoint) == ["fc.weight"]
    assert list(refused(checkpoint)) == [name]


def test_a_config_of_another_adapter_beside_a_whole_model(tmp_path: Path) -> None:
    save_file({"fc.weight": torch.eye(3)}, tmp_path / "model.safetensors")
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "IA3"}')
    assert matrices_of(only(tmp_path)) == ["fc.weight"]


def test_factors_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text('{"r": 2, "lora_alpha": 16}')
    odd = {"fc.lora_A.weight": torch.tensor(1.0), "fc.lora_B.weight": torch.tensor(1.0)}
    save_file(odd, tmp_path / "adapter_model.safetensors")
    assert len(refused(only(tmp_path))) == 1
    odd = {"fc.lora_down.weight": torch.tensor(1.0), "fc.lora_up.weight": torch.ones(3), "fc.alpha": torch.tensor(1.0)}
    save_file(odd, tmp_path / "adapter_model.safetensors")
    assert len(refused(only(tmp_path))) == 1


def test_adapters_of_kohya(tmp_path: Path) -> None:
    a, b = mat([1.0, 1.0], 2, 6, seed=2), mat([2.0, 1.0], 8, 2, seed=1)
    weights = {"unet_q.lora_down.weight": a, "unet_q.lora_up.weight": b, "unet_q.alpha": torch.tensor(16.0)}
    save_file(weights, tmp_path / "style.safetensors")
    checkpoint = only(tmp_path / "style.safetensors")
    assert matrices_of(checkpoint) == ["unet_q.weight"]
    np.testing.assert_allclose(checkpoint.load("unet_q.weight"), 8 * b.double() @ a.double(), rtol=1e-14)
    del weights["unet_q.alpha"]
    save_file(weights, tmp_path / "style.safetensors")
    assert len(refused(only(tmp_path / "style.safetensors"))) == 1


def test_a_changed_scale_is_a_changed_checkpoint(tmp_path: Path) -> None:
    save_file(
        {"fc.lora_A.weight": mat([1.0], 2, 6), "fc.lora_B.weight": mat([1.0], 8, 2)},
        tmp_path / "adapter_model.safetensors",
    )
    hashes = set()
    for alpha in (1, 2):
        (tmp_path / "adapter_config.json").write_text(json.dumps({"r": 2, "lora_alpha": alpha}))
        hashes.add(only(tmp_path).content_hash())
    assert len(hashes) == 2


def test_int8_of_bitsandbytes() -> None:
    checkpoint = only(FORMATS / "bnb_int8")
    expected = np.load(FORMATS / "bnb_int8.npz")
    assert matrices_of(checkpoint) == sorted(expected)
    for name in expected:
        np.testing.assert_allclose(checkpoint.load(name), expected[name], rtol=1e-6, atol=1e-8)
        assert checkpoint.tensors[name].dtype == "int8"


def test_int8_in_another_order_is_refused(tmp_path: Path) -> None:
    weights = {"fc.weight": torch.ones(4, 4, dtype=torch.int8), "fc.SCB": torch.ones(4)}
    save_file(weights | {"fc.weight_format": torch.tensor(2, dtype=torch.uint8)}, tmp_path / "m.safetensors")
    assert "tiles" in refused(only(tmp_path / "m.safetensors"))["fc.weight"]
    save_file(weights | {"fc.SCB": torch.ones(3)}, tmp_path / "m.safetensors")
    assert "4 rows with 3 scales" in refused(only(tmp_path / "m.safetensors"))["fc.weight"]
    save_file({"fc.weight": weights["fc.weight"]}, tmp_path / "m.safetensors")
    assert "no scale" in refused(only(tmp_path / "m.safetensors"))["fc.weight"]


@pytest.mark.parametrize(
    ("name", "codes", "word"),
    [
        ("bnb_nf4", "fc.weight", "bitsandbytes codes of 4 bits"),
        ("compressed_tensors_packed", "fc.weight_packed", "compressed-tensors codes"),
        ("torchao_int8", "0._weight_qdata", "torchao codes"),
    ],
)
def test_codes_that_their_library_wrote_are_refused_by_name(name: str, codes: str, word: str) -> None:
    checkpoint = only(FORMATS / name)
    assert matrices_of(checkpoint) == []
    assert refused(checkpoint)[codes].startswith(word)
    assert "dequantise" in refused(checkpoint)[codes]


def test_codes_of_gptq_and_awq(tmp_path: Path) -> None:
    layout = {
        "fc.qweight": torch.ones(2, 8, dtype=torch.int32),
        "fc.qzeros": torch.ones(1, 1, dtype=torch.int32),
        "fc.scales": torch.ones(1, 8, dtype=torch.float16),
    }
    save_file(layout, tmp_path / "m.safetensors")
    assert refused(only(tmp_path / "m.safetensors"))["fc.qweight"].startswith("AWQ codes")
    save_file(layout | {"fc.g_idx": torch.zeros(16, dtype=torch.int32)}, tmp_path / "m.safetensors")
    checkpoint = only(tmp_path / "m.safetensors")
    assert refused(checkpoint)["fc.qweight"].startswith("GPTQ codes")
    assert [info.kind for info in checkpoint.tensors.values()].count("part") == 3
    others = {
        "HQQ": {"W_q": torch.ones(64, 8).byte(), "scale": torch.rand(64, 1), "zero": torch.rand(64, 1)},
        "Marlin": {"B": torch.ones(4, 16, dtype=torch.int32), "s": torch.rand(2, 64).half()},
        "EXL2": {"q_weight": torch.ones(4, 16, dtype=torch.int32), "q_scale": torch.ones(4, 2, dtype=torch.int32)},
        "AQLM": {
            "codes": torch.ones(4, 4, 1).to(torch.int8),
            "codebooks": torch.rand(1, 4, 8),
            "scales": torch.rand(4, 1),
        },
    }
    for kind, parts in others.items():
        save_file({f"fc.{name}": one for name, one in parts.items()}, tmp_path / "m.safetensors")
        checkpoint = only(tmp_path / "m.safetensors")
        assert [reason.split()[0] for reason in refused(checkpoint).values()] == [kind]
        assert matrices_of(checkpoint) == []
    blocks = {"e.w_blocks": torch.ones(2, 4, dtype=torch.uint8), "e.w_scales": torch.ones(2).byte()}
    save_file(blocks, tmp_path / "m.safetensors")
    assert refused(only(tmp_path / "m.safetensors"))["e.w_blocks"].startswith("MXFP4 codes")


FLOAT8 = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]


@pytest.mark.parametrize("dtype", FLOAT8)
@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_float8_with_a_scale(tmp_path: Path, dtype: torch.dtype, suffix: str) -> None:
    codes = (20 * mat([3.0, 1.0], 6, 4)).to(dtype)
    scales = {"a": torch.tensor(0.5), "b": torch.tensor([2.0]), "c": torch.rand(6, 1), "d": torch.rand(6)}
    weights = {}
    for name, scale in scales.items():
        weights |= {f"{name}.weight": codes.clone(), f"{name}.weight_scale": scale}
    weights |= {"e.weight": codes.clone(), "e.scale_weight": torch.tensor(3.0), "e.input_scale": torch.tensor(1.0)}
    path = tmp_path / f"m{suffix}"
    save_file(weights, path) if suffix == ".safetensors" else torch.save(weights, path)
    checkpoint = only(path)
    assert sorted(matrices_of(checkpoint)) == [f"{name}.weight" for name in "abcde"]
    plain = codes.float().double()
    factors = {**{name: scale.double().reshape(-1, 1) for name, scale in scales.items()}, "e": torch.tensor(3.0)}
    for name, factor in factors.items():
        assert equal(checkpoint.load(f"{name}.weight"), plain * factor)
        assert checkpoint.tensors[f"{name}.weight"].dtype == str(dtype).removeprefix("torch.")


def test_float8_with_a_scale_a_block(tmp_path: Path) -> None:
    codes, scale = torch.randn(200, 300).to(torch.float8_e4m3fn), torch.rand(2, 3)
    save_file({"w.weight": codes, "w.weight_scale_inv": scale}, tmp_path / "model.safetensors")
    expected = codes.float().double()
    for i in range(200):
        expected[i] *= scale.double()[i // 128].repeat_interleave(128)[:300]
    assert equal(only(tmp_path).load("w.weight"), expected)
    # Other blocks are known from the config alone.
    save_file({"w.weight": codes, "w.weight_scale_inv": torch.rand(4, 3)}, tmp_path / "model.safetensors")
    assert "does not fit" in refused(only(tmp_path))["w.weight"]
    (tmp_path / "config.json").write_text('{"quantization_config": {"weight_block_size": [50, 100]}}')
    checkpoint = only(tmp_path)
    factors = torch.rand(4, 3)
    save_file({"w.weight": codes, "w.weight_scale_inv": factors}, tmp_path / "model.safetensors")
    expected = codes.float().double() * factors.double().repeat_interleave(50, 0).repeat_interleave(100, 1)
    assert equal(only(tmp_path).load("w.weight"), expected)
    # The config decides values, so it is part of the content.
    assert [name for name, _, _ in checkpoint.stamp] == ["model.safetensors", "config.json"]


def test_a_scale_a_block_in_a_stack(tmp_path: Path) -> None:
    codes, scale = torch.randn(3, 200, 130).to(torch.float8_e4m3fn), torch.rand(3, 2, 2)
    save_file({"mlp.experts.w": codes, "mlp.experts.w_scale_inv": scale}, tmp_path / "model.safetensors")
    full = scale.double().repeat_interleave(128, 1)[:, :200].repeat_interleave(128, 2)[:, :, :130]
    checkpoint = only(tmp_path)
    for expert in range(3):
        assert equal(checkpoint.load("mlp.experts.w", expert), (codes.float().double() * full)[expert])


def test_float8_without_a_scale_is_marked(tmp_path: Path) -> None:
    codes = mat([3.0, 1.0], 6, 4).to(torch.float8_e4m3fn)
    save_file({"w.weight": codes}, tmp_path / "m.safetensors")
    checkpoint = only(tmp_path / "m.safetensors")
    assert checkpoint.tensors["w.weight"].made_of == "float8_e4m3fn, no scale in the file"
    assert equal(checkpoint.load("w.weight"), codes.float())


@pytest.mark.parametrize("suffix", [".safetensors", ".pt", ".npz"])
def test_experts_are_read_one_by_one(tmp_path: Path, suffix: str) -> None:
    stack = torch.arange(4 * 3 * 5.0).reshape(4, 3, 5)
    path = tmp_path / f"m{suffix}"
    if suffix == ".safetensors":
        save_file({"mlp.experts.w": stack}, path)
    elif suffix == ".pt":
        torch.save({"mlp.experts.w": stack.transpose(1, 2).contiguous().transpose(1, 2)}, path)
    else:
        np.savez(path, **{"mlp.experts.w": stack.numpy()})
    checkpoint = only(path)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda index: checkpoint.load("mlp.experts.w", index), [0, 1, 2, 3] * 20))
    for index, expert in enumerate(found):
        assert equal(expert, stack[index % 4])


@pytest.mark.parametrize(
    ("codes", "scales"),
    [
        # NVFP4: the table of scales is float8 itself.
        (
            torch.ones(16, 16).byte(),
            {"scale": torch.rand(16, 2).to(torch.float8_e4m3fn), "scale_2": torch.tensor(0.1)},
        ),
        # MXFP8: the scales are exponents.
        (torch.ones(4, 64).to(torch.float8_e4m3fn), {"scale": torch.full((4, 2), 120).byte()}),
        # Groups of a size that nothing states; 128 would fit their number.
        (torch.ones(4, 192).to(torch.int8), {"scale": torch.tensor([[1.0, 3.0]] * 4)}),
    ],
)
def test_scales_that_are_not_understood(tmp_path: Path, codes: torch.Tensor, scales: dict[str, torch.Tensor]) -> None:
    named = {f"fc.weight_{name}": scale for name, scale in scales.items()}
    save_file({"fc.weight": codes, **named}, tmp_path / "m.safetensors")
    checkpoint = only(tmp_path / "m.safetensors")
    assert matrices_of(checkpoint) == []
    assert list(refused(checkpoint)) == ["fc.weight"]
    assert all(checkpoint.tensors[name].kind == "part" for name in named)


def test_int8_with_a_scale(tmp_path: Path) -> None:
    codes, scale = torch.randint(-127, 128, (6, 4)).to(torch.int8), torch.rand(6, 1)
    save_file({"w.weight": codes, "w.weight_scale": scale}, tmp_path / "m.safetensors")
    assert equal(only(tmp_path / "m.safetensors").load("w.weight"), codes.double() * scale.double())
    save_file(
        {"w.weight": codes, "w.weight_scale": scale, "w.weight_zero_point": torch.ones(6, 1)},
        tmp_path / "m.safetensors",
    )
    assert "zero point" in refused(only(tmp_path / "m.safetensors"))["w.weight"]
