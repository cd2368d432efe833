"""What a family of Transformers says of its blocks: the names of matrices, and how they are laid out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from ..tensors import TensorInfo
from .facts import Facts
from .layers import Layer, Layers
from .layouts import Layout, LayoutUnknown, Parts, Rows, thirds


@dataclass(frozen=True)
class Attention:
    """The names of an attention layer in its block: queries, keys and values apart, or fused in one matrix.

    Of `output` and `other_outputs` the first that is there counts; `reads_encoder`: its keys and values read the last
    block of the encoder.
    """

    output: str
    query: str = ""
    key: str = ""
    value: str = ""
    fused: str = ""
    layout: Layout = thirds
    reads_encoder: bool = False
    other_outputs: tuple[str, ...] = ()

    @property
    def outputs(self) -> tuple[str, ...]:
        """All names that the output projection may have."""
        return (self.output, *self.other_outputs)


@dataclass(frozen=True)
class Perceptron:
    """The names of an MLP in its block. A star stands for the number of an expert.

    `up` are W_1, or gate and up, as far as they are there; `otherwise` what stands for them where none of them is.
    """

    up: tuple[str, ...]
    down: str
    otherwise: tuple[str, ...] = ()


@dataclass(frozen=True)
class ExpertStack:
    """A tensor (experts, ...) of a block: whether each matrix is stored (in, out), and where gate and up are in it.

    `halves`: gate and up one after the other; `alternating`: row by row; None where it holds neither.
    """

    name: str
    input_first: bool = False
    gate_and_up: str | None = None

    def parts(self, rows: int) -> Parts:
        """The rows of gate and up."""
        if self.gate_and_up is None:
            return {}
        if self.gate_and_up == "halves":
            return {"gate": Rows(1, 0, rows // 2), "up": Rows(1, rows // 2, rows)}
        return {"gate": Rows(rows // 2, 0, 1), "up": Rows(rows // 2, 1, 2)}


Sublayer = tuple[Attention | Perceptron, ...]


@dataclass(frozen=True)
class Names:
    """What a family of Transformers calls its matrices.

    `sublayers` of a block, one after the other, the members of each side by side (variants that a model does not have
    are passed over); `embeddings`: names, of which the first that is there counts; `projection_in` between it and the
    first block; `before_unembedding` and `unembedding` read the last block; `outputs` are chains that do as well, such
    as a pooler and a classifier; `tied`: the model types whose unembedding is the embedding where
    config.json does not say otherwise; `known_by_names`: whether names alone tell the family,
    for which there is an MLP if it `needs_mlp`.
    """

    name: str
    sublayers: tuple[Sublayer, ...]
    embeddings: tuple[str, ...]
    model_types: tuple[str, ...] = ()
    projection_in: str = ""
    before_unembedding: tuple[str, ...] = ()
    unembedding: tuple[str, ...] = ("lm_head",)
    outputs: tuple[tuple[str, ...], ...] = ()
    parallel: Callable[[Facts], bool] = lambda facts: False
    tied: tuple[str, ...] = ()
    known_by_names: bool = True
    needs_mlp: bool = True
    stacks: tuple[ExpertStack, ...] = ()
    stored_input_first: Callable[[Mapping[str, TensorInfo], Facts], Iterable[str]] = lambda tensors, facts: ()
    attentions: tuple[Attention, ...] = field(init=False)

    def __post_init__(self) -> None:
        found = tuple(member for one in self.sublayers for member in one if isinstance(member, Attention))
        object.__setattr__(self, "attentions", found)


def parts_of(attention: Attention, head: str, fused: Layer, layers: Layers, facts: Facts) -> Parts | str:
    """Where queries, keys and values are in a fused matrix, or why that is not known."""
    output = output_of(attention, head, layers)
    try:
        return attention.layout(fused.shape[0], output.shape[1] if output else None, facts)
    except LayoutUnknown as unknown:
        return str(unknown)


def output_of(attention: Attention, head: str, layers: Layers) -> Layer | None:
    """The output projection of an attention layer."""
    return next((found for name in attention.outputs if (found := layers.get(head + name))), None)
