"""OPT: queries, keys and values apart, an MLP without a name of its own, projections around narrow embeddings.

The second attention is that of encoders and decoders with its names, such as BART.
"""

from .blocks import Attention, Perceptron
from .transformer import Transformer

MODEL_TYPES = ("opt",)

FAMILY = Transformer(
    "OPT",
    sublayers=(
        (
            Attention(
                query="self_attn.q_proj",
                key="self_attn.k_proj",
                value="self_attn.v_proj",
                output="self_attn.out_proj",
            ),
        ),
        (
            Attention(
                query="encoder_attn.q_proj",
                key="encoder_attn.k_proj",
                value="encoder_attn.v_proj",
                output="encoder_attn.out_proj",
                reads_encoder=True,
            ),
        ),
        (Perceptron(up=("fc1",), down="fc2"),),
    ),
    embeddings=("embed_tokens",),
    model_types=MODEL_TYPES,
    projection_in="project_in",
    before_unembedding=("project_out",),
    tied=MODEL_TYPES,
    outputs=(("score",),),
)
