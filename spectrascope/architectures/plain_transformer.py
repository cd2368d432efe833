"""Transformers written by hand, in the names that people use for them: `attn.query`, `attn.wq`, `mlp.up`, ..."""

from .blocks import Attention, Perceptron
from .transformer import Transformer

LAYERS = ("attn", "attention", "self_attn", "self_attention", "mha")
CROSS = ("cross_attn", "cross_attention", "crossattention", "encoder_attn", "enc_attn", "multihead_attn")
QUERIES_KEYS_VALUES = (
    ("query", "key", "value"),
    ("q_proj", "k_proj", "v_proj"),
    ("wq", "wk", "wv"),
    ("W_q", "W_k", "W_v"),
    ("to_q", "to_k", "to_v"),
    ("q", "k", "v"),
)
OUTPUTS = ("out", "out_proj", "o_proj", "proj", "wo", "W_o", "to_out", "to_out.0", "o", "output")
MLPS = ("mlp", "ffn", "ff", "feed_forward")
UPS_AND_DOWNS = (
    *((("gate", "up"), "down"), (("gate_proj", "up_proj"), "down_proj"), (("w1", "w3"), "w2"), (("fc1",), "fc2")),
    *((("linear1",), "linear2"), (("c_fc",), "c_proj"), (("fc_in",), "fc_out"), (("0",), "2"), (("0",), "3")),
    *((("net.0",), "net.2"), (("net.0",), "net.3")),
)


def _attentions(layers: tuple[str, ...], reads_encoder: bool = False) -> tuple[Attention, ...]:
    """All that such a layer may be called, apart or as nn.MultiheadAttention."""
    fused = [Attention(f"{x}.out_proj", fused=f"{x}.in_proj_weight", reads_encoder=reads_encoder) for x in layers]
    return (
        *(
            Attention(
                query=f"{layer}.{q}",
                key=f"{layer}.{k}",
                value=f"{layer}.{v}",
                output=f"{layer}.{OUTPUTS[0]}",
                other_outputs=tuple(f"{layer}.{output}" for output in OUTPUTS[1:]),
                reads_encoder=reads_encoder,
            )
            for layer in layers
            for q, k, v in QUERIES_KEYS_VALUES
        ),
        *fused,
    )


FAMILY = Transformer(
    "Transformer",
    sublayers=(
        _attentions(LAYERS),
        _attentions(CROSS, reads_encoder=True),
        tuple(
            Perceptron(up=tuple(f"{mlp}.{up}" for up in ups), down=f"{mlp}.{down}")
            for mlp in MLPS
            for ups, down in UPS_AND_DOWNS
        ),
    ),
    embeddings=(
        *("embed", "embedding", "embeddings", "embed_tokens", "tok_embeddings", "token_embedding", "tok_emb"),
        *("token_emb", "wte", "emb", "token_embedding_table"),
    ),
    unembedding=("unembed", "unembedding", "lm_head", "head", "output", "out", "fc_out"),
    outputs=(("classifier",),),
    needs_mlp=False,
)
# Wherever else one stands: its own pairs, and none with what is around it.
ATTENTION = Transformer(
    "nn.MultiheadAttention",
    sublayers=((Attention("out_proj", fused="in_proj_weight"),),),
    embeddings=(),
    unembedding=(),
    needs_mlp=False,
)
