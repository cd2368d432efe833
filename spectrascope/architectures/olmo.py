"""OLMo in its own format: q, k and v one after the other, and `ff_proj`, whose gate is the second half.

Hugging Face's own OLMo has the names of Llama.
"""

from .blocks import Attention, Perceptron
from .layouts import concatenated
from .transformer import Transformer

FAMILY = Transformer(
    "OLMo",
    sublayers=(
        (Attention(fused="att_proj", output="attn_out", layout=concatenated),),
        (Perceptron(up=("ff_proj[gate]", "ff_proj[up]"), down="ff_out", otherwise=("ff_proj",)),),
    ),
    embeddings=("transformer.wte", "wte"),
    unembedding=("transformer.ff_out",),
    model_types=("hf_olmo",),
)
