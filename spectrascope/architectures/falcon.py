"""Falcon: three ways to fuse q, k and v, attention and MLP in parallel in most models."""

from __future__ import annotations

from .facts import Facts
from .layouts import LayoutUnknown, Parts, Rows, grouped, interleaved
from .transformer import Attention, Perceptron, Transformer


def layout(rows: int, output: int | None, facts: Facts) -> Parts:
    """Of the new architecture by groups of heads; else all queries and one key and value, or interleaved by head."""
    if facts.flag("new_decoder_architecture", False):
        return grouped(rows, output, facts)
    if not facts.flag("multi_query", True):
        return interleaved(rows, output, facts)
    if facts.heads is None or rows % (facts.heads + 2):
        raise LayoutUnknown(f"{facts.heads} heads with one key and value do not divide {rows} rows")
    size = rows // (facts.heads + 2)
    ends = [0, facts.heads * size, (facts.heads + 1) * size, rows]
    return {part: Rows(1, ends[i], ends[i + 1]) for i, part in enumerate("qkv")}


MODEL_TYPES = ("falcon", "RefinedWeb", "RefinedWebModel")

FAMILY = Transformer(
    "Falcon",
    sublayers=(
        (Attention(fused="self_attention.query_key_value", output="self_attention.dense", layout=layout),),
        (Perceptron(up=("mlp.dense_h_to_4h",), down="mlp.dense_4h_to_h"),),
    ),
    embeddings=("word_embeddings",),
    model_types=MODEL_TYPES,
    parallel=lambda facts: facts.flag("new_decoder_architecture", False) or facts.flag("parallel_attn", True),
    tied=MODEL_TYPES,
    known_by_names=False,  # BLOOM has the same
    outputs=(("score",),),
)
