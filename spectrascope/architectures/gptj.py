"""GPT-J and Phi: attention and MLP in parallel, queries, keys and values apart."""

from .blocks import Attention, Perceptron
from .transformer import Transformer

FAMILY = Transformer(
    "GPT-J",
    sublayers=(
        (Attention(query="attn.q_proj", key="attn.k_proj", value="attn.v_proj", output="attn.out_proj"),),
        (Perceptron(up=("mlp.fc_in",), down="mlp.fc_out"),),
    ),
    embeddings=("wte",),
    model_types=("gptj",),
    parallel=lambda facts: True,
)
PHI = Transformer(
    "Phi",
    sublayers=(
        (
            Attention(
                query="self_attn.q_proj",
                key="self_attn.k_proj",
                value="self_attn.v_proj",
                output="self_attn.dense",
            ),
        ),
        (Perceptron(up=("mlp.fc1",), down="mlp.fc2"),),
    ),
    embeddings=("embed_tokens",),
    model_types=("phi",),
    parallel=lambda facts: True,
)
