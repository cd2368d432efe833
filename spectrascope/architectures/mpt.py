"""MPT: q, k and v one after the other, keys and values of groups of heads in some models."""

from .blocks import Attention, Perceptron
from .layouts import concatenated
from .transformer import Transformer

MODEL_TYPES = ("mpt",)

FAMILY = Transformer(
    "MPT",
    sublayers=(
        (Attention(fused="attn.Wqkv", output="attn.out_proj", layout=concatenated),),
        (Perceptron(up=("ffn.up_proj",), down="ffn.down_proj"),),
    ),
    embeddings=("wte",),
    model_types=MODEL_TYPES,
    tied=MODEL_TYPES,
)
