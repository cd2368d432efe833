"""Queries, keys and values are cut out of fused projections as the models themselves split them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from conftest import STORE, mat
from reference import svd
from safetensors.torch import save_file

from spectrascope.architectures.facts import Facts, read_facts
from spectrascope.architectures.layouts import LayoutUnknown, concatenated, grouped, interleaved, one_key, thirds

T = transformers
HEADS, WIDTH = 4, 16


def falcon(**more: Any) -> Any:
    config = T.FalconConfig(vocab_size=24, hidden_size=WIDTH, num_hidden_layers=1, num_attention_heads=HEADS, **more)
    return T.FalconForCausalLM(config)


def split_by_falcon(model: Any) -> tuple[Any, Any, Any]:
    """(d, heads, size) of queries, keys and values: the model's own split, of an identity that goes through W."""
    attention = model.transformer.h[0].self_attention
    fused = attention.query_key_value.weight.T[None]
    q, k, v = (part[0].detach() for part in attention._split_heads(fused))
    return q, k.expand_as(q), v.expand_as(q)


def split_neox(weight: torch.Tensor) -> Any:
    """As GPTNeoXAttention does: a view of (heads, 3 size), cut in three."""
    return weight.T.view(WIDTH, HEADS, -1).chunk(3, dim=-1)


def split_thirds(weight: torch.Tensor) -> Any:
    """As GPT-2 and MPT do: a third each, then heads."""
    return [part.reshape(WIDTH, HEADS, -1) for part in weight.T.chunk(3, dim=-1)]


def split_llama(layer: Any) -> Any:
    weights = (layer.self_attn.q_proj.weight, layer.self_attn.k_proj.weight, layer.self_attn.v_proj.weight)
    q, k, v = (weight.T.reshape(WIDTH, -1, WIDTH // HEADS) for weight in weights)
    # repeat_kv of the library: each key and value for the queries of its group.
    return q, *(part.repeat_interleave(HEADS // part.shape[1], dim=1) for part in (k, v))


def small(**more: Any) -> dict[str, Any]:
    return {"vocab_size": 24, "hidden_size": WIDTH, "num_hidden_layers": 1, "num_attention_heads": HEADS} | more


def gpt2() -> Any:
    sizes = {"vocab_size": 24, "n_embd": WIDTH, "n_layer": 1, "n_head": HEADS, "bos_token_id": 0, "eos_token_id": 0}
    return T.GPT2LMHeadModel(T.GPT2Config(**sizes))


MODELS: dict[str, tuple[Any, Any, Any]] = {
    "falcon_7b": (falcon, split_by_falcon, lambda m: m.transformer.h[0].self_attention.dense.weight),
    "falcon_40b": (
        lambda: falcon(new_decoder_architecture=True, num_kv_heads=2),
        split_by_falcon,
        lambda m: m.transformer.h[0].self_attention.dense.weight,
    ),
    "falcon_rw": (
        lambda: falcon(multi_query=False, parallel_attn=False, alibi=True),
        split_by_falcon,
        lambda m: m.transformer.h[0].self_attention.dense.weight,
    ),
    "gpt_neox": (
        lambda: T.GPTNeoXForCausalLM(T.GPTNeoXConfig(**small(intermediate_size=24))),
        lambda m: split_neox(m.gpt_neox.layers[0].attention.query_key_value.weight),
        lambda m: m.gpt_neox.layers[0].attention.dense.weight,
    ),
    "gpt2": (
        gpt2,
        lambda m: split_thirds(m.transformer.h[0].attn.c_attn.weight.T),
        lambda m: m.transformer.h[0].attn.c_proj.weight.T,
    ),
    "mpt": (
        lambda: T.MptForCausalLM(T.MptConfig(vocab_size=24, d_model=WIDTH, n_layers=1, n_heads=HEADS, max_seq_len=12)),
        lambda m: split_thirds(m.transformer.blocks[0].attn.Wqkv.weight),
        lambda m: m.transformer.blocks[0].attn.out_proj.weight,
    ),
    "llama": (
        lambda: T.LlamaForCausalLM(T.LlamaConfig(**small(intermediate_size=24, num_key_value_heads=2))),
        lambda m: split_llama(m.model.layers[0]),
        lambda m: m.model.layers[0].self_attn.o_proj.weight,
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_heads_are_those_of_the_model(name: str, cli: Any, tmp_path: Path) -> None:
    make, split, output = MODELS[name]
    torch.manual_seed(0)
    model = make()
    model.save_pretrained(tmp_path / "model")
    cli("analyze", tmp_path / "model", "-o", tmp_path / STORE, "--quiet")
    rows = {row["kind"]: row for row in cli("align", tmp_path / STORE, "--format", "json").json["rows"]}
    q, k, v = split(model)
    o = output(model).detach().reshape(WIDTH, HEADS, -1)
    for head in range(HEADS):
        read = {part: svd(weight[:, head].detach().T)[0] for part, weight in zip("qkv", (q, k, v), strict=True)}
        into_output = svd(o[:, head])[2]
        expected = (
            np.abs((read["q"] * read["k"]).sum(axis=0)).mean(),
            np.abs((read["v"] * into_output).sum(axis=0)).mean(),
        )
        assert rows["q_k"]["per_head"][head] == pytest.approx(expected[0], abs=1e-6)
        assert rows["v_o"]["per_head"][head] == pytest.approx(expected[1], abs=1e-6)
    assert rows["q_k"]["score"] == pytest.approx(np.mean(rows["q_k"]["per_head"]))


def test_layouts_by_rows() -> None:
    four, grouped_two = Facts(heads=4), Facts(heads=4, kv_heads=2)
    assert {part: (rows.start, rows.stop) for part, rows in thirds(12, 4, Facts()).items()} == {
        "q": (0, 4),
        "k": (4, 8),
        "v": (8, 12),
    }
    assert {part: rows.count for part, rows in concatenated(32, 16, Facts()).items()} == {"q": 16, "k": 8, "v": 8}
    assert {part: rows.count for part, rows in concatenated(32, None, grouped_two).items()} == {"q": 16, "k": 8, "v": 8}
    assert {part: rows.count for part, rows in grouped(32, 16, grouped_two).items()} == {"q": 16, "k": 8, "v": 8}
    assert {part: rows.count for part, rows in one_key(24, 16, four).items()} == {"q": 16, "k": 4, "v": 4}
    assert {part: (rows.groups, rows.start, rows.stop) for part, rows in interleaved(48, 16, four).items()} == {
        "q": (4, 0, 4),
        "k": (4, 4, 8),
        "v": (4, 8, 12),
    }


@pytest.mark.parametrize(
    ("layout", "rows", "output", "facts"),
    [
        (thirds, 16, None, Facts()),
        (thirds, 24, 4, Facts()),
        (concatenated, 17, 16, Facts()),
        (concatenated, 16, 16, Facts()),
        (interleaved, 48, 16, Facts()),
        (interleaved, 50, 16, Facts(heads=4)),
        (grouped, 32, 16, Facts(heads=4, kv_heads=3)),
        (one_key, 25, 16, Facts(heads=4)),
    ],
)
def test_layouts_that_cannot_be(layout: Any, rows: int, output: int | None, facts: Facts) -> None:
    with pytest.raises(LayoutUnknown):
        layout(rows, output, facts)


def test_facts_of_strange_configs() -> None:
    assert read_facts(None) == Facts()
    assert read_facts({"num_attention_heads": "12", "model_type": 3, "architectures": "x", "n_head": True}) == Facts()
    assert read_facts({"num_attention_heads": 0, "num_heads": -2}).heads is None
    nested = {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", "num_attention_heads": 8}}
    assert read_facts(nested) == Facts(("gemma3", "gemma3_text"), heads=8)
    assert read_facts({"attn_config": {"kv_n_heads": 2}, "n_heads": 4}, heads=4) == Facts(heads=4, kv_heads=2)


@pytest.mark.parametrize("heads", [3, 5, 100])
def test_heads_that_do_not_divide(heads: int, cli: Any, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    names = ("q_proj", "k_proj", "v_proj", "o_proj")
    weights = {
        f"model.layers.0.self_attn.{name}.weight": mat([2.0, 1.0], 16, 16, seed=i) for i, name in enumerate(names)
    }
    mlp = {f"model.layers.0.mlp.{name}_proj.weight": mat([2.0, 1.0], 16, 16) for name in ("gate", "up", "down")}
    save_file(weights | mlp, path)
    rows = cli("show", path, "--pairs", "--heads", str(heads), "--format", "json").json["rows"]
    reasons = {row["kind"]: row["reason"] for row in rows}
    assert f"{heads} heads do not divide the 16 rows" in reasons["q_k"]
    assert reasons["v_o"]
    assert reasons["v_o_whole"] is None
