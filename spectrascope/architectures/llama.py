"""Llama and the many that share its names: Mistral, Qwen, Gemma, OLMo, Phi-3; dense, or with experts (Mixtral)."""

from .blocks import Attention, ExpertStack, Perceptron
from .layouts import concatenated
from .transformer import Transformer

APART = Attention(query="self_attn.q_proj", key="self_attn.k_proj", value="self_attn.v_proj", output="self_attn.o_proj")
FUSED = Attention(fused="self_attn.qkv_proj", output="self_attn.o_proj", layout=concatenated)


def _gated(path: str) -> Perceptron:
    """Gate and up, apart or one after the other in one matrix."""
    up = (f"{path}.gate_proj", f"{path}.up_proj", f"{path}.gate_up_proj[gate]", f"{path}.gate_up_proj[up]")
    return Perceptron(up, f"{path}.down_proj")


def _stacked(path: str) -> Perceptron:
    """Gate and up of the experts of a stack."""
    return Perceptron((f"{path}.gate_up_proj[*,gate]", f"{path}.gate_up_proj[*,up]"), f"{path}.down_proj[*]")


TIED = ("gemma", "gemma2", "gemma3", "gemma3_text")

FAMILY = Transformer(
    "Llama",
    sublayers=(
        (APART, FUSED),
        (
            _gated("mlp"),
            _gated("mlp.experts.*"),
            _gated("mlp.shared_expert"),
            _gated("mlp.shared_experts"),
            _stacked("mlp.experts"),
            Perceptron(
                ("block_sparse_moe.experts.*.w1", "block_sparse_moe.experts.*.w3"), "block_sparse_moe.experts.*.w2"
            ),
            _stacked("block_sparse_moe.experts"),
        ),
    ),
    embeddings=("embed_tokens",),
    outputs=(("score",),),
    model_types=(
        *("llama", "mistral", "ministral", "smollm3", "qwen2", "qwen3", *TIED, "olmo", "olmo2", "olmo3", "phi3"),
        *("glm", "granite", "seed_oss", "stablelm", "mixtral", "qwen2_moe", "qwen3_moe", "olmoe"),
    ),
    parallel=lambda facts: facts.flag("use_parallel_residual", False),
    stacks=(ExpertStack("experts.gate_up_proj", gate_and_up="halves"),),
    tied=TIED,
)
COHERE = Transformer(
    "Cohere",
    sublayers=((APART,), (_gated("mlp"),)),
    embeddings=("embed_tokens",),
    model_types=("cohere", "cohere2"),
    parallel=lambda facts: True,
    known_by_names=False,  # Llama has the same
    tied=("cohere", "cohere2"),
)
LLAMA4 = Transformer(
    "Llama 4",
    sublayers=(
        (APART,),
        (_stacked("feed_forward.experts"), _gated("feed_forward.shared_expert"), _gated("feed_forward")),
    ),
    embeddings=("embed_tokens",),
    model_types=("llama4_text", "llama4"),
    stacks=(
        ExpertStack("feed_forward.experts.gate_up_proj", input_first=True, gate_and_up="halves"),
        ExpertStack("feed_forward.experts.down_proj", input_first=True),
    ),
)
GPT_OSS = Transformer(
    "gpt-oss",
    sublayers=((APART,), (_stacked("mlp.experts"),)),
    embeddings=("embed_tokens",),
    model_types=("gpt_oss",),
    stacks=(
        ExpertStack("mlp.experts.gate_up_proj", input_first=True, gate_and_up="alternating"),
        ExpertStack("mlp.experts.down_proj", input_first=True),
    ),
)
