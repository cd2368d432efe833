"""The UNet of the thesis' diffusion models: convolutions down, transposed ones up, skips, a projection of time to each.

It is that of the tutorial by Song on score-based models, with skips that are added.
"""

from __future__ import annotations

from itertools import pairwise

from .convolutions import chain, fits_chain
from .facts import Facts
from .family import StoredPlainly
from .layers import Layer, Layers
from .pairs import Pair


class UNet(StoredPlainly):
    """conv1 to convN, tconvN to tconv1, and dense1, dense2, ... for time."""

    name = "UNet"

    def fits(self, layers: Layers) -> bool:
        """Whether convolutions down and up have these names, and each level fits the next and its skip."""
        down, up = _numbered(layers, "conv"), _numbered(layers, "tconv")
        if len(up) < 2 or set(down) != set(up):
            return False
        depth = len(down)
        line = [*(down[level] for level in range(1, depth + 1)), *(up[level] for level in range(depth, 0, -1))]
        skips = [(down[level], up[level]) for level in range(1, depth)]
        return all(fits_chain(one, other) for one, other in [*pairwise(line), *skips])

    def pairs(self, layers: Layers, facts: Facts, gate: str | None = None) -> list[Pair]:
        """The chain, then what each level down adds to the level of the way up: its skip, and its time projection.

        Time reaches the next convolution; what is projected on the way up is in no pair, as in the thesis.
        """
        down, up = _numbered(layers, "conv"), _numbered(layers, "tconv")
        time = _numbered(layers, "dense")
        depth = max(down)
        pairs: list[Pair | None] = []
        for level in range(1, depth):
            pairs.append(_chain("conv", down.get(level), down.get(level + 1)))
            pairs.append(_chain("time", time.get(level), down.get(level + 1)))
        pairs.append(_chain("time", time.get(depth), up.get(depth)))
        pairs.append(_chain("conv", down.get(depth), up.get(depth)))
        pairs += [_chain("conv", up.get(level), up.get(level - 1)) for level in range(depth, 1, -1)]
        for level in range(1, depth):
            pairs.append(_chain("skip", down.get(level), up.get(level)))
            pairs.append(_chain("time", time.get(level), up.get(level)))
        return [pair for pair in pairs if pair is not None]


def _numbered(layers: Layers, word: str) -> dict[int, Layer]:
    """`conv1`, `down.conv2.weight`, `dense3.dense`, ... by their numbers."""
    found = {}
    for number in range(1, 100):
        names = [f"{head}{word}{number}" for head in layers.heads_of(f"{word}{number}")]
        names += [f"{head}{word}{number}.{word}" for head in layers.heads_of(f"{word}{number}.{word}")]
        layer = layers.get(names[0]) if names else None
        if layer is None:
            break
        found[number] = layer
    return found


def _chain(kind: str, writer: Layer | None, reader: Layer | None) -> Pair | None:
    return chain(kind, writer, reader) if writer and reader else None


FAMILY = UNet()
