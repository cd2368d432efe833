"""From named tensors to named 2-D matrices, or "skipped, because" (SPEC section 1).

Nothing is dropped silently: every tensor of a checkpoint is either the source of matrices or in the skipped list.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from math import prod
from typing import TYPE_CHECKING

from .errors import RequestError
from .roles import EMBEDDINGS, HEADS, Order, fused_halves, role_of
from .skipping import reason_to_skip
from .tensors import TensorInfo, natural_key
from .words import choices

if TYPE_CHECKING:
    import torch

BRACKETS = re.compile(r"(?<!\[)\[(?![!\[\]])([^\]-]*)\]")
LEFT_OUT = "left out by --match or --skip"


@dataclass(frozen=True)
class Matrix:
    """A 2-D matrix (out, in) and how to cut it from the tensor `tensor`.

    `shape` of a depthwise convolution is that of the map it stands for, (c, c k): one filter of k numbers a row, and
    zeros. `expert` is the place in a stack, `rows` the range of rows that is a part of a fused matrix.
    """

    name: str
    tensor: str
    shape: tuple[int, int]
    dtype: str
    role: str
    guessed: bool = False
    tied: tuple[str, ...] = ()
    made_of: str | None = None
    expert: int | None = None
    rows: tuple[int, int] | None = None

    @property
    def rank(self) -> int:
        """R, the number of singular values."""
        return min(self.shape)

    @property
    def has_vectors(self) -> bool:
        """Whether singular vectors are kept: those of a depthwise convolution are its filters, one by one."""
        return self.role != "depthwise conv"

    @property
    def size(self) -> int:
        """How many stored numbers it is made of."""
        return prod(self.shape) if self.has_vectors else self.shape[1]

    @property
    def cost(self) -> float:
        """Floating-point operations of its decomposition, roughly: the Gram matrix and its eigenvectors."""
        if not self.has_vectors:
            return 2.0 * self.shape[1]
        short, long = sorted(self.shape)
        return float(long) * short**2 + 10.0 * short**3

    def cut(self, load: Callable[[str, int | None], torch.Tensor]) -> torch.Tensor:
        """What is stored of this matrix, in the stored layout; `load` reads a tensor, or one of the first axis."""
        tensor = load(self.tensor, self.expert)
        return tensor if self.rows is None else tensor[slice(*self.rows)]

    def of(self, piece: torch.Tensor) -> torch.Tensor:
        """The matrix itself, shape (out, in), from what `cut` gives; a view where that is possible.

        Of a depthwise convolution, its c filters as rows, shape (c, k).
        """
        if self.role == "transposed conv":
            piece = piece.transpose(0, 1)
        return piece.reshape(self.shape if self.has_vectors else (self.shape[0], -1))


@dataclass(frozen=True)
class Skipped:
    """A tensor that is not analysed, and why.

    `refused`: it is a weight, in a code that is not read as numbers; `is_part`: an effective weight is made of it.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    reason: str
    refused: bool = False
    is_part: bool = False


@dataclass(frozen=True)
class Plan:
    """What becomes of every tensor of one checkpoint. `coverage` is the share of its parameters analysed."""

    matrices: list[Matrix] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    coverage: float = 0.0

    @property
    def refused(self) -> list[tuple[str, str]]:
        """Name and reason of every weight that is refused."""
        return [(one.name, one.reason) for one in self.skipped if one.refused]


def plan(
    tensors: Mapping[str, TensorInfo],
    tied: Mapping[str, str],
    load: Callable[[str], torch.Tensor],
    wants: Callable[[str], bool] = lambda name: True,
    ordered: bool = True,
) -> Plan:
    """Decide what each tensor becomes.

    Parameters
    ----------
    tensors : name -> TensorInfo, in model order
    tied : name -> the name of the tensor that it shares memory with
    load : reads a tensor; called only for stored square tables, which may be a causal mask
    wants : whether a matrix of this name is asked for
    ordered : whether the order of `tensors` is the model's, rather than that of sorted names
    """
    order = Order(tensors, ordered)
    matrices: list[Matrix] = []
    skipped: list[Skipped] = []
    parameters = analysed = 0
    for name, info in tensors.items():
        if name in tied:
            skipped.append(Skipped(name, info.shape, info.dtype, f"tied to {tied[name]}, analysed once"))
            continue
        reason, is_buffer = reason_to_skip(info, load)
        parameters += info.size * info.packed if info.holds_weights and not is_buffer else 0
        aliases = tuple(alias for alias, target in tied.items() if target == name)
        found = [] if reason else [replace(matrix, tied=aliases) for matrix in _matrices(info, order)]
        wanted = [matrix for matrix in found if any(map(wants, (matrix.name, *aliases)))]
        matrices += wanted
        analysed += min(info.size, sum(matrix.size for matrix in wanted))  # a part and its whole share their numbers
        if not wanted:
            is_refused = info.kind == "refused" and wants(name)
            left_out = LEFT_OUT if found else "a stack whose matrices would have the names of other tensors"
            is_part = info.kind == "part"
            skipped.append(Skipped(name, info.shape, info.dtype, reason or left_out, is_refused, is_part))
    return Plan(matrices, skipped, analysed / parameters if parameters else 0.0)


def selected(name: str, match: Sequence[str], skip: Sequence[str]) -> bool:
    """Whether any glob of `match` (all names, if there is none) and none of `skip` fits a name, or is the name."""
    return (not match or any(_fits(name, glob) for glob in match)) and not any(_fits(name, glob) for glob in skip)


def _fits(name: str, glob: str) -> bool:
    """Brackets belong to names such as `w[0]`; around a range or a negation, `[0-4]` or `[!x]`, they are a glob's."""
    return name == glob or fnmatchcase(name, BRACKETS.sub(r"[[]\1]", glob))


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


def _place(name: str) -> int:
    parts = name.split(".")
    if any(part.isdecimal() for part in parts):
        return 1
    return 2 if HEADS.intersection(parts) else 0 if EMBEDDINGS.intersection(parts) else 1


def _matrices(info: TensorInfo, order: Order) -> list[Matrix]:
    """The matrices that a tensor holds: itself, the experts of a stack, the whole and the parts of a fused one."""
    tensors = order.tensors
    role = role_of(info, order)
    whole = Matrix(info.name, info.name, _shape(info, role.name), info.dtype, role.name, role.guessed)
    whole = replace(whole, made_of=info.made_of)
    if role.name == "expert":
        names = [f"{info.name}[{i}]" for i in range(info.shape[0])]
        is_taken = not tensors.keys().isdisjoint(names)
        return [] if is_taken else [replace(whole, name=name, expert=i) for i, name in enumerate(names)]
    halves = fused_halves(info, tensors)
    if halves is None or any(f"{info.name}[{part}]" in tensors for part in halves):
        return [whole]
    half = info.shape[0] // 2
    return [whole] + [
        replace(whole, name=f"{info.name}[{part}]", shape=(half, info.shape[1]), rows=(start, start + half))
        for part, start in zip(halves, (0, half), strict=True)
    ]


def _shape(info: TensorInfo, role: str) -> tuple[int, int]:
    if role == "expert":
        return info.shape[1], info.shape[2]
    if role == "depthwise conv":
        return info.shape[0], info.size
    rows, columns = info.shape[:2] if role != "transposed conv" else (info.shape[1], info.shape[0])
    return rows, columns * prod(info.shape[2:])
