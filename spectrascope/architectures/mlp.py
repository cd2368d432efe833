"""MLPs and nn.Sequential: each Linear to the next."""

from __future__ import annotations

from itertools import pairwise

from .convolutions import chain
from .facts import Facts
from .family import StoredPlainly
from .layers import Layers, stem
from .lines import NUMBER, in_one_line, is_member
from .pairs import Pair


class MLP(StoredPlainly):
    """Linears in one line."""

    name = "MLP"

    def fits(self, layers: Layers) -> bool:
        """Whether names differ in a number alone; or say that they are in one line, and each fits the next."""
        names = [stem(layer.name) for layer in layers]
        if len(names) < 2 or any(layer.kernel or layer.role not in _ROLES for layer in layers):
            return False
        if len({NUMBER.sub("*", name) for name in names}) == 1 and in_one_line(names):
            return True
        in_line = all(one.shape[0] == other.shape[1] for one, other in pairwise(layers))
        return in_line and in_one_line(names)

    def pairs(self, layers: Layers, facts: Facts, gate: str | None = None) -> list[Pair]:
        """Each to the next; a guess where each is a member of something that is numbered, such as `layers.0.q_proj`."""
        guessed = not all(is_member(stem(layer.name)) for layer in layers)
        return [chain("linear", one, other, guessed) for one, other in pairwise(layers)]


_ROLES = ("linear", "head", "unembedding")
FAMILY = MLP()
