"""Adapters of peft: LoRA factors, with their scale in adapter_config.json, and layers saved whole.

The scale is alpha / r, or alpha / sqrt(r) with rsLoRA (Kalajdzievski 2023), with exceptions for layers that a pattern
fits.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import sqrt
from typing import Any

from ...arrays import Array
from ...errors import CheckpointError
from ...tensors import TensorInfo
from .lora import WAY_OUT, Pair
from .rules import Beside, Effective, Refused, Tensors

CONFIG = "adapter_config.json"
FACTOR = re.compile(
    r"(?P<layer>.+)\.lora_(?P<kind>embedding_)?(?P<factor>A|B|E|magnitude_vector)"
    r"(?:\.(?!weight$|bias$)(?P<adapter>[^.]+))?(?:\.weight|\.(?P<bias>bias))?$"
)
# Layers that are trained whole: their weight, and the one that it stands in for.
SAVED = re.compile(
    r"(?P<layer>.+)\.(?:modules_to_save\.(?P<adapter>[^.]+)|(?P<original>original_module))\.(?P<rest>.+)$"
)
BASE = ".base_layer.weight"
# LoRA with an update that is not scale * B A.
VARIANTS = ("use_dora", "use_qalora", "use_bdlora")
# Words, dots, groups that are not repeated, and at most two wildcards.
PLAIN_PATTERN = re.compile(r"\^?(?:[\w.|()-]|\\\.)*(?:(?:\.|\\d)[*+](?:[\w.|()-]|\\\.)*){0,2}\$?$")
LONGEST_NAME = 500

Config = Mapping[str, Any] | None


def of_peft(tensors: Tensors, beside: Beside) -> Iterator[Effective | Refused]:
    """The update of every layer that has a pair of factors, and the layers that were trained whole."""
    yield from _saved_layers(tensors)
    layers: defaultdict[tuple[str, str | None], dict[str, TensorInfo]] = defaultdict(dict)
    biases: defaultdict[str, list[str]] = defaultdict(list)
    embeddings = set()
    for name, info in tensors.items():
        found = FACTOR.match(name)
        if found and found["bias"]:
            biases[found["layer"]].append(name)
        elif found:
            layers[found["layer"], found["adapter"]][found["factor"]] = info
            embeddings |= {found["layer"]} if found["kind"] else set()
    if not layers:
        return
    beside.used[CONFIG] = None
    config = _config(beside)
    several = len({adapter for _, adapter in layers}) > 1
    for (layer, adapter), factors in layers.items():
        base = tensors.get(layer + BASE) or tensors.get(f"{layer}.weight")
        also = tuple(biases[layer]) + ((base.name,) if base is not None else ())
        if reason := _reason_to_refuse(layer, factors, base, config):
            name, *others = (info.name for info in factors.values())
            yield Refused(name, reason, (*others, *also))
        else:
            pair = Pair(layer, factors["A"], factors["B"], also, is_embedding=layer in embeddings)
            yield pair.update(f"{layer}.weight" + (f"[{adapter}]" if several else ""), _scale(layer, config or {}))


def _config(beside: Beside) -> Config:
    """Raises CheckpointError for adapters of another kind."""
    config = beside.json(CONFIG)
    kind = None if config is None else config.get("peft_type")
    if kind not in (None, "LORA"):
        path = beside.path(CONFIG) or CONFIG
        raise CheckpointError(path, f"describes an adapter of type {kind}, not LoRA; {WAY_OUT}")
    return config


def _saved_layers(tensors: Tensors) -> Iterator[Effective]:
    found = {name: match for name in tensors if (match := SAVED.match(name))}
    several = len({match["adapter"] for match in found.values() if match["adapter"]}) > 1
    originals = {(match["layer"], match["rest"]): name for name, match in found.items() if match["original"]}
    for name, match in found.items():
        if match["adapter"]:
            original = originals.pop((match["layer"], match["rest"]), None)
            whole = f"{match['layer']}.{match['rest']}" + (f"[{match['adapter']}]" if several else "")
            info = replace(tensors[name], name=whole)
            yield Effective(info, (name,), _as_it_is, (original,) if original else ())


def _reason_to_refuse(
    layer: str, factors: Mapping[str, TensorInfo], base: TensorInfo | None, config: Config
) -> str | None:
    if base is not None:
        return f"a LoRA factor beside the weight that it changes; {WAY_OUT}"
    if "magnitude_vector" in factors or (config or {}).get("use_dora"):
        return f"DoRA, whose update depends on the weight below it; {WAY_OUT}"
    if "E" in factors or any((config or {}).get(variant) for variant in VARIANTS):
        return f"a factor of a variant of LoRA; {WAY_OUT}"
    if not {"A", "B"} <= factors.keys():
        return "a LoRA factor without the other"
    if config is None:
        return f"a LoRA factor whose scale is not known: there is no {CONFIG} beside it; copy it there"
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


def _as_it_is(weight: Array) -> Array:
    return weight
