"""What no family knows: matrices that follow each other and fit, as a guess."""

from __future__ import annotations

from itertools import pairwise

from .convolutions import chain, fits_chain
from .facts import Facts
from .family import StoredPlainly
from .layers import Layer, Layers
from .pairs import Pair, Side, make_pair


class Consecutive(StoredPlainly):
    """Any model."""

    name = "unknown"

    def fits(self, layers: Layers) -> bool:
        """Always."""
        return True

    def pairs(self, layers: Layers, facts: Facts, gate: str | None = None) -> list[Pair]:
        """Each matrix to the next whose size matches; the parts of a fused one, and single filters, are in none."""
        whole = [layer for layer in layers if not layer.name.endswith("]") and layer.role != "depthwise conv"]
        return [pair for one, other in pairwise(whole) if (pair := _pair(one, other))]


def _pair(one: Layer, other: Layer) -> Pair | None:
    if one.role == "embedding" and not one.kernel:  # (vocabulary, d): it is stored transposed
        sides = (Side(one.name, "right"), one), (Side(other.name, "right"), other)
        return make_pair("consecutive", *sides, guessed=True) if one.shape[1] == other.shape[1] else None
    return chain("consecutive", one, other, guessed=True) if fits_chain(one, other) else None


FAMILY = Consecutive()
