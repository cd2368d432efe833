"""GPT-NeoX and Pythia: q, k and v interleaved head by head, attention and MLP in parallel. BLOOM: the same, serial."""

from .blocks import Attention, Perceptron
from .layouts import interleaved
from .transformer import Transformer

MLP = Perceptron(up=("mlp.dense_h_to_4h",), down="mlp.dense_4h_to_h")

FAMILY = Transformer(
    "GPT-NeoX",
    sublayers=(
        (Attention(fused="attention.query_key_value", output="attention.dense", layout=interleaved),),
        (MLP,),
    ),
    embeddings=("embed_in",),
    model_types=("gpt_neox",),
    unembedding=("embed_out",),
    parallel=lambda facts: facts.flag("use_parallel_residual", True),
)
BLOOM = Transformer(
    "BLOOM",
    sublayers=(
        (Attention(fused="self_attention.query_key_value", output="self_attention.dense", layout=interleaved),),
        (MLP,),
    ),
    embeddings=("word_embeddings",),
    model_types=("bloom",),
    tied=("bloom",),
    known_by_names=False,  # Falcon has the same
)
