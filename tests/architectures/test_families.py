"""Every pair that SPEC section 3 names is there, and none guessed, in checkpoints that the families' library wrote."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from conftest import STORE
from reference import svd
from safetensors.torch import load_file, save_file

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

SMALL = {
    "vocab_size": 24,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
GROUPED = SMALL | {"num_key_value_heads": 2}
GPT2 = {
    "vocab_size": 24,
    "n_embd": 16,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 12,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
OPT = {
    **{"vocab_size": 24, "hidden_size": 16, "ffn_dim": 24, "num_hidden_layers": 2, "num_attention_heads": 4},
    "max_position_embeddings": 12,
}
T5 = {"vocab_size": 24, "d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 2, "num_heads": 4}
VIT = {k: v for k, v in SMALL.items() if k != "vocab_size"} | {"image_size": 8, "patch_size": 4}


@dataclass
class Expected:
    """The names of a model's matrices, without `.weight`, as its own library gives them; `{}` is the block."""

    query: str = ""
    key: str = ""
    value: str = ""
    fused: str = ""
    output: str = ""
    up: Sequence[str] = ()
    down: Sequence[str] = ()
    embedding: str = ""
    last: Sequence[str] = ()
    parallel: bool = False
    whole: bool = True
    more: set[str] = field(default_factory=set)

    def pairs(self, blocks: int = 2) -> set[str]:
        """SPEC section 3, row by row."""
        found = set(self.more)
        for block in range(blocks):
            here, then = self._at(block), self._at(block + 1)
            q, k, v = here["qkv"]
            found |= {f"{with_part(q, 'head')}->{with_part(k, 'head')}"}
            found |= {f"{with_part(v, 'head')}->{here['o']}[head]"}
            found |= {f"{v}->{here['o']}"} if self.whole else set()
            found |= {f"{up}->{down}" for up, down in zip(here["up"], here["down"], strict=True)}
            if not self.parallel:
                found |= {f"{here['o']}->{up}" for up in here["up"]}
            writers = [*here["down"], *([here["o"]] if self.parallel else [])]
            readers = [*then["reads"], *(then["up"] if self.parallel else [])]
            if block + 1 < blocks:
                found |= {f"{writer}->{reader}" for writer in writers for reader in readers}
            elif self.last:
                found |= {f"{down}->{self.last[0]}" for down in here["down"]}
        found |= {f"{self.embedding}->{reader}" for reader in self._at(0)["reads"]}
        return found | {f"{one}->{other}" for one, other in zip(self.last, self.last[1:], strict=False)}

    def _at(self, block: int) -> dict[str, Any]:
        names = [self.query, self.key, self.value]
        fused = [self.fused.format(block)] if self.fused else []
        apart = [name.format(block) for name in names]
        return {
            "qkv": [f"{fused[0]}[{part}]" for part in "qkv"] if fused else apart,
            "reads": fused or apart,
            "o": self.output.format(block),
            "up": [name.format(block) for name in self.up],
            "down": [name.format(block) for name in self.down],
        }


def with_part(name: str, part: str) -> str:
    return f"{name[:-1]},{part}]" if name.endswith("]") else f"{name}[{part}]"


def gated(path: str = "model.layers.{}.mlp") -> dict[str, Any]:
    return {"up": [f"{path}.gate_proj", f"{path}.up_proj"], "down": [f"{path}.down_proj"] * 2}


def apart(path: str, names: Sequence[str] = ("q_proj", "k_proj", "v_proj", "o_proj")) -> dict[str, str]:
    return {role: f"{path}.{name}" for role, name in zip(("query", "key", "value", "output"), names, strict=True)}


LLAMA = {**apart("model.layers.{}.self_attn"), **gated(), "embedding": "model.embed_tokens", "whole": False}
TIED = ["model.embed_tokens"]
HEAD = ["lm_head"]
BERT = {
    **apart("bert.encoder.layer.{}.attention", ("self.query", "self.key", "self.value", "output.dense")),
    "up": ["bert.encoder.layer.{}.intermediate.dense"],
    "down": ["bert.encoder.layer.{}.output.dense"],
    "embedding": "bert.embeddings.word_embeddings",
}
FALCON = {
    "fused": "transformer.h.{}.self_attention.query_key_value",
    "output": "transformer.h.{}.self_attention.dense",
    "up": ["transformer.h.{}.mlp.dense_h_to_4h"],
    "down": ["transformer.h.{}.mlp.dense_4h_to_h"],
    "embedding": "transformer.word_embeddings",
    "last": ["transformer.word_embeddings"],
}


def falcon(**more: Any) -> Any:
    sizes = {k: v for k, v in SMALL.items() if k != "intermediate_size"}
    return transformers.FalconForCausalLM(transformers.FalconConfig(**sizes, **more))


def t5_attention(block: str) -> set[str]:
    return {
        f"{block}.q[head]->{block}.k[head]",
        f"{block}.v[head]->{block}.o[head]",
        f"{block}.v->{block}.o",
    }


def t5_pairs(ups: Sequence[str]) -> set[str]:
    """Encoder, decoder, and the decoder's reading of the encoder, written out from the architecture."""
    found = {f"shared->{side}.block.0.layer.0.SelfAttention.{x}" for side in ("encoder", "decoder") for x in "qkv"}
    for i in range(2):
        encoder, decoder = f"encoder.block.{i}.layer", f"decoder.block.{i}.layer"
        for attention in (f"{encoder}.0.SelfAttention", f"{decoder}.0.SelfAttention", f"{decoder}.1.EncDecAttention"):
            found |= t5_attention(attention)
        found |= {f"encoder.block.1.layer.1.DenseReluDense.wo->{decoder}.1.EncDecAttention.{x}" for x in "kv"}
        found |= {f"{decoder}.0.SelfAttention.o->{decoder}.1.EncDecAttention.q"}
        for up in ups:
            found |= {f"{encoder}.0.SelfAttention.o->{encoder}.1.DenseReluDense.{up}"}
            found |= {f"{encoder}.1.DenseReluDense.{up}->{encoder}.1.DenseReluDense.wo"}
            found |= {f"{decoder}.1.EncDecAttention.o->{decoder}.2.DenseReluDense.{up}"}
            found |= {f"{decoder}.2.DenseReluDense.{up}->{decoder}.2.DenseReluDense.wo"}
    for x in "qkv":
        found |= {f"encoder.block.0.layer.1.DenseReluDense.wo->encoder.block.1.layer.0.SelfAttention.{x}"}
        found |= {f"decoder.block.0.layer.2.DenseReluDense.wo->decoder.block.1.layer.0.SelfAttention.{x}"}
    return found | {"decoder.block.1.layer.2.DenseReluDense.wo->shared"}


def experts(path: str, count: int = 3, names: Sequence[str] = ("gate_proj", "up_proj", "down_proj")) -> dict[str, Any]:
    ups = [f"{path}.{e}.{name}" for e in range(count) for name in names[:2]]
    return {"up": ups, "down": [f"{path}.{e}.{names[2]}" for e in range(count) for _ in range(2)]}


def stacked(path: str) -> dict[str, Any]:
    ups = [f"{path}.gate_up_proj[{e},{part}]" for e in range(3) for part in ("gate", "up")]
    return {"up": ups, "down": [f"{path}.down_proj[{e}]" for e in range(3) for _ in range(2)]}


T = transformers
FAMILIES: dict[str, tuple[Callable[[], Any], Expected | set[str]]] = {
    "gpt2": (
        lambda: T.GPT2LMHeadModel(T.GPT2Config(**GPT2)),
        Expected(
            fused="transformer.h.{}.attn.c_attn",
            output="transformer.h.{}.attn.c_proj",
            up=["transformer.h.{}.mlp.c_fc"],
            down=["transformer.h.{}.mlp.c_proj"],
            embedding="transformer.wte",
            last=["transformer.wte"],
        ),
    ),
    "gpt_bigcode": (
        lambda: T.GPTBigCodeForCausalLM(T.GPTBigCodeConfig(**GPT2)),
        Expected(
            fused="transformer.h.{}.attn.c_attn",
            output="transformer.h.{}.attn.c_proj",
            up=["transformer.h.{}.mlp.c_fc"],
            down=["transformer.h.{}.mlp.c_proj"],
            embedding="transformer.wte",
            last=["transformer.wte"],
            whole=False,
        ),
    ),
    "gpt_neox": (
        lambda: T.GPTNeoXForCausalLM(T.GPTNeoXConfig(**SMALL)),
        Expected(
            fused="gpt_neox.layers.{}.attention.query_key_value",
            output="gpt_neox.layers.{}.attention.dense",
            up=["gpt_neox.layers.{}.mlp.dense_h_to_4h"],
            down=["gpt_neox.layers.{}.mlp.dense_4h_to_h"],
            embedding="gpt_neox.embed_in",
            last=["embed_out"],
            parallel=True,
        ),
    ),
    "gpt_neox_serial": (
        lambda: T.GPTNeoXForCausalLM(T.GPTNeoXConfig(**SMALL, use_parallel_residual=False)),
        Expected(
            fused="gpt_neox.layers.{}.attention.query_key_value",
            output="gpt_neox.layers.{}.attention.dense",
            up=["gpt_neox.layers.{}.mlp.dense_h_to_4h"],
            down=["gpt_neox.layers.{}.mlp.dense_4h_to_h"],
            embedding="gpt_neox.embed_in",
            last=["embed_out"],
        ),
    ),
    "bloom": (
        lambda: T.BloomForCausalLM(T.BloomConfig(vocab_size=24, hidden_size=16, n_layer=2, n_head=4)),
        Expected(**FALCON),
    ),
    "gptj": (
        lambda: T.GPTJForCausalLM(T.GPTJConfig(**GPT2, rotary_dim=4)),
        Expected(
            **apart("transformer.h.{}.attn", ("q_proj", "k_proj", "v_proj", "out_proj")),
            up=["transformer.h.{}.mlp.fc_in"],
            down=["transformer.h.{}.mlp.fc_out"],
            embedding="transformer.wte",
            last=HEAD,
            parallel=True,
        ),
    ),
    "phi": (
        lambda: T.PhiForCausalLM(T.PhiConfig(**SMALL)),
        Expected(
            **apart("model.layers.{}.self_attn", ("q_proj", "k_proj", "v_proj", "dense")),
            up=["model.layers.{}.mlp.fc1"],
            down=["model.layers.{}.mlp.fc2"],
            embedding="model.embed_tokens",
            last=HEAD,
            parallel=True,
        ),
    ),
    "llama": (lambda: T.LlamaForCausalLM(T.LlamaConfig(**GROUPED)), Expected(**LLAMA, last=HEAD)),
    "mistral": (lambda: T.MistralForCausalLM(T.MistralConfig(**GROUPED)), Expected(**LLAMA, last=HEAD)),
    "qwen2": (lambda: T.Qwen2ForCausalLM(T.Qwen2Config(**GROUPED)), Expected(**LLAMA, last=HEAD)),
    "qwen3": (lambda: T.Qwen3ForCausalLM(T.Qwen3Config(**GROUPED, head_dim=8)), Expected(**LLAMA, last=HEAD)),
    "gemma": (lambda: T.GemmaForCausalLM(T.GemmaConfig(**GROUPED, head_dim=8)), Expected(**LLAMA, last=TIED)),
    "gemma2": (lambda: T.Gemma2ForCausalLM(T.Gemma2Config(**GROUPED, head_dim=8)), Expected(**LLAMA, last=TIED)),
    "olmo": (lambda: T.OlmoForCausalLM(T.OlmoConfig(**GROUPED)), Expected(**LLAMA, last=HEAD)),
    "olmo2": (lambda: T.Olmo2ForCausalLM(T.Olmo2Config(**GROUPED)), Expected(**LLAMA, last=HEAD)),
    "phi3": (
        lambda: T.Phi3ForCausalLM(T.Phi3Config(**GROUPED, pad_token_id=0)),
        Expected(
            fused="model.layers.{}.self_attn.qkv_proj",
            output="model.layers.{}.self_attn.o_proj",
            up=["model.layers.{}.mlp.gate_up_proj[gate]", "model.layers.{}.mlp.gate_up_proj[up]"],
            down=["model.layers.{}.mlp.down_proj"] * 2,
            embedding="model.embed_tokens",
            last=HEAD,
            whole=False,
        ),
    ),
    "bert": (
        lambda: T.BertForMaskedLM(T.BertConfig(**SMALL)),
        Expected(**BERT, last=["cls.predictions.transform.dense", "bert.embeddings.word_embeddings"]),
    ),
    "bert_classifier": (
        lambda: T.BertForSequenceClassification(T.BertConfig(**SMALL)),
        Expected(**BERT, last=["bert.pooler.dense", "classifier"]),
    ),
    "roberta": (
        lambda: T.RobertaForMaskedLM(T.RobertaConfig(**SMALL)),
        Expected(
            **{
                name: value.replace("bert", "roberta")
                if isinstance(value, str)
                else [value[0].replace("bert", "roberta")]
                for name, value in BERT.items()
            },
            last=["lm_head.dense", "roberta.embeddings.word_embeddings"],
        ),
    ),
    "opt": (
        lambda: T.OPTForCausalLM(T.OPTConfig(**OPT, word_embed_proj_dim=16)),
        Expected(
            **apart("model.decoder.layers.{}.self_attn", ("q_proj", "k_proj", "v_proj", "out_proj")),
            up=["model.decoder.layers.{}.fc1"],
            down=["model.decoder.layers.{}.fc2"],
            embedding="model.decoder.embed_tokens",
            last=["model.decoder.embed_tokens"],
        ),
    ),
    "opt_350m": (
        lambda: T.OPTForCausalLM(T.OPTConfig(**OPT, word_embed_proj_dim=8)),
        Expected(
            **apart("model.decoder.layers.{}.self_attn", ("q_proj", "k_proj", "v_proj", "out_proj")),
            up=["model.decoder.layers.{}.fc1"],
            down=["model.decoder.layers.{}.fc2"],
            embedding="model.decoder.project_in",
            last=["model.decoder.project_out", "model.decoder.embed_tokens"],
            more={"model.decoder.embed_tokens->model.decoder.project_in"},
        ),
    ),
    "falcon_7b": (falcon, Expected(**FALCON, parallel=True, whole=False)),
    "falcon_40b": (
        lambda: falcon(new_decoder_architecture=True, num_kv_heads=2),
        Expected(**FALCON, parallel=True, whole=False),
    ),
    "falcon_rw": (lambda: falcon(multi_query=False, parallel_attn=False, alibi=True), Expected(**FALCON)),
    "mpt": (
        lambda: T.MptForCausalLM(T.MptConfig(vocab_size=24, d_model=16, n_layers=2, n_heads=4, max_seq_len=12)),
        Expected(
            fused="transformer.blocks.{}.attn.Wqkv",
            output="transformer.blocks.{}.attn.out_proj",
            up=["transformer.blocks.{}.ffn.up_proj"],
            down=["transformer.blocks.{}.ffn.down_proj"],
            embedding="transformer.wte",
            last=["transformer.wte"],
        ),
    ),
    "vit": (
        lambda: T.ViTForImageClassification(T.ViTConfig(**VIT)),
        Expected(
            **apart(
                "vit.encoder.layer.{}.attention",
                ("attention.query", "attention.key", "attention.value", "output.dense"),
            ),
            up=["vit.encoder.layer.{}.intermediate.dense"],
            down=["vit.encoder.layer.{}.output.dense"],
            embedding="vit.embeddings.patch_embeddings.projection",
            last=["classifier"],
        ),
    ),
    "t5": (lambda: T.T5ForConditionalGeneration(T.T5Config(**T5)), t5_pairs(["wi"])),
    "t5_gated": (
        lambda: T.T5ForConditionalGeneration(T.T5Config(**T5, feed_forward_proj="gated-gelu")),
        t5_pairs(["wi_0", "wi_1"]),
    ),
    "mixtral": (
        lambda: T.MixtralForCausalLM(T.MixtralConfig(**GROUPED, num_local_experts=3)),
        Expected(**LLAMA | experts("model.layers.{}.block_sparse_moe.experts", names=("w1", "w3", "w2")), last=HEAD),
    ),
    "qwen2_moe": (
        lambda: T.Qwen2MoeForCausalLM(
            T.Qwen2MoeConfig(**GROUPED, num_experts=3, moe_intermediate_size=12, shared_expert_intermediate_size=24)
        ),
        Expected(
            **LLAMA
            | {
                key: experts("model.layers.{}.mlp.experts")[key] + gated("model.layers.{}.mlp.shared_expert")[key]
                for key in ("up", "down")
            },
            last=HEAD,
        ),
    ),
    "gpt_oss": (
        lambda: T.GptOssForCausalLM(
            T.GptOssConfig(**GROUPED, num_local_experts=3, head_dim=4, layer_types=["full_attention"] * 2)
        ),
        Expected(**LLAMA | stacked("model.layers.{}.mlp.experts"), last=HEAD),
    ),
    "llama4": (
        lambda: T.Llama4ForCausalLM(
            T.Llama4TextConfig(**GROUPED, num_local_experts=3, intermediate_size_mlp=24, head_dim=4)
        ),
        Expected(
            **LLAMA
            | {
                key: stacked("model.layers.{}.feed_forward.experts")[key]
                + gated("model.layers.{}.feed_forward.shared_expert")[key]
                for key in ("up", "down")
            },
            last=HEAD,
        ),
    ),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, bool], Path]:
    """A model of a family as `save_pretrained` writes it, in one file or in shards."""
    folder = tmp_path_factory.mktemp("families")

    def save(name: str, sharded: bool) -> Path:
        path = folder / f"{name}{'-sharded' if sharded else ''}"
        if not path.exists():
            torch.manual_seed(0)
            FAMILIES[name][0]().save_pretrained(path, **({"max_shard_size": "4KB"} if sharded else {}))
        return path

    return save


@pytest.mark.parametrize("sharded", [False, True], ids=["whole", "sharded"])
@pytest.mark.parametrize("name", FAMILIES)
def test_every_pair_is_there_and_none_guessed(name: str, sharded: bool, saved: Any, cli: Any) -> None:
    path = saved(name, sharded)
    assert (len(list(path.glob("*.safetensors"))) > 1) == sharded
    rows = cli("show", path, "--pairs", "--format", "json").json["rows"]
    expected = FAMILIES[name][1]
    wanted = expected.pairs() if isinstance(expected, Expected) else expected
    assert {row["pair"].replace(".weight", "") for row in rows} == wanted
    assert len(rows) == len(wanted)
    assert not any(row["guessed"] or row["reason"] for row in rows)


def matrix_of(name: str, tensors: dict[str, torch.Tensor], family: str) -> Any:
    """A matrix (out, in) by its name here, from what the library wrote: how it is stored is a fact of its code."""
    stored, _, part = name.partition("[")
    tensor = tensors[stored].double()
    parts = part.rstrip("]").split(",") if part else []
    if parts and parts[0].isdecimal():  # an expert of a stack
        tensor = tensor[int(parts.pop(0))]
    if (family == "gpt2" and "wte" not in name) or (family in ("gpt_oss", "llama4") and ".experts." in name):
        tensor = tensor.T
    tensor = tensor.reshape(tensor.shape[0], -1)
    if parts == ["gate"]:
        return tensor[0::2] if family == "gpt_oss" else tensor[: len(tensor) // 2]
    if parts == ["up"]:
        return tensor[1::2] if family == "gpt_oss" else tensor[len(tensor) // 2 :]
    assert not parts, name
    return tensor


@pytest.mark.parametrize("name", FAMILIES)
def test_every_pair_has_its_score(name: str, saved: Any, cli: Any, tmp_path: Path) -> None:
    """All pairs but those of heads (test_layouts.py) and of parts of attention, by NumPy from the file."""
    done = cli("analyze", saved(name, True), "-o", tmp_path / STORE, "--quiet")
    assert done.code == 0
    rows = cli("align", tmp_path / STORE, "--format", "json").json["rows"]
    tensors = load_file(saved(name, False) / "model.safetensors")
    checked = 0
    for row in rows:
        assert (row["per_head"] is None) == (row["kind"] not in ("q_k", "v_o"))
        if row["kind"] in ("q_k", "v_o", "v_o_whole"):
            assert row["score"] is not None
            continue
        (one, other) = (matrix_of(side, tensors, name) for side in row["pair"].split("->"))
        writes_right = row["kind"].startswith("embedding") and "project_in" not in row["pair"].split("->")[0]
        is_table = writes_right and "patch" not in row["pair"]
        u, v = svd(one)[2 if is_table else 0], svd(other)[2]
        count = min(u.shape[1], v.shape[1], 10)
        assert row["score"] == pytest.approx(np.abs((u[:, :count] * v[:, :count]).sum(axis=0)).mean(), abs=1e-6), row
        checked += 1
    assert checked >= 7
    assert {len(row["per_head"]) for row in rows if row["per_head"]} == {4}


# Names alone do not tell these from another family, or how their stacks are stored.
NEED_CONFIG = ("bloom", "falcon_7b", "falcon_40b", "falcon_rw", "gpt_bigcode", "gpt_neox_serial", "gpt_oss", "llama4")


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in NEED_CONFIG])
def test_names_tell_the_family(name: str, saved: Any, cli: Any, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes((saved(name, False) / "model.safetensors").read_bytes())
    rows = cli("show", tmp_path, "--pairs", "--heads", "4", "--format", "json").json["rows"]
    expected = FAMILIES[name][1]
    wanted = expected.pairs() if isinstance(expected, Expected) else expected
    missing = wanted - {row["pair"].replace(".weight", "") for row in rows}
    # Without config.json nothing says that the embedding is the unembedding.
    assert all(pair.endswith((".wte", ".embed_tokens", "->shared")) for pair in missing)
    assert len(rows) == len(wanted) - len(missing)
    assert not any(row["guessed"] or row["reason"] for row in rows)


@pytest.mark.parametrize("name", ["falcon_7b", "bloom"])
def test_what_names_do_not_tell_is_a_guess(name: str, saved: Any, cli: Any, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes((saved(name, False) / "model.safetensors").read_bytes())
    rows = cli("show", tmp_path, "--pairs", "--heads", "4", "--format", "json").json["rows"]
    assert rows
    assert all(row["guessed"] for row in rows)


def test_names_of_one_family_and_a_type_that_is_not_known(saved: Any, cli: Any, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes((saved("llama", False) / "model.safetensors").read_bytes())
    (tmp_path / "config.json").write_text('{"model_type": "command-x", "num_attention_heads": 4}')
    rows = cli("show", tmp_path, "--pairs", "--format", "json").json["rows"]
    assert {row["pair"] for row in rows} >= {"model.layers.0.mlp.up_proj.weight->model.layers.0.mlp.down_proj.weight"}
    assert all(row["guessed"] for row in rows)


def test_a_tower_beside_the_text_has_no_heads_of_the_text(saved: Any, cli: Any, tmp_path: Path) -> None:
    text = load_file(saved("llama", False) / "model.safetensors")
    tower = {f"vision_tower.{name}": tensor.clone() for name, tensor in text.items() if "layers" in name}
    save_file(
        {f"language_model.{name}": tensor for name, tensor in text.items()} | tower, tmp_path / "model.safetensors"
    )
    config = {"model_type": "x", "text_config": {"model_type": "llama", "num_attention_heads": 4}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    rows = cli("show", tmp_path, "--pairs", "--format", "json").json["rows"]
    of_tower = [row for row in rows if row["pair"].startswith("vision")]
    assert {row["kind"] for row in of_tower if row["reason"]} == {"q_k", "v_o"}
    assert all("tells that of the text" in row["reason"] for row in of_tower if row["reason"])
    assert not any("embed_tokens" in row["pair"] and "vision" in row["pair"] for row in rows)
    assert {row["heads"] for row in rows if row["kind"] == "q_k" and row not in of_tower} == {4}


def test_without_config_heads_are_not_guessed(saved: Any, cli: Any, tmp_path: Path) -> None:
    for name in ("gpt_neox", "llama", "gpt2"):
        path = tmp_path / name
        path.mkdir()
        (path / "model.safetensors").write_bytes((saved(name, False) / "model.safetensors").read_bytes())
        rows = cli("show", path, "--pairs", "--format", "json").json["rows"]
        skipped = {row["kind"] for row in rows if row["reason"]}
        assert skipped == {"q_k", "v_o"} | ({"v_o_whole"} if name == "gpt_neox" else set())
        assert all("--heads N" in row["reason"] for row in rows if row["reason"])
        again = cli("show", path, "--pairs", "--heads", "4", "--format", "json").json["rows"]
        assert [row["pair"] for row in again] == [row["pair"] for row in rows]
        # Without config.json nothing says that GPT-2's embedding is its unembedding.
        assert not any(row["reason"] or row["guessed"] for row in again)


def test_heads_that_contradict_config_json(saved: Any, cli: Any, tmp_path: Path) -> None:
    found = cli("analyze", saved("llama", False), "--heads", "8", "-o", tmp_path / STORE)
    assert found.code == 2
    assert "--heads 8 contradicts config.json, whose num_attention_heads is 4" in found.err
