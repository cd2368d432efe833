"""From named tensors to named 2-D matrices, or "skipped, because" (SPEC section 1).

Nothing is dropped silently: every tensor of a checkpoint is either the source of a matrix or in the skipped list.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from math import prod
from typing import TYPE_CHECKING

from .errors import RequestError
from .words import choices

if TYPE_CHECKING:
    import torch

LEFT_OUT = "left out by --match or --skip"
FLOATS = ("float16", "bfloat16", "float32", "float64")

EMBEDDINGS = frozenset(
    [
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
        "token_embedding",
        "position_embeddings",
        "pos_embed",
        "patch_embed",
    ]
)
HEADS = frozenset(["lm_head", "head", "heads", "unembed", "embed_out", "classifier", "output_projection"])

# Constants that are saved beside parameters, known by the last part of their name.
BUFFERS = {
    **dict.fromkeys(["masked_bias", "mask", "attn_mask", "attention_mask", "causal_mask", "tril"], "mask"),
    **dict.fromkeys(["inv_freq", "freqs_cis", "cos_cached", "sin_cached"], "rotary table"),
    **dict.fromkeys(["pe", "position_ids", "pos_table", "positional_encoding"], "position table"),
}
TRANSPOSED_CONV = re.compile(
    r"(?:^|[._])(?:t_?conv|conv_?t|conv_?transposed?|transposed?_?conv|up_?conv|deconv)(?:[123]d)?_?\d*(?:[._]|$)",
    re.IGNORECASE,
)
RECURRENT = re.compile(r"weight_(?:ih|hh)_l\d+(?:_reverse)?$")


@dataclass(frozen=True)
class TensorInfo:
    """A tensor as the checkpoint lists it, before anything is read.

    `dtype` is torch's name without "torch."; `storage` is equal for tensors that share memory, None where the
    format cannot tell; `problem` says why the values cannot be had as they are (meta, sparse), else None.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    storage: Hashable = None
    problem: str | None = None

    @property
    def size(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True)
class Matrix:
    """A 2-D matrix (out, in) and how to cut it from the tensor `tensor`."""

    name: str
    tensor: str
    shape: tuple[int, int]
    dtype: str
    role: str
    guessed: bool = False
    tied: tuple[str, ...] = ()

    @property
    def rank(self) -> int:
        """R, the number of singular values."""
        return min(self.shape)

    @property
    def cost(self) -> float:
        """Floating-point operations of its decomposition, roughly: the Gram matrix and its eigenvectors."""
        short, long = sorted(self.shape)
        return float(long) * short**2 + 10.0 * short**3

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The matrix itself, shape (out, in), from the stored tensor; a view where that is possible."""
        if self.role == "transposed conv":
            tensor = tensor.transpose(0, 1)
        return tensor.reshape(self.shape)


@dataclass(frozen=True)
class Skipped:
    """A tensor that is not analysed, and why."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    reason: str


@dataclass(frozen=True)
class Plan:
    """What becomes of every tensor of one checkpoint. `coverage` is the share of its parameters analysed."""

    matrices: list[Matrix] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    coverage: float = 0.0


def plan(
    tensors: Mapping[str, TensorInfo],
    tied: Mapping[str, str],
    load: Callable[[str], torch.Tensor],
    wants: Callable[[str], bool] = lambda name: True,
) -> Plan:
    """Decide what each tensor becomes.

    Parameters
    ----------
    tensors : name -> TensorInfo, in model order
    tied : name -> the name of the tensor that it shares memory with
    load : reads a tensor; called only for square tables that may be a causal mask
    wants : whether a matrix of this name is asked for
    """
    matrices: list[Matrix] = []
    skipped: list[Skipped] = []
    buffers = 0
    for name, info in tensors.items():
        if name in tied:
            skipped.append(Skipped(name, info.shape, info.dtype, f"tied to {tied[name]}, analysed once"))
            continue
        reason, is_buffer = _reason_to_skip(info, load)
        matrix = None if reason else _matrix(info, tensors)
        aliases = tuple(alias for alias, target in tied.items() if target == name)
        if matrix is not None and not any(map(wants, (matrix.name, *aliases))):
            matrix, reason = None, LEFT_OUT
        if matrix is None:
            skipped.append(Skipped(name, info.shape, info.dtype, reason or "not a matrix"))
            buffers += info.size if is_buffer and _holds_weights(info) else 0
        else:
            matrices.append(_replace_tied(matrix, aliases))
    parameters = sum(i.size for n, i in tensors.items() if n not in tied and _holds_weights(i)) - buffers
    analysed = sum(prod(m.shape) for m in matrices)
    return Plan(matrices, skipped, analysed / parameters if parameters else 0.0)


def selected(name: str, match: Sequence[str], skip: Sequence[str]) -> bool:
    """Whether any glob of `match` (all names, if there is none) and none of `skip` fits a name."""
    return (not match or any(fnmatchcase(name, glob) for glob in match)) and not any(
        fnmatchcase(name, glob) for glob in skip
    )


def require_match(names: Sequence[str], match: Sequence[str], skip: Sequence[str] = ()) -> list[str]:
    """The names that are asked for. Raises RequestError where none is."""
    found = [name for name in names if selected(name, match, skip)]
    if names and not found:
        asked = ", ".join(repr(glob) for glob in (*match, *skip))
        raise RequestError(f"no matrix matches {asked}; {choices((*match, *skip)[0], names)}")
    return found


def model_order(names: Sequence[str]) -> list[str]:
    """Names in an order that follows the model, for formats that sort them: natural, embeddings first, heads last."""
    return sorted(names, key=lambda name: (_place(name), natural_key(name)))


def natural_key(text: str) -> list[tuple[int, int, str]]:
    """A key that sorts layer 10 after layer 9."""
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", text) if part]


def _place(name: str) -> int:
    parts = name.split(".")
    if any(part.isdecimal() for part in parts):
        return 1
    return 2 if HEADS.intersection(parts) else 0 if EMBEDDINGS.intersection(parts) else 1


def _holds_weights(info: TensorInfo) -> bool:
    """Floats of any width, and the 8-bit integers that quantised weights are; wider integers are indices."""
    return info.dtype in (*FLOATS, "int8", "uint8") or info.dtype.startswith("float8")


def _replace_tied(matrix: Matrix, aliases: tuple[str, ...]) -> Matrix:
    return Matrix(matrix.name, matrix.tensor, matrix.shape, matrix.dtype, matrix.role, matrix.guessed, aliases)


def _reason_to_skip(info: TensorInfo, load: Callable[[str], torch.Tensor]) -> tuple[str | None, bool]:
    """Why a tensor is not analysed (None if it is), and whether it is a constant rather than a parameter."""
    if info.problem:
        return info.problem, False
    if info.size == 0:
        return "empty", False
    kind = _buffer(info)
    if kind:
        return kind, True
    if info.dtype not in FLOATS:
        return f"{info.dtype}, which is not read as a weight", False
    if len(info.shape) == 0:
        return "a single number", False
    if len(info.shape) == 1:
        return "1-D", False
    if _may_be_mask(info) and _is_causal_mask(load(info.name)):
        return "causal mask", True
    if len(info.shape) > 2 and not info.name.endswith("weight"):
        return f"{len(info.shape)}-D, and not a convolution's weight", False
    if len(info.shape) > 5:
        return f"{len(info.shape)}-D", False
    return None, False


def _buffer(info: TensorInfo) -> str | None:
    parts = info.name.split(".")
    if len(info.shape) > 1 and parts[-1] == "bias" and parts[-2:-1] in (["attn"], ["attention"]):
        return "causal mask"
    return BUFFERS.get(parts[-1])


def _may_be_mask(info: TensorInfo) -> bool:
    return len(info.shape) >= 2 and info.shape[-1] == info.shape[-2] > 1 and info.size == info.shape[-1] ** 2


def _is_causal_mask(tensor: torch.Tensor) -> bool:
    """Whether a square table is lower-triangular ones, or minus infinity above a zero diagonal."""
    table = tensor.reshape(tensor.shape[-2:])
    first, last = table[0], table[-1]
    if bool((last == 1).all()) and bool((first[1:] == 0).all()):
        return bool((table == table.new_ones(table.shape).tril()).all())
    if bool((last == 0).all()) and bool((first[1:] == -float("inf")).all()):
        return bool((table.tril() == 0).all())
    return False


def _matrix(info: TensorInfo, tensors: Mapping[str, TensorInfo]) -> Matrix:
    role, guessed = _role(info, tensors)
    rows, columns = info.shape[:2] if role != "transposed conv" else (info.shape[1], info.shape[0])
    shape = (rows, columns * prod(info.shape[2:]))
    return Matrix(info.name, info.name, shape, info.dtype, role, guessed)


def _role(info: TensorInfo, tensors: Mapping[str, TensorInfo]) -> tuple[str, bool]:
    """What a matrix does in the network, and whether that is a guess."""
    if len(info.shape) > 2:
        return _conv_role(info, tensors.get(info.name.removesuffix("weight") + "bias"))
    if RECURRENT.search(info.name):
        return "recurrent", False
    parts = info.name.split(".")
    if HEADS.intersection(parts):
        return "unembedding" if {"lm_head", "unembed", "embed_out"}.intersection(parts) else "head", False
    return ("embedding" if EMBEDDINGS.intersection(parts) else "linear"), False


def _conv_role(info: TensorInfo, bias: TensorInfo | None) -> tuple[str, bool]:
    """A bias as long as one axis only tells which axis is the output; else the name may; else conv is a guess."""
    if info.shape[1] == 1 < info.shape[0]:
        return "conv", True  # it may be depthwise: separate filters rather than one matrix
    out_of = {info.shape[0]: "conv", info.shape[1]: "transposed conv"}
    if bias is not None and len(out_of) == 2 and bias.shape[0:1] and bias.shape[0] in out_of:
        return out_of[bias.shape[0]], False
    if TRANSPOSED_CONV.search(info.name):
        return "transposed conv", False
    return "conv", True
