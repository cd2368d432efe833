"""What every family of architectures tells of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

from ..tensors import TensorInfo
from .facts import Facts
from .layers import Layers
from .layouts import Parts
from .pairs import Pair


class Family(Protocol):
    """The facts of one family. All names are those of the checkpoint, without wrappers."""

    @property
    def name(self) -> str:
        """What it is called in a report."""
        ...

    @property
    def model_types(self) -> tuple[str, ...]:
        """The `model_type`s of config.json that are of this family."""
        ...

    def fits(self, layers: Layers) -> bool:
        """Whether a model without config.json is of this family, by its names and shapes."""
        ...

    def has_names(self, layers: Layers) -> bool:
        """Whether a model that config.json says to be of this family has any of its names."""
        ...

    def input_first(self, tensors: Mapping[str, TensorInfo], facts: Facts) -> frozenset[str]:
        """The names of the tensors that are stored (in, out)."""
        ...

    def parts(self, layers: Layers, facts: Facts) -> dict[str, Parts]:
        """The parts of the matrices that are fused of several, such as q, k and v, by the name of the matrix."""
        ...

    def pairs(self, layers: Layers, facts: Facts, gate: str | None) -> list[Pair]:
        """The pairs of consecutive matrices, in the model's order. `gate` is that of a recurrent layer."""
        ...


class Guess:
    """A family that a model has the names of, though its config.json says that it is another: its pairs are guesses."""

    model_types: tuple[str, ...] = ()

    def __init__(self, family: Family) -> None:
        self._family = family
        self.name = family.name
        self.fits, self.has_names = family.fits, family.has_names
        self.input_first, self.parts = family.input_first, family.parts

    def pairs(self, layers: Layers, facts: Facts, gate: str | None) -> list[Pair]:
        """Those of the family."""
        return [replace(pair, guessed=True) for pair in self._family.pairs(layers, facts, gate)]


class StoredPlainly:
    """For families whose matrices are stored apart, (out, in)."""

    model_types: tuple[str, ...] = ()

    def has_names(self, layers: Layers) -> bool:
        """Any will do."""
        return True

    def input_first(self, tensors: Mapping[str, TensorInfo], facts: Facts) -> frozenset[str]:
        """None is."""
        return frozenset()

    def parts(self, layers: Layers, facts: Facts) -> dict[str, Parts]:
        """None is fused."""
        return {}
