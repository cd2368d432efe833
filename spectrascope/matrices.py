"""From named tensors to named 2-D matrices, or "skipped, because" (SPEC section 1).

Nothing is dropped silently: every tensor of a checkpoint is either the source of matrices or in the skipped list.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from .architectures.facts import Facts
from .architectures.family import Family
from .architectures.layers import Layer, Layers
from .architectures.layouts import Parts, Rows
from .architectures.pairs import Blocks, Pair, Vectors, with_part
from .architectures.registry import recognise
from .arrays import Array
from .roles import EMBEDDINGS, HEADS, Order, fused_halves, role_of
from .skipping import Load, reason_to_skip
from .tensors import TensorInfo, natural_key

NO_FACTS = Facts()
LEFT_OUT = "left out by --match or --skip"


@dataclass(frozen=True)
class Matrix:
    """A 2-D matrix (out, in) and how to cut it from the tensor `tensor`.

    `shape` of a depthwise convolution is that of the map it stands for, (c, c k): one filter of k numbers a row, and
    zeros. `expert` is the place in a stack, `transposed` says that it is stored (in, out), `rows` which rows are a part
    of a fused matrix, `kernel` is the spatial size of a convolution. Of `blocks` only one `side` is kept, and `shape`
    is that of one of them.
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
    rows: Rows | None = None
    transposed: bool = False
    kernel: tuple[int, ...] = ()
    blocks: Blocks | None = None
    side: Vectors | None = None

    @property
    def rank(self) -> int:
        """R, the number of singular values."""
        return min(self.shape)

    @property
    def block_count(self) -> int:
        """How many blocks, 0 for a matrix as a whole."""
        return self.blocks.count if self.blocks else 0

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
        return max(self.block_count, 1) * (float(long) * short**2 + 10.0 * short**3)

    def cut(self, load: Callable[[str, int | None], Array]) -> Array:
        """What is stored of this matrix, of blocks all; `load` reads a tensor, or one of the first axis."""
        tensor = load(self.tensor, self.expert)
        if self.transposed:
            tensor = tensor.swapaxes(0, 1)
        if self.rows is None:
            return tensor
        groups = tensor.reshape(self.rows.groups, -1, tensor.shape[-1])
        return groups[:, self.rows.start : self.rows.stop].reshape(self.rows.count, -1)

    def of(self, piece: Array) -> Array:
        """The matrix itself, shape (out, in), from what `cut` gives; a view where that is possible.

        Of a depthwise convolution, its c filters as rows, shape (c, k); of blocks, all of them, (count, out, in).
        """
        if self.role == "transposed conv":
            piece = piece.swapaxes(0, 1)
        if self.blocks is not None:
            rows, columns = self.shape
            if self.blocks.axis == 0:
                return piece.reshape(-1, rows, columns)
            return piece.reshape(rows, -1, columns).swapaxes(0, 1)
        return piece.reshape(self.shape if self.has_vectors else (self.shape[0], -1))

    def put(self, values: Array, tensor: Array) -> None:
        """Write a matrix, as `of` gives it, into the tensor that it was cut from; a part of a fused one is not."""
        assert self.rows is None
        assert self.blocks is None
        place = tensor if self.expert is None else tensor[self.expert]
        if self.transposed or self.role == "transposed conv":
            place = place.swapaxes(0, 1)
        place[...] = values.reshape(place.shape)


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
    """What becomes of every tensor of one checkpoint. `coverage` is the share of its parameters analysed.

    `pairs` are those of the `family` of the model, also of matrices that are left out by the user, which are listed in
    `left_out` with their places; `blocks` is what pairs read of matrices that are cut first.
    """

    matrices: list[Matrix] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    coverage: float = 0.0
    blocks: list[Matrix] = field(default_factory=list)
    family: str = ""
    facts: Facts = NO_FACTS
    pairs: list[Pair] = field(default_factory=list)
    left_out: list[tuple[int, Layer]] = field(default_factory=list)

    @property
    def refused(self) -> list[tuple[str, str]]:
        """Name and reason of every weight that is refused."""
        return [(one.name, one.reason) for one in self.skipped if one.refused]


def plan(
    tensors: Mapping[str, TensorInfo],
    tied: Mapping[str, str],
    load: Load,
    wants: Callable[[str], bool] = lambda name: True,
    ordered: bool = True,
    facts: Facts = NO_FACTS,
) -> Plan:
    """Decide what each tensor becomes.

    Parameters
    ----------
    tensors : name -> TensorInfo, in model order
    tied : name -> the name of the tensor that it shares memory with
    load : reads a tensor, or what is at a place of its first axis; called only for stored square tables that are not
        called weights, which may be a causal mask
    wants : whether a matrix of this name is asked for
    ordered : whether the order of `tensors` is the model's, rather than that of sorted names
    facts : what is known of the architecture
    """
    model = _Model(Order(tensors, ordered), tied, load, facts)
    matrices: list[Matrix] = []
    every: list[Matrix] = []
    skipped: list[Skipped] = []
    parameters = analysed = 0
    for name, info in tensors.items():
        if name in tied:
            skipped.append(Skipped(name, info.shape, info.dtype, f"tied to {tied[name]}, analysed once"))
            continue
        reason, is_buffer = model.skipped[name]
        parameters += info.size * info.packed if info.holds_weights and not is_buffer else 0
        found = [] if reason else model.matrices(info)
        wanted = [matrix for matrix in found if any(map(wants, (matrix.name, *matrix.tied)))]
        matrices += wanted
        every += found
        analysed += min(info.size, sum(matrix.size for matrix in wanted))  # a part and its whole share their numbers
        if not wanted:
            is_refused = info.kind == "refused" and wants(name)
            left_out = LEFT_OUT if found else "a stack whose matrices would have the names of other tensors"
            is_part = info.kind == "part"
            skipped.append(Skipped(name, info.shape, info.dtype, reason or left_out, is_refused, is_part))
    is_wanted = {matrix.name for matrix in matrices}
    layers = as_layers(every)
    pairs = [_or_left_out(pair, is_wanted) for pair in model.family.pairs(layers, facts, None)]
    return Plan(
        matrices,
        skipped,
        coverage=analysed / parameters if parameters else 0.0,
        blocks=_blocks(pairs, matrices, tensors),
        family=model.family.name,
        facts=facts,
        pairs=pairs,
        left_out=[(place, layer) for place, layer in enumerate(layers) if layer.name not in is_wanted],
    )


def model_order(names: Sequence[str]) -> list[str]:
    """Names in an order that follows the model, for formats that sort them: natural, embeddings first, heads last."""
    return sorted(names, key=lambda name: (_place(name), natural_key(name)))


def _place(name: str) -> int:
    parts = name.split(".")
    if any(part.isdecimal() for part in parts):
        return 1
    return 2 if HEADS.intersection(parts) else 0 if EMBEDDINGS.intersection(parts) else 1


def as_layers(matrices: Sequence[Matrix]) -> Layers:
    """The matrices as the rules of a family see them."""
    return Layers(Layer(m.name, m.shape, m.role, m.kernel, m.tied) for m in matrices)


class _Model:
    """The tensors of a checkpoint, and what its family says of them.

    `skipped` is the reason to skip each tensor that is not tied, and whether it is a constant.
    """

    def __init__(self, order: Order, tied: Mapping[str, str], load: Load, facts: Facts) -> None:
        tensors = order.tensors
        self._order = order
        self.skipped = {name: reason_to_skip(info, load) for name, info in tensors.items() if name not in tied}
        self._aliases: dict[str, tuple[str, ...]] = {}
        for alias, target in tied.items():
            self._aliases[target] = (*self._aliases.get(target, ()), alias)
        used = {name: tensors[name] for name, (reason, _) in self.skipped.items() if reason is None}
        self._input_first: frozenset[str] = frozenset()  # not known before the family is
        self.family: Family = recognise(self._whole_layers(used), facts)
        self._input_first = self.family.input_first(used, facts)
        self._parts = self.family.parts(self._whole_layers(used), facts)

    def _whole_layers(self, used: Mapping[str, TensorInfo]) -> Layers:
        return as_layers([matrix for info in used.values() for matrix in self._whole(info)])

    def matrices(self, info: TensorInfo) -> list[Matrix]:
        """The matrices that a tensor holds: itself or the experts of a stack, and the parts of fused ones."""
        found: list[Matrix] = []
        for whole in self._whole(info):
            parts = self._parts.get(whole.name) or self._halves(info)
            names = {part: with_part(whole.name, part) for part in parts}
            is_taken = any(name in self._order.tensors for name in names.values())
            found.append(whole)
            if not is_taken:
                found += [
                    replace(whole, name=names[part], shape=(rows.count, whole.shape[1]), rows=rows)
                    for part, rows in parts.items()
                ]
        return found

    def _whole(self, info: TensorInfo) -> list[Matrix]:
        """A tensor as a matrix, a stack as the matrices of its experts; (out, in) as far as that is known."""
        role = role_of(info, self._order)
        shape = _shape(info, role.name)
        is_transposed = info.name in self._input_first
        whole = Matrix(
            name=info.name,
            tensor=info.name,
            shape=shape[::-1] if is_transposed else shape,
            dtype=info.dtype,
            role=role.name,
            guessed=role.guessed,
            tied=self._aliases.get(info.name, ()),
            made_of=info.made_of,
            transposed=is_transposed,
            kernel=() if role.name == "expert" else tuple(info.shape[2:]),
        )
        if role.name != "expert":
            return [whole]
        names = [f"{info.name}[{i}]" for i in range(info.shape[0])]
        is_taken = not self._order.tensors.keys().isdisjoint(names)
        return [] if is_taken else [replace(whole, name=name, expert=i) for i, name in enumerate(names)]

    def _halves(self, info: TensorInfo) -> Parts:
        """Gate and up of a fused projection of any family."""
        halves = fused_halves(info, self._order.tensors)
        half = info.shape[0] // 2
        return {} if halves is None else {halves[0]: Rows(1, 0, half), halves[1]: Rows(1, half, 2 * half)}


def _or_left_out(pair: Pair, is_wanted: Collection[str]) -> Pair:
    absent = [side.matrix for side in (pair.one, pair.other) if side.matrix not in is_wanted]
    return replace(pair, reason=f"{absent[0]}: {LEFT_OUT}") if absent and pair.reason is None else pair


def _blocks(pairs: Sequence[Pair], matrices: Sequence[Matrix], tensors: Mapping[str, TensorInfo]) -> list[Matrix]:
    """What pairs read of blocks of matrices, each once, in the order of the matrices."""
    wanted = {
        side.matrix: side
        for pair in pairs
        if pair.reason is None
        for side in (pair.one, pair.other)
        if side.blocks is not None and side.stored not in tensors
    }
    return [
        replace(
            matrix,
            name=side.stored,
            shape=side.blocks.shape(matrix.shape),
            blocks=side.blocks,
            side=side.vectors,
            tied=(),
        )
        for matrix in matrices
        if (side := wanted.get(matrix.name)) is not None and side.blocks is not None
    ]


def _shape(info: TensorInfo, role: str) -> tuple[int, int]:
    if role == "expert":
        return info.shape[1], info.shape[2]
    if role == "depthwise conv":
        return info.shape[0], info.size
    rows, columns = info.shape[:2] if role != "transposed conv" else (info.shape[1], info.shape[0])
    return rows, columns * prod(info.shape[2:])
