"""What a pair of consecutive matrices is (SPEC section 3)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from .layers import Layer

Vectors = Literal["left", "right"]
DIRECTIONS = ("forward", "reverse")


@dataclass(frozen=True)
class Blocks:
    """A matrix cut into `count` equal parts along its rows (axis 0) or columns (axis 1), each decomposed on its own.

    `word` says what a part is: a head of an attention layer, or a direction that a recurrent layer runs in.
    """

    axis: Literal[0, 1]
    count: int
    word: Literal["head", "direction"] = "head"

    def shape(self, whole: tuple[int, int]) -> tuple[int, int]:
        """The shape of one part of a matrix."""
        rows, columns = whole
        return (rows // self.count, columns) if self.axis == 0 else (rows, columns // self.count)

    def label(self, index: int | None) -> str:
        """What one part is called, or each of them for None."""
        return self.word if index is None else block_word(self.word, index)


@dataclass(frozen=True)
class Slice:
    """The entries of a vector that are kept, as in `vector[start:stop:step]`. They are not renormalised."""

    start: int
    stop: int | None = None
    step: int = 1

    @property
    def text(self) -> str:
        """As it stands in a file of pairs."""
        stop = "" if self.stop is None else self.stop
        return f"{self.start}:{stop}" + (f":{self.step}" if self.step != 1 else "")

    def as_slice(self) -> slice:
        """For NumPy."""
        return slice(self.start, self.stop, self.step)

    def kept(self, length: int) -> int:
        """How many entries are kept of a vector of this length."""
        return len(range(length)[self.as_slice()])


@dataclass(frozen=True)
class Side:
    """One side of a pair: the left or right singular vectors of a matrix, or of blocks of it.

    `index` is the one block that is meant, None for each in turn; `kept` the entries of the vectors that are compared,
    which a user's pair says in its name (`note`).
    """

    matrix: str
    vectors: Vectors
    kept: Slice | None = None
    blocks: Blocks | None = None
    index: int | None = None
    note: str = ""

    @property
    def stored(self) -> str:
        """The name under which the store has it: that of the matrix, or `MATRIX[head]` for its blocks."""
        return self.matrix if self.blocks is None else with_part(self.matrix, self.blocks.label(None))

    @property
    def label(self) -> str:
        """How it is written in a pair."""
        name = self.matrix if self.blocks is None else with_part(self.matrix, self.blocks.label(self.index))
        return with_part(name, self.note) if self.note else name

    def dimension(self, shape: tuple[int, int]) -> int:
        """How many entries of a vector are compared, for a matrix of this shape."""
        length = self._length(shape)
        return length if self.kept is None else self.kept.kept(length)

    def share(self, shape: tuple[int, int]) -> float:
        """The share of the entries that is compared, in (0, 1]."""
        return self.dimension(shape) / self._length(shape) if self.kept else 1.0

    def _length(self, shape: tuple[int, int]) -> int:
        """How many entries its vectors have."""
        rows, columns = shape if self.blocks is None else self.blocks.shape(shape)
        return rows if self.vectors == "left" else columns


@dataclass(frozen=True)
class Pair:
    """Two sides of which the one feeds the other, in the model's order. `kind` says what they are in the model.

    `guessed`: they only follow each other and fit; `reason`: why the pair cannot be computed, None where it can.
    """

    kind: str
    one: Side
    other: Side
    guessed: bool = False
    reason: str | None = None
    name: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", f"{self.one.label}->{self.other.label}")

    @property
    def heads(self) -> int | None:
        """How many heads the pair is a mean of, None where it is one pair."""
        counts = [side.blocks.count for side in (self.one, self.other) if side.blocks and side.index is None]
        return max(counts) if counts else None

    def of_head(self, head: int) -> Pair:
        """The pair of one head. A side with fewer blocks has one for each group of heads."""
        heads = self.heads or 1

        def one_block(side: Side) -> Side:
            if side.blocks is None or side.index is not None:
                return side
            return replace(side, index=head * side.blocks.count // heads)

        return Pair(self.kind, one_block(self.one), one_block(self.other), self.guessed, self.reason)


def block_word(word: str, index: int) -> str:
    """What one of several blocks is called: a head by its number, a direction by its name."""
    return DIRECTIONS[index] if word == "direction" else str(index)


def with_part(name: str, part: str) -> str:
    """`w`, `3` -> `w[3]`, and `w[q]`, `3` -> `w[q,3]`."""
    return f"{name[:-1]},{part}]" if name.endswith("]") else f"{name}[{part}]"


def make_pair(kind: str, one: tuple[Side, Layer], other: tuple[Side, Layer], guessed: bool = False) -> Pair:
    """A pair of sides and the layers that they are of, with the reason where what is compared differs in width."""
    (writer, first), (reader, second) = one, other
    for side, layer in (one, other):
        if side.blocks is not None and layer.shape[side.blocks.axis] % side.blocks.count:
            size = layer.shape[side.blocks.axis]
            reason = f"{side.blocks.count} {side.blocks.word}s do not divide the {size} of {layer.name}"
            return Pair(kind, writer, reader, guessed, reason)
    if "depthwise conv" in (first.role, second.role):
        return Pair(kind, writer, reader, guessed, "separate filters of a depthwise convolution have no vectors")
    widths = writer.dimension(first.shape), reader.dimension(second.shape)
    if widths[0] == widths[1] > 0:
        return Pair(kind, writer, reader, guessed)
    reason = f"of different widths: {widths[0]} for {writer.label}, {widths[1]} for {reader.label}"
    return Pair(kind, writer, reader, guessed, reason)
