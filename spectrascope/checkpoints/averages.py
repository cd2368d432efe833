"""Averaged copies of the weights (EMA): told apart from the live ones, never mixed with them.

They are known by what trainers call them: `model_ema.*` (with the dots of the names left out by LitEma), `ema.*`,
`ema_model.*`, the key of an average beside the model, and `n_averaged` of torch.optim.swa_utils.AveragedModel.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Literal

from ..errors import Pathish, RequestError
from ..tensors import TensorInfo
from .names import WRAPPERS, without_wrappers

# Which of the two copies of a model: what was trained, or its average over steps.
Weights = Literal["live", "averaged"]
WAYS = ("auto", "live", "averaged")

AVERAGE = re.compile(r"(?:\w+_)?(?:ema|swa|averaged)(?:_\w+)?$", re.IGNORECASE)
# Parts of names: `swa_blocks` may be layers of sliding-window attention.
AVERAGE_PART = re.compile(
    r"(?:\w+_)?ema(?:_\w+)?$|(?:\w+_)?(?:swa|averaged)(?:_model|_weights|_params)?$", re.IGNORECASE
)
# What may stand before the part of a name that says it is an average.
BEFORE = frozenset(["module", "model", "net", "network", *WRAPPERS])
# ema-pytorch keeps the live model under this name.
ONLINE = "online_model"
COUNTER = "n_averaged"
SEPARATOR = re.compile(r"[./]")
DEEPEST = 30  # parts of a name


def is_average(key: str) -> bool:
    """Whether a key beside models in a checkpoint is that of an average."""
    return AVERAGE.match(key) is not None


def average_of(key: str) -> str:
    """What an average is of, by its key: `G_ema` -> `G`, `ema` -> ``."""
    return "_".join(part for part in key.split("_") if part.lower() not in ("ema", "swa", "averaged"))


def mark_averages(tensors: Mapping[str, TensorInfo]) -> dict[str, TensorInfo]:
    """The tensors, those of an average marked as such: by a counter of averages beside them, or by their names.

    A name tells where some weight under it has a live one that it may be of, or where there is no other weight.
    """
    counted = _counted(tensors)
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for name, info in tensors.items():
        rest = _after_average(name)
        if info.kind == "parameter" and rest != name:
            groups[name.removesuffix(rest)].append(name)
    named = {name for names in groups.values() for name in names}
    live = [name for name, info in tensors.items() if info.kind == "parameter" and name not in named]
    ends = _ends(name for name in live if len(tensors[name].shape) > 1)
    averages = {
        name
        for prefix, names in groups.items()
        if not ends or any(_matches(one.removeprefix(prefix), ends) for one in names)
        for name in names
    }

    def marked(info: TensorInfo) -> TensorInfo:
        is_one = info.name in averages or info.name.startswith(counted)
        return replace(info, kind="average") if is_one and info.kind == "parameter" else info

    return {name: marked(info) for name, info in tensors.items()}


def _ends(names: Iterable[str]) -> dict[str, set[str]]:
    """What names end in, with their dots and without, and the names that do; the last part alone tells nothing."""
    ends: defaultdict[str, set[str]] = defaultdict(set)
    for name in names:
        parts = SEPARATOR.split(name)
        for start in range(max(0, len(parts) - DEEPEST), max(len(parts) - 1, 1)):
            ends[".".join(parts[start:])].add(name)
            ends["".join(parts[start:])].add(name)
    return ends


def _matches(name: str, ends: Mapping[str, set[str]]) -> bool:
    """Whether a name, less its wrappers, is the end of another."""
    (bare,) = without_wrappers([SEPARATOR.sub(".", name)]).values()
    return bare in ends


def _counted(names: Iterable[str]) -> tuple[str, ...]:
    """What the names of tensors begin with that have a counter of averages beside them."""
    return tuple(name.removesuffix(COUNTER) for name in names if name.split(".")[-1] == COUNTER)


def _after_average(name: str, counted: tuple[str, ...] = ()) -> str:
    """What follows the part of a name that says it is of an average; the name itself where none does."""
    name = name.removeprefix(next((start for start in counted if name.startswith(start)), ""))
    place = 0
    for part in SEPARATOR.split(name)[:-1]:
        place += len(part) + 1
        if AVERAGE_PART.match(part):
            return name[place:]
        if part not in BEFORE:
            break
    return name


def require_weights(wanted: str) -> None:
    """Raises RequestError for what is neither a copy of the weights nor `auto`."""
    if wanted not in WAYS:
        raise RequestError(f"--weights is one of {', '.join(WAYS)}, not {wanted!r}")


def choose_weights(path: Pathish, tensors: Mapping[str, TensorInfo], wanted: str) -> Weights:
    """The copy to read: the one that is wanted, or for `auto` the live one if there is any.

    Raises RequestError where the checkpoint does not hold the copy that is wanted.
    """
    kinds = {info.kind for info in tensors.values() if len(info.shape) > 1}
    held: list[Weights] = []
    held += ["live"] if "parameter" in kinds else []
    held += ["averaged"] if "average" in kinds else []
    if wanted == "auto":
        return held[0] if held else "live"
    if wanted not in held and held:
        raise RequestError(
            f"{path} holds {held[0]} weights alone, where {wanted} ones are read: one trajectory does not mix the two; "
            "choose with --weights, or leave it out with --steps"
        )
    return "averaged" if wanted == "averaged" else "live"


def names_of(tensors: Mapping[str, TensorInfo], weights: Weights) -> tuple[dict[str, str], dict[str, TensorInfo]]:
    """The stored names of one copy -> the model's names, and the tensors with the other copy marked as left out.

    Averages go by the names of the live weights that they are of, where there are any.
    """
    kind = "parameter" if weights == "live" else "average"
    live = _without_online(name for name, info in tensors.items() if info.kind == "parameter")
    names = [name for name, info in tensors.items() if info.kind == kind]
    chosen = {name: live[name] for name in names} if weights == "live" else _live_names(names, list(live.values()))
    own = {name: replace(tensors[name], kind="parameter") for name in chosen}
    other = "the live copy" if weights == "averaged" else "an averaged (EMA) copy"
    left_out = {
        name: replace(info, kind="other", problem=other)
        for name, info in tensors.items()
        if info.kind in ("parameter", "average") and info.kind != kind
    }
    return chosen, {**tensors, **own, **left_out}


def _live_names(names: list[str], live: list[str]) -> dict[str, str]:
    """The names of the weights that averages are of: without their prefix, and with the dots that LitEma leaves out."""
    counted = _counted(names)
    inner = {name: _after_average(name, counted) for name in names}
    bare = without_wrappers(inner.values())
    ends = _ends(live)

    def live_name(name: str) -> str:
        dotted = SEPARATOR.sub(".", name)
        found = {name} & ends.get(dotted, set()) or ends.get(dotted, set())
        return next(iter(found)) if len(found) == 1 else name

    return {name: live_name(bare[one]) for name, one in inner.items()}


def _without_online(names: Iterable[str]) -> dict[str, str]:
    names, prefix = list(names), f"{ONLINE}."
    all_are = all(name.startswith(prefix) for name in names if "." in name)
    return {name: name.removeprefix(prefix) if all_are else name for name in names}
