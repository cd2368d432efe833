"""Which tensors are not analysed, and why (SPEC section 1)."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from .arrays import Array
from .roles import is_bias_of_experts, is_expert_stack
from .tensors import FLOATS, TensorInfo

# Constants that are saved beside parameters, known by the last part of their name.
BUFFERS = {
    **dict.fromkeys(["masked_bias", "mask", "attn_mask", "attention_mask", "causal_mask", "tril"], "mask"),
    **dict.fromkeys(["inv_freq", "freqs_cis", "freqs_cos", "freqs_sin", "cos_cached", "sin_cached"], "rotary table"),
    **dict.fromkeys(["embed_avg", "_ema_w", "ema_w"], "moving average of a codebook"),
    **dict.fromkeys(["pe", "position_ids", "pos_table", "positional_encoding"], "position table"),
}
# Reads a tensor, or what is at a place of its first axis.
Load = Callable[[str, int | None], Array]
ROTARY = re.compile(r"(?:rope|rotary)\w*\.(?:cos|sin)$")


def reason_to_skip(info: TensorInfo, load: Load) -> tuple[str | None, bool]:
    """Why a tensor is not analysed (None if it is), and whether it is a constant rather than a parameter."""
    if info.problem:
        return info.problem, False
    if info.size == 0:
        return "empty", False
    kind = constant_kind(info)
    if kind:
        return kind, True
    if info.dtype not in FLOATS and info.made_of is None:
        return f"{info.dtype}, which is not read as a weight", False
    if len(info.shape) == 0:
        return "a single number", False
    if len(info.shape) == 1:
        return "1-D", False
    if is_bias_of_experts(info):
        return "1-D, one bias per expert", False
    if info.made_of is None and _may_be_mask(info) and _is_causal_mask(info, load):
        return "causal mask", True
    if len(info.shape) > 2 and not info.name.endswith("weight") and not is_expert_stack(info):
        return f"{len(info.shape)}-D, and not a convolution's weight", False
    if len(info.shape) > 5:
        return f"{len(info.shape)}-D", False
    return None, False


def constant_kind(info: TensorInfo) -> str | None:
    """What a constant that is saved beside parameters is, known by its name; None for all else."""
    parts = info.name.split(".")
    if len(info.shape) > 1 and parts[-1] == "bias" and parts[-2:-1] in (["attn"], ["attention"]):
        return "causal mask"
    if ROTARY.search(info.name):
        return "rotary table"
    return BUFFERS.get(parts[-1])


def _may_be_mask(info: TensorInfo) -> bool:
    """Whether a tensor is a square table. Nothing else than a weight is called `weight`."""
    is_square = len(info.shape) >= 2 and info.shape[-1] == info.shape[-2] > 1 and info.size == info.shape[-1] ** 2
    return is_square and not info.name.endswith(".weight")


def _is_causal_mask(info: TensorInfo, load: Load) -> bool:
    """Whether a square table is lower-triangular ones, or minus infinity above a zero diagonal."""
    last_place = info.shape[0] - 1
    last = load(info.name, last_place).reshape(-1, info.shape[-1])[-1]
    if not bool((last == 1).all()) and not bool((last == 0).all()):
        return False  # one row is enough to tell a weight, and all that is fetched of it
    table = load(info.name, None).reshape(info.shape[-2:])
    first, last = table[0], table[-1]
    if bool((last == 1).all()) and bool((first[1:] == 0).all()):
        return bool((table == np.tri(len(table), dtype=table.dtype)).all())
    if bool((last == 0).all()) and bool((first[1:] == -float("inf")).all()):
        return bool((table[np.tri(len(table), dtype=bool)] == 0).all())
    return False
