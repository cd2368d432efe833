"""torch.nn.TransformerEncoder and Decoder, with the embedding and the output that people put around them."""

from .blocks import Attention, Perceptron
from .layouts import thirds
from .transformer import Transformer


def _attention(path: str, reads_encoder: bool = False) -> tuple[Attention, Attention]:
    """`in_proj_weight`, or three weights where keys and values have widths of their own."""
    output = f"{path}.out_proj"
    return (
        Attention(fused=f"{path}.in_proj_weight", output=output, layout=thirds, reads_encoder=reads_encoder),
        Attention(
            query=f"{path}.q_proj_weight",
            key=f"{path}.k_proj_weight",
            value=f"{path}.v_proj_weight",
            output=output,
            reads_encoder=reads_encoder,
        ),
    )


FAMILY = Transformer(
    "nn.Transformer",
    sublayers=(
        _attention("self_attn"),
        _attention("multihead_attn", reads_encoder=True),
        (Perceptron(up=("linear1",), down="linear2"),),
    ),
    embeddings=(
        *("embedding", "embed", "embeddings", "embed_tokens", "token_embedding", "tok_embedding", "tok_emb"),
        *("src_embed", "emb", "wte", "word_embeddings", "encoder", "input_proj"),
    ),
    unembedding=("unembed", "unembedding", "lm_head", "decoder", "head", "generator", "fc_out", "fc", "out", "output"),
    outputs=(("classifier",),),
)
