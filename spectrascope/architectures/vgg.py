"""VGG, LeNet and other plain stacks of convolutions and then Linears: each feeds the next."""

from __future__ import annotations

import re
from itertools import pairwise

from .convolutions import chain, fits_chain
from .facts import Facts
from .family import StoredPlainly
from .layers import Layer, Layers, stem
from .pairs import Pair

# The last word of a layer's name, as people call the members of a stack.
MEMBER = re.compile(
    r"(?:^|[._])(?:conv\w*|fc\w*|lin\w*|dense\w*|classifier|features|layers?|net|block|head|out\w*|proj|\d+)[._]?\d*$",
    re.IGNORECASE,
)


class PlainConvolutions(StoredPlainly):
    """Convolutions, then Linears, in one line."""

    name = "VGG or LeNet"

    def fits(self, layers: Layers) -> bool:
        """Whether all matrices are such members, and each fits the next."""
        found = _in_line(layers)
        is_line = len(found) > 1 and all(fits_chain(one, other) for one, other in pairwise(found))
        members = all(MEMBER.search(stem(layer.name)) and layer.role in _ROLES for layer in layers)
        return is_line and members and any(layer.kernel for layer in found)

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
