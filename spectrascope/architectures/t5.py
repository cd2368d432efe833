"""T5: an encoder, and a decoder whose second attention reads it; a gated MLP in later versions."""

from .blocks import Attention, Perceptron
from .transformer import Transformer


def _attention(path: str, reads_encoder: bool = False) -> Attention:
    return Attention(
        query=f"{path}.q", key=f"{path}.k", value=f"{path}.v", output=f"{path}.o", reads_encoder=reads_encoder
    )


def _mlp(path: str) -> Perceptron:
    return Perceptron(up=(f"{path}.wi", f"{path}.wi_0", f"{path}.wi_1"), down=f"{path}.wo")


MODEL_TYPES = ("t5", "mt5", "umt5")

FAMILY = Transformer(
    "T5",
    sublayers=(
        (_attention("layer.0.SelfAttention"),),
        (_attention("layer.1.EncDecAttention", reads_encoder=True),),
        (_mlp("layer.1.DenseReluDense"), _mlp("layer.2.DenseReluDense")),
    ),
    embeddings=("shared", "embed_tokens"),
    model_types=MODEL_TYPES,
    outputs=(("classification_head.dense", "classification_head.out_proj"),),
    tied=MODEL_TYPES,
)
