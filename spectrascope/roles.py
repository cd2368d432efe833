"""What a tensor does in the network, by its name, its shape, and what stands beside it (SPEC section 1)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile

from .tensors import TensorInfo

EMBEDDINGS = frozenset(
    [
        "emb",
        "embed",
        "embedding",
        "embeddings",
        "embed_tokens",
        "embed_in",
        "embed_positions",
        "tok_embeddings",
        "wte",
        "wpe",
        "shared",
        "word_embeddings",
        "tok_emb",
        "token_emb",
        "token_embedding",
        "position_embeddings",
        "pos_embed",
        "patch_embed",
    ]
)
HEADS = frozenset(["lm_head", "head", "heads", "unembed", "embed_out", "classifier", "output_projection"])
UNEMBEDDINGS = frozenset(["lm_head", "unembed", "embed_out"])

TRANSPOSED_CONV = re.compile(
    r"(?:^|[._])(?:t_?conv|conv_?t|conv_?transposed?|transposed?_?conv|up_?conv|deconv)(?:[123]d)?_?\d*(?:[._]|$)",
    re.IGNORECASE,
)
RECURRENT = re.compile(r"weight_(?:ih|hh|hr)_l\d+(?:_reverse)?$")
# A place among experts after the word (`experts.3.w1`) means that they are apart.
EXPERTS = re.compile(r"(?:^|\.)(?:\w+_)?(?:experts|moe)\.(?!.*\bexperts\.)(?!\d)(?!.*conv)", re.IGNORECASE)
DEPTHWISE = re.compile(
    r"(?:^|[._])(?:dw_?conv|conv_?dw|depth_?wise(?:_?conv)?)\d*[._]"
    r"|(?:mixer|mamba|_attn|ssm|temporal_block)\.conv_?1d\.|[._][qkv]_conv1d\.|(?:^|\.)short_conv\.",
    re.IGNORECASE,
)
# The halves of the rows of a fused projection. OLMo's `ff_proj` has the values first: x, gate = ff_proj(x).chunk(2).
FUSED = {"gate_up_proj": ("gate", "up"), "ff_proj": ("up", "gate"), "weights_in": ("gate", "up")}
# What reads one half of those that are not fused in every model.
READERS = {"ff_proj": "ff_out.weight", "weights_in": "weights_out.weight"}


class Order:
    """The tensors of a model, and what stands before each of its weights.

    `ordered` tells that they are in the model's order, rather than sorted by their names.
    """

    def __init__(self, tensors: Mapping[str, TensorInfo], ordered: bool = True) -> None:
        self.tensors = tensors
        self.ordered = ordered
        self._before: dict[str, tuple[TensorInfo | None, bool]] = {}
        before: TensorInfo | None = None
        is_first_conv = True
        for name, info in tensors.items():
            self._before[name] = (before, is_first_conv)
            if len(info.shape) > 1 and info.kind == "parameter" and info.problem is None:
                before = info
                is_first_conv = is_first_conv and len(info.shape) == 2

    def before(self, name: str) -> tuple[TensorInfo | None, bool]:
        """The weight before a tensor, and whether no convolution is."""
        return self._before[name]


@dataclass(frozen=True)
class Role:
    """What a matrix does in the network, and whether that is a guess."""

    name: str
    guessed: bool = False


def is_expert_stack(info: TensorInfo) -> bool:
    """Whether a 3-D tensor (E, out, in) is one matrix per expert: by name, never by shape alone."""
    return len(info.shape) == 3 and EXPERTS.search(info.name) is not None and not info.name.endswith("bias")


def is_bias_of_experts(info: TensorInfo) -> bool:
    """Whether a 2-D tensor (E, out) is one bias per expert."""
    return len(info.shape) == 2 and EXPERTS.search(info.name) is not None and info.name.endswith("bias")


def role_of(info: TensorInfo, order: Order) -> Role:
    """The role of a tensor of two to five dimensions among those of its model."""
    if is_expert_stack(info):
        return Role("expert")
    if len(info.shape) > 2:
        return _conv_role(info, order)
    if RECURRENT.search(info.name):
        return Role("recurrent")
    parts = set(info.name.split("."))
    if HEADS & parts:
        return Role("unembedding" if UNEMBEDDINGS & parts else "head")
    return Role("embedding" if EMBEDDINGS & parts else "linear")


def fused_halves(info: TensorInfo, tensors: Mapping[str, TensorInfo]) -> tuple[str, str] | None:
    """The names of the two halves of the rows of a fused gate and up projection, None for any other matrix.

    Some are where what reads them, beside them, reads half as many numbers as they write: OLMo without a gate has an
    `ff_proj` as well.
    """
    stem = info.name.removesuffix(".weight")
    path, _, last = stem.rpartition(".")
    if last not in FUSED or len(info.shape) != 2 or info.shape[0] % 2:
        return None
    if last in READERS:
        reader = tensors.get(".".join(filter(None, [path, READERS[last]])))
        if reader is None or 2 * reader.shape[-1] != info.shape[0]:
            return None
    return FUSED[last]


def _conv_role(info: TensorInfo, order: Order) -> Role:
    """A bias as long as one axis only tells which axis is the output; else the name may; else conv is a guess."""
    bias = order.tensors.get(info.name.removesuffix("weight") + "bias")
    out_of = {info.shape[0]: "conv", info.shape[1]: "transposed conv"}
    told = out_of.get(bias.shape[0]) if bias is not None and len(out_of) == 2 and bias.shape[0:1] else None
    if told == "transposed conv" or (told is None and TRANSPOSED_CONV.search(info.name)):
        return Role("transposed conv")
    if info.shape[1] == 1 < info.shape[0]:
        return _depthwise_or_conv(info, order)
    return Role("conv", guessed=told is None)


def _depthwise_or_conv(info: TensorInfo, order: Order) -> Role:
    """(c, 1, k...) reads c maps one by one where its predecessor gives c; the first conv of a net reads the input.

    Names may say so. Where they are sorted and not in the model's order, a predecessor is one of the same block.
    """
    if DEPTHWISE.search(info.name):
        return Role("depthwise conv")
    before, is_first_conv = order.before(info.name)
    follows = before is not None and before.shape[0] == info.shape[0]
    if before is None or is_first_conv:
        return Role("conv", guessed=follows or not order.ordered)
    is_predecessor = follows and (order.ordered or _in_one_block(before.name, info.name))
    return Role("depthwise conv") if is_predecessor else Role("conv", guessed=True)


def _in_one_block(one: str, other: str) -> bool:
    """Whether two names begin alike up to a number, that of a block."""
    pairs = zip(one.split("."), other.split("."), strict=False)
    return any(a.isdecimal() for a, b in takewhile(lambda pair: pair[0] == pair[1], pairs))
