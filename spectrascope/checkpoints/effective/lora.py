"""The update of a pair of LoRA factors (Hu et al. 2021): scale * B A."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ...arrays import Array
from ...tensors import TensorInfo
from .rules import Effective, Refused

WAY_OUT = "merge it into its model (`model.merge_and_unload()` in peft) and analyse that"


@dataclass(frozen=True)
class Pair:
    """The factors of one layer: A (r, in, ...) and B (out, r, ...)."""

    layer: str
    a: TensorInfo
    b: TensorInfo
    also: tuple[str, ...] = ()
    is_embedding: bool = False

    @property
    def rank(self) -> int:
        """r, the numbers between the factors."""
        return self.a.shape[0] if self.a.shape else 0

    def update(self, name: str, scale: float) -> Effective | Refused:
        """The weight (out, in, ...) that is added to the layer's, (in, out) for the factors of an embedding."""
        inner = (self.rank,) + (1,) * (len(self.b.shape) - 2)
        if min(len(self.a.shape), len(self.b.shape)) < 2 or self.b.shape[1:] != inner:
            return Refused(self.b.name, "a LoRA factor whose shape does not fit the other", (self.a.name, *self.also))
        shape = (self.b.shape[0], *self.a.shape[1:])
        info = replace(
            self.a,
            name=name,
            shape=shape[::-1] if self.is_embedding else shape,
            storage=None,
            made_of=f"LoRA update, {scale:.6g} * B A",
        )
        make = partial(_product, scale=scale, is_embedding=self.is_embedding)
        return Effective(info, (self.a.name, self.b.name), make, self.also)


def _product(a: Array, b: Array, scale: float, is_embedding: bool) -> Array:
    a, b = a.astype(np.float64), b.astype(np.float64)
    update: Array = scale * (b.reshape(len(b), -1) @ a.reshape(len(a), -1))
    return update.T if is_embedding else update.reshape(b.shape[0], *a.shape[1:])
