"""ViT by Hugging Face, timm and torchvision. The embedding is a convolution of patches."""

from .blocks import Attention, Perceptron
from .layouts import thirds
from .transformer import Transformer

FAMILY = Transformer(
    "ViT",
    sublayers=(
        (
            Attention(
                query="attention.attention.query",
                key="attention.attention.key",
                value="attention.attention.value",
                output="attention.output.dense",
            ),
            Attention(fused="attn.qkv", output="attn.proj", layout=thirds),
            Attention(fused="self_attention.in_proj_weight", output="self_attention.out_proj", layout=thirds),
        ),
        (
            Perceptron(up=("intermediate.dense",), down="output.dense"),
            Perceptron(up=("mlp.fc1",), down="mlp.fc2"),
            Perceptron(up=("mlp.0",), down="mlp.3"),
            Perceptron(("mlp.weights_in[gate]", "mlp.weights_in[up]"), "mlp.weights_out", ("mlp.weights_in",)),
        ),
    ),
    embeddings=("patch_embeddings.projection", "patch_embed.proj", "conv_proj"),
    model_types=("vit", "deit", "dinov2", "vit_msn"),
    unembedding=(),
    outputs=(("pooler.dense",), ("classifier",), ("head",), ("heads.head",), ("cls_classifier",)),
)
