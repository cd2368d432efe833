"""Adapters as the update that they add to a layer, named after it; kinds that are not read are refused by name."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from ...errors import CheckpointError
from ...tensors import TensorInfo
from .lora import WAY_OUT, Pair
from .peft import CONFIG, of_peft
from .rules import Beside, Effective, Refused, Tensors

KOHYA = re.compile(r"(?P<layer>.+)\.(?:lora_(?P<factor>down|up)\.weight|(?P<other>alpha|dora_scale))$")
# What other kinds call their factors.
OTHERS = {
    "LoHa": re.compile(r"(?:^|\.)hada_(?:w[12]_[ab]|t[12])(?:\.|$)"),
    "LoKr": re.compile(r"(?:^|\.)lokr_(?:w[12](?:_[ab])?|t2)(?:\.|$)"),
    "IA3": re.compile(r"(?:^|\.)ia3_l(?:\.|$)"),
    "OFT": re.compile(r"(?:^|\.)b?oft_(?:[rRsS]|blocks)(?:\.|$)"),
    "VeRA": re.compile(r"(?:^|\.)vera_(?:lambda_[bd]|[AB])(?:\.|$)"),
    "prompt tuning": re.compile(r"(?:^|\.)prompt_embeddings(?:\.|$)"),
    "trained tokens": re.compile(r"(?:^|\.)trainable_tokens_delta(?:\.|$)"),
    "LoRA of another layout": re.compile(
        r"(?:^|\.)(?:\w*_)?lora(?:_[ab]|\.(?:up|down))(?:\.weight)?$|_lora\.(?:up|down)\.weight$"
    ),
}


def adapters(tensors: Tensors, beside: Beside) -> Iterator[Effective | Refused]:
    """The update of every layer that has a pair of factors. Raises CheckpointError where peft says it is no LoRA."""
    yield from of_peft(tensors, beside)
    yield from _of_kohya(tensors, beside)
    yield from _of_others(tensors, beside)


def _of_kohya(tensors: Tensors, beside: Beside) -> Iterator[Effective | Refused]:
    """Those of kohya's scripts keep alpha beside the factors: the scale is alpha / r."""
    layers: defaultdict[str, dict[str, TensorInfo]] = defaultdict(dict)
    for name, info in tensors.items():
        if found := KOHYA.match(name):
            layers[found["layer"]][found["factor"] or found["other"]] = info
    for layer, held in layers.items():
        if not {"down", "up"} & held.keys():
            continue
        alpha = held.get("alpha")
        if set(held) == {"down", "up", "alpha"} and alpha is not None and alpha.size == 1:
            pair = Pair(layer, held["down"], held["up"], (alpha.name,))
            yield pair.update(f"{layer}.weight", float(beside.load(alpha.name)) / max(pair.rank, 1))
        else:
            name, *others = (info.name for info in held.values())
            yield Refused(name, f"a LoRA factor, whose scale is not known from the file; {WAY_OUT}", tuple(others))


def _of_others(tensors: Tensors, beside: Beside) -> Iterator[Refused]:
    for name, info in tensors.items():
        kind = next((kind for kind, names in OTHERS.items() if names.search(name)), None)
        if kind is None:
            continue
        config = beside.json(CONFIG) or {}
        if config.get("peft_type", "LORA") != "LORA":
            path = beside.path(CONFIG) or CONFIG
            raise CheckpointError(path, f"describes an adapter of type {config['peft_type']}, not LoRA; {WAY_OUT}")
        if len(info.shape) > 1:
            yield Refused(name, f"an adapter of another kind ({kind}); {WAY_OUT}")
