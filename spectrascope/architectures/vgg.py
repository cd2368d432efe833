"""VGG, LeNet and other plain stacks of convolutions and then Linears: each feeds the next."""

from __future__ import annotations

from itertools import pairwise

from .convolutions import chain, fits_chain
from .facts import Facts
from .family import StoredPlainly
from .layers import Layer, Layers, stem
from .lines import in_one_line
from .pairs import Pair


class PlainConvolutions(StoredPlainly):
    """Convolutions, then Linears, in one line."""

    name = "VGG or LeNet"

    def fits(self, layers: Layers) -> bool:
        """Whether names say so, of convolutions and of Linears, and each fits the next."""
        found = _in_line(layers)
        fits = len(found) > 1 and all(fits_chain(one, other) for one, other in pairwise(found))
        kinds = [[stem(layer.name) for layer in found if bool(layer.kernel) == is_conv] for is_conv in (True, False)]
        is_known = all(layer.role in _ROLES for layer in layers)
        return fits and is_known and bool(kinds[0]) and all(in_one_line(names) for names in kinds if names)

    def pairs(self, layers: Layers, facts: Facts, gate: str | None = None) -> list[Pair]:
        """Each layer to the next."""
        return [
            chain("conv" if other.kernel else "conv_linear" if one.kernel else "linear", one, other)
            for one, other in pairwise(_in_line(layers))
        ]


_ROLES = ("conv", "transposed conv", "linear", "head", "unembedding")


def _in_line(layers: Layers) -> list[Layer]:
    """Convolutions first: where names are sorted, `classifier` comes before `features`."""
    return sorted(layers, key=lambda layer: not layer.kernel)


FAMILY = PlainConvolutions()
