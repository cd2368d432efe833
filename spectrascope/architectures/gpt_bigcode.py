"""StarCoder and GPT-BigCode: GPT-2's names, Linears, and one key and value for all heads in most models."""

from __future__ import annotations

from .blocks import Attention, Perceptron
from .facts import Facts
from .layouts import Parts, interleaved, one_key
from .transformer import Transformer


def layout(rows: int, output: int | None, facts: Facts) -> Parts:
    """One key and value, or head by head."""
    return one_key(rows, output, facts) if facts.flag("multi_query", True) else interleaved(rows, output, facts)


FAMILY = Transformer(
    "GPT-BigCode",
    sublayers=(
        (Attention(fused="attn.c_attn", output="attn.c_proj", layout=layout),),
        (Perceptron(up=("mlp.c_fc",), down="mlp.c_proj"),),
    ),
    embeddings=("wte",),
    model_types=("gpt_bigcode",),
    tied=("gpt_bigcode",),
    known_by_names=False,  # GPT-2 has the same
)
