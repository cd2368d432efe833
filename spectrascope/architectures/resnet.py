"""ResNets, by torchvision's and timm's names and by Hugging Face's: blocks that add to what they read."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise

from ..tensors import natural_key
from .convolutions import chain
from .facts import Facts
from .family import StoredPlainly
from .layers import Layer, Layers, stem
from .pairs import Pair

# The convolutions of a block, one after the other, and the one beside them where the width changes.
BLOCK = r"(?P<block>(?:.*\.)?(?:layers?|stages?|blocks?)\d*(?:\.\w+)*\.\d+)"
CONV = re.compile(BLOCK + r"\.(?:conv(?P<a>\d+)|layer\.(?P<b>\d+)\.convolution)$")
SHORTCUT = re.compile(BLOCK + r"\.(?:downsample|shortcut)(?:\.\w+)*$")
# What stands before the stages of one network, such as a teacher beside its student.
STAGE = re.compile(r"(?P<path>(?:.*?\.)?)(?:encoder\.)?(?:layers?|stages?|blocks?)\d*\..*(?:conv\d+|convolution)$")
STEM = re.compile(r"(?:.*\.)?(?:conv1|stem\.conv|embedder\.convolution|conv_stem)$")
HEAD = re.compile(r"(?:.*\.)?(?:fc|classifier|linear|head)(?:\.\w+)?$")


class ResNet(StoredPlainly):
    """A stem, blocks of two or three convolutions with a shortcut beside them, and a Linear."""

    name = "ResNet"
    model_types = ("resnet",)

    def fits(self, layers: Layers) -> bool:
        """Whether there are blocks of more than one convolution."""
        has_blocks = any(len(convolutions) > 1 for convolutions, _ in _blocks(layers))
        return has_blocks and bool(_matching(layers, STEM))

    def pairs(self, layers: Layers, facts: Facts, gate: str | None = None) -> list[Pair]:
        """In a block one convolution to the next; what a block adds up to the next block's first and its shortcut."""
        paths = dict.fromkeys(match["path"] for layer in layers if (match := STAGE.match(stem(layer.name))))
        if len(paths) < 2:
            return _pairs(layers)
        networks = [Layers(layer for layer in layers if layer.name.startswith(path)) for path in paths]
        return [pair for network in networks for pair in _pairs(network)]


def _pairs(layers: Layers) -> list[Pair]:
    """Those of one network."""
    pairs: list[Pair] = []
    writers = _matching(layers, STEM)[:1]
    for convolutions, shortcut in _blocks(layers):
        for writer in writers:
            pairs += [chain("conv_conv", writer, reader) for reader in (*convolutions[:1], *shortcut)]
        pairs += [chain("conv", one, other) for one, other in pairwise(convolutions)]
        writers = [*convolutions[-1:], *shortcut]
    for reader in _matching(layers, HEAD)[:1]:
        pairs += [chain("conv_linear", writer, reader) for writer in writers]
    return pairs


def _matching(layers: Iterable[Layer], pattern: re.Pattern[str]) -> list[Layer]:
    return [layer for layer in layers if pattern.match(stem(layer.name)) and not CONV.match(stem(layer.name))]


def _blocks(layers: Layers) -> list[tuple[list[Layer], list[Layer]]]:
    """The convolutions and the shortcut of each block, in the order of the numbers in their names."""
    convolutions: dict[str, list[tuple[int, Layer]]] = {}
    shortcuts: dict[str, list[Layer]] = {}
    for layer in layers:
        if match := CONV.match(stem(layer.name)):
            convolutions.setdefault(match["block"], []).append((int(match["a"] or match["b"]), layer))
        elif layer.kernel and (match := SHORTCUT.match(stem(layer.name))):
            shortcuts.setdefault(match["block"], []).append(layer)
    return [
        ([layer for _, layer in sorted(convolutions[block], key=lambda one: one[0])], shortcuts.get(block, []))
        for block in sorted(convolutions, key=natural_key)
    ]


FAMILY = ResNet()
