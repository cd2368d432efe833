"""A family of Transformers: how it is recognised, and what it says of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..tensors import TensorInfo
from .blocks import Names, Perceptron, output_of, parts_of
from .facts import Facts
from .layers import Layers
from .layouts import Parts
from .pairs import Pair
from .residual import ResidualStream


@dataclass(frozen=True)
class Transformer(Names):
    """A family, by the names of its matrices."""

    def fits(self, layers: Layers) -> bool:
        """Whether there is a block with an attention layer and an MLP of these names."""
        downs = [member.down for one in self.sublayers for member in one if isinstance(member, Perceptron)]
        return self.known_by_names and any(
            output_of(attention, head, layers)
            and (not self.needs_mlp or any(layers.under(head, down) for down in downs))
            for attention in self.attentions
            for head in layers.heads_of(attention.fused or attention.query)
        )

    def has_names(self, layers: Layers) -> bool:
        """Whether any of its blocks is there."""
        return bool(ResidualStream(self, layers, Facts()).heads())

    def input_first(self, tensors: Mapping[str, TensorInfo], facts: Facts) -> frozenset[str]:
        """GPT-2's Conv1D, and stacks of experts of some families."""
        stacks = [stack.name for stack in self.stacks if stack.input_first]
        of_stacks = [name for name in tensors if any(_ends_in(name, stack) for stack in stacks)]
        return frozenset([*self.stored_input_first(tensors, facts), *of_stacks])

    def parts(self, layers: Layers, facts: Facts) -> dict[str, Parts]:
        """q, k and v of fused projections, gate and up of the experts of a stack."""
        found: dict[str, Parts] = {}
        for attention in self.attentions:
            for head in layers.heads_of(attention.fused) if attention.fused else []:
                fused = layers.get(head + attention.fused)
                if fused is not None:
                    parts = parts_of(attention, head, fused, layers, facts)
                    found |= {fused.name: parts} if isinstance(parts, dict) else {}
        for layer in layers:
            stack = next((one for one in self.stacks if _ends_in(layer.name.partition("[")[0], one.name)), None)
            down = layers.get(layer.name.replace("gate_up", "down")) if stack and layer.role == "expert" else None
            if stack is not None and down is not None and layer.shape[0] == 2 * down.shape[1]:
                found[layer.name] = stack.parts(layer.shape[0])
        return found

    def pairs(self, layers: Layers, facts: Facts, gate: str | None = None) -> list[Pair]:
        """The pairs in the order of the blocks."""
        return ResidualStream(self, layers, facts).pairs()


def _ends_in(name: str, tail: str) -> bool:
    return name == tail or name.endswith(f".{tail}")
