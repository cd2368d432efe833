"""LoRA adapters (Hu et al. 2021) as the update that they add to a layer: scale * B A, named after the layer.

The scale is alpha / r, or alpha / sqrt(r) with rsLoRA (Kalajdzievski 2023); adapter_config.json holds both, with
exceptions for layers that a pattern fits. Files of kohya's scripts keep alpha beside the factors.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import sqrt
from typing import Any

import torch

from ...errors import CheckpointError
from ...tensors import TensorInfo
from .rules import Beside, Effective, Refused, Tensors

CONFIG = "adapter_config.json"
FACTOR = re.compile(
    r"(?P<layer>.+)\.lora_(?P<kind>embedding_)?(?P<factor>A|B|magnitude_vector)"
    r"(?:\.(?!weight$)(?P<adapter>[^.]+))?(?:\.weight)?$"
)
KOHYA = re.compile(r"(?P<layer>.+)\.(?:lora_(?P<factor>down|up)\.weight|(?P<other>alpha|dora_scale))$")
# Words, dots, groups that are not repeated, and at most two wildcards.
PLAIN_PATTERN = re.compile(r"\^?(?:[\w.|()-]|\\\.)*(?:(?:\.|\\d)[*+](?:[\w.|()-]|\\\.)*){0,2}\$?$")
LONGEST_NAME = 500
WAY_OUT = "merge it into its model (`model.merge_and_unload()` in peft) and analyse that"


def adapters(tensors: Tensors, beside: Beside) -> Iterator[Effective | Refused]:
    """The update of every layer that has a pair of factors. Raises CheckpointError for adapters of another kind."""
    config = beside.json(CONFIG)
    kind = None if config is None else config.get("peft_type")
    if kind not in (None, "LORA"):
        path = beside.path(CONFIG) or CONFIG
        raise CheckpointError(path, f"describes an adapter of type {kind}, not LoRA; {WAY_OUT}")
    if any(FACTOR.match(name) for name in tensors):
        beside.used[CONFIG] = None
    yield from _of_peft(tensors, config)
    yield from _of_kohya(tensors, beside)


@dataclass(frozen=True)
class _Pair:
    """The factors of one layer: A (r, in, ...) and B (out, r, ...)."""

    layer: str
    a: TensorInfo
    b: TensorInfo
    also: tuple[str, ...] = ()
    is_embedding: bool = False

    @property
    def rank(self) -> int:
        return self.a.shape[0] if self.a.shape else 0

    def update(self, name: str, scale: float) -> Effective | Refused:
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


def _of_peft(tensors: Tensors, config: Mapping[str, Any] | None) -> Iterator[Effective | Refused]:
    layers: defaultdict[tuple[str, str | None], dict[str, TensorInfo]] = defaultdict(dict)
    embeddings = set()
    for name, info in tensors.items():
        if found := FACTOR.match(name):
            layers[found["layer"], found["adapter"]][found["factor"]] = info
            if found["kind"]:
                embeddings.add(found["layer"])
    several = len({adapter for _, adapter in layers}) > 1
    for (layer, adapter), factors in layers.items():
        if reason := _reason_to_refuse(layer, factors, config):
            name, *others = (info.name for info in factors.values())
            yield Refused(name, reason, tuple(others))
        else:
            pair = _Pair(layer, factors["A"], factors["B"], is_embedding=layer in embeddings)
            name = f"{layer}.weight" + (f"[{adapter}]" if several else "")
            yield pair.update(name, _scale(layer, config or {}))


def _reason_to_refuse(layer: str, factors: Mapping[str, TensorInfo], config: Mapping[str, Any] | None) -> str | None:
    if "magnitude_vector" in factors or (config or {}).get("use_dora"):
        return f"DoRA, whose update depends on the weight below it; {WAY_OUT}"
    if not {"A", "B"} <= factors.keys():
        return "a LoRA factor without the other"
    if config is None:
        return f"a LoRA factor whose scale is not known: there is no {CONFIG} beside it"
    r, alpha = _rank(layer, config), _alpha(layer, config)
    if not all(isinstance(one, (int, float)) and one > 0 for one in (r, alpha)):
        return f"a LoRA factor whose scale is not known: {CONFIG} does not state r and lora_alpha plainly"
    rank = (*factors["A"].shape, 0)[0]
    if r != rank:
        return f"a LoRA factor of rank {rank}, where {CONFIG} states {r}"
    return None


def _rank(layer: str, config: Mapping[str, Any]) -> Any:
    return _of_pattern(config.get("rank_pattern"), layer, config.get("r"))


def _alpha(layer: str, config: Mapping[str, Any]) -> Any:
    return _of_pattern(config.get("alpha_pattern"), layer, config.get("lora_alpha"))


def _scale(layer: str, config: Mapping[str, Any]) -> float:
    r, alpha = float(_rank(layer, config)), float(_alpha(layer, config))
    return alpha / sqrt(r) if config.get("use_rslora") else alpha / r


def _of_pattern(patterns: Any, layer: str, default: Any) -> Any:
    """The value of the first pattern that fits the end of a layer's name, as peft looks it up; None where one is odd.

    A pattern is a regular expression, which could take for ever; those in use are names with a wildcard or two.
    """
    for pattern, value in patterns.items() if isinstance(patterns, dict) else ():
        if not PLAIN_PATTERN.match(pattern) or len(layer) > LONGEST_NAME:
            return None
        try:
            if re.match(rf"(.*\.)?({pattern})$", layer):
                return value
        except re.error:
            return None
    return default


def _of_kohya(tensors: Tensors, beside: Beside) -> Iterator[Effective | Refused]:
    layers: defaultdict[str, dict[str, TensorInfo]] = defaultdict(dict)
    for name, info in tensors.items():
        if found := KOHYA.match(name):
            layers[found["layer"]][found["factor"] or found["other"]] = info
    for layer, held in layers.items():
        if not {"down", "up"} & held.keys():
            continue
        alpha = held.get("alpha")
        if set(held) == {"down", "up", "alpha"} and alpha is not None and alpha.size == 1:
            pair = _Pair(layer, held["down"], held["up"], (alpha.name,))
            yield pair.update(f"{layer}.weight", float(beside.load(alpha.name)) / max(pair.rank, 1))
        else:
            name, *others = (info.name for info in held.values())
            yield Refused(name, f"a LoRA factor, whose scale is not known from the file; {WAY_OUT}", tuple(others))


def _product(a: torch.Tensor, b: torch.Tensor, scale: float, is_embedding: bool) -> torch.Tensor:
    a, b = a.double(), b.double()
    update = scale * (b.flatten(1) @ a.flatten(1))
    return update.T if is_embedding else update.reshape(b.shape[0], *a.shape[1:])
