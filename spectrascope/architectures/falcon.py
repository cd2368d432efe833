"""Falcon: three ways to fuse q, k and v, attention and MLP in parallel in most models."""

from __future__ import annotations

from .blocks import Attention, Perceptron
from .facts import Facts
from .layouts import Parts, grouped, interleaved, one_key
from .transformer import Transformer


def layout(rows: int, output: int | None, facts: Facts) -> Parts:
    """Of the new architecture by groups of heads; else all queries and one key and value, or interleaved by head."""
    if _is_grouped(facts):
        return grouped(rows, output, facts)
    if not facts.flag("multi_query", True):
        return interleaved(rows, output, facts)
    return one_key(rows, output, facts)


def _is_grouped(facts: Facts) -> bool:
    """That of Falcon 40B and later; the first config of 40B says it by its model type alone."""
    return facts.flag("new_decoder_architecture", "RefinedWeb" in facts.model_types)


MODEL_TYPES = ("falcon", "RefinedWeb", "RefinedWebModel")

FAMILY = Transformer(
    "Falcon",
    sublayers=(
        (Attention(fused="self_attention.query_key_value", output="self_attention.dense", layout=layout),),
        (Perceptron(up=("mlp.dense_h_to_4h",), down="mlp.dense_4h_to_h"),),
    ),
    embeddings=("word_embeddings",),
    model_types=MODEL_TYPES,
    parallel=lambda facts: _is_grouped(facts) or facts.flag("parallel_attn", True),
    tied=MODEL_TYPES,
    known_by_names=False,  # BLOOM has the same
    outputs=(("score",),),
)
