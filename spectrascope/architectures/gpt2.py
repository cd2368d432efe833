"""GPT-2 and its kin: q, k and v one after the other. Hugging Face stores weights (in, out), nanoGPT (out, in)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..tensors import TensorInfo
from .blocks import Attention, Perceptron
from .facts import Facts
from .layouts import thirds
from .transformer import Transformer

CONV1D = ("attn.c_attn", "attn.c_proj", "crossattention.c_attn", "crossattention.c_proj", "crossattention.q_attn")
CONV1D_MLP = ("mlp.c_fc", "mlp.c_proj")
MODEL_TYPES = ("gpt2", "openai-gpt", "imagegpt", "decision_transformer")


def conv1d_weights(tensors: Mapping[str, TensorInfo], facts: Facts) -> Iterable[str]:
    """The weights that are Conv1D's, (in, out): all or none of a model.

    A bias is as long as the output; c_attn writes three times what it reads; else config.json says so.
    """
    tails = [f".{name}.weight" for name in (*CONV1D, *CONV1D_MLP)]
    names = [name for name in tensors if any(f".{name}".endswith(tail) for tail in tails)]
    votes = [vote for name in names if (vote := _is_input_first(tensors, name)) is not None]
    is_said = not {*facts.model_types}.isdisjoint(MODEL_TYPES)
    return names if (sum(votes) * 2 > len(votes) if votes else is_said) else []


def _is_input_first(tensors: Mapping[str, TensorInfo], name: str) -> bool | None:
    first, second = tensors[name].shape[0], tensors[name].shape[-1]
    bias = tensors.get(name.removesuffix("weight") + "bias")
    if first == second:
        return None
    if bias is not None and len(bias.shape) == 1:
        return bool(bias.shape[0] == second)
    return second == 3 * first if name.endswith("c_attn.weight") and 3 in (first / second, second / first) else None


FAMILY = Transformer(
    "GPT-2",
    sublayers=(
        (Attention(fused="attn.c_attn", output="attn.c_proj", layout=thirds),),
        (Attention(query="crossattention.q_attn", output="crossattention.c_proj", reads_encoder=True),),
        (Perceptron(up=("mlp.c_fc",), down="mlp.c_proj"),),
    ),
    embeddings=("wte", "tokens_embed"),
    model_types=MODEL_TYPES,
    tied=MODEL_TYPES,
    outputs=(("score",),),
    stored_input_first=conv1d_weights,
)
