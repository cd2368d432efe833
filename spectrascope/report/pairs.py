"""The pairs of consecutive matrices of a trajectory, from what its store says of the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..architectures import Layer, Layers, by_name
from ..architectures.facts import from_plain
from ..architectures.layers import stem
from ..architectures.pairs import Pair
from ..architectures.user_pairs import Entry
from ..errors import RequestError
from ..selection import fits_glob
from ..store import StepInfo, Trajectory
from ..words import choices, listed

Find = Callable[[StepInfo], list[Pair]]


def of_architecture(gate: str | None = None) -> Find:
    """Finds the pairs of the model's family. `gate` is that of recurrent layers."""

    def find(info: StepInfo) -> list[Pair]:
        layers = _layers(info)
        facts = from_plain(info.architecture.get("facts", {}))
        return by_name(info.architecture.get("family"), layers, facts).pairs(layers, facts, gate)

    return _remembering(find)


def of_entries(entries: Sequence[Entry]) -> Find:
    """Finds the pairs that a user lists."""

    def find(info: StepInfo) -> list[Pair]:
        layers = _layers(info)
        return [pair for entry in entries for pair in entry.pairs(layers)]

    return _remembering(find)


def require_entries(trajectories: Sequence[Trajectory], entries: Sequence[Entry]) -> None:
    """Raises RequestError for an entry that stands for no matrix of any step."""
    models = [_layers(one.info(step)) for one in trajectories for step in one.steps]
    for entry in entries:
        if not any(entry.pairs(layers) for layers in models):
            names = [stem(name) for one in trajectories for name in one.matrices]
            raise RequestError(f"--pairs: no matrix is {entry.one!r}; {choices(entry.one, names)}")


def pairs_over(trajectory: Trajectory, steps: Sequence[int], find: Find) -> dict[str, dict[int, Pair]]:
    """The pairs of these steps: {name: {step: pair}}, in the model's order."""
    found: dict[str, dict[int, Pair]] = {}
    for step in steps:
        for pair in find(trajectory.info(step)):
            found.setdefault(pair.name, {})[step] = pair
    return found


def select_pairs(pairs: dict[str, dict[int, Pair]], globs: Sequence[str]) -> dict[str, dict[int, Pair]]:
    """Those of a name (`.weight` may be left out), of a kind, or of one head of a pair, that are asked for.

    All, where nothing is. Raises RequestError for a glob that fits none.
    """
    if not globs:
        return pairs
    chosen: dict[str, dict[int, Pair]] = {}
    for glob in globs:
        fitting = {name: by_step for name, by_step in pairs.items() if _is_meant(by_step, glob)}
        fitting = fitting or _of_one_head(pairs, glob)
        if not fitting:
            kinds = dict.fromkeys(pair.kind for by_step in pairs.values() for pair in by_step.values())
            known = choices(glob, list(pairs)) if pairs else "the store has none"
            raise RequestError(f"no pair is {glob!r}; {known}; kinds of pairs: {listed(list(kinds), 12)}")
        chosen |= fitting
    order = [*pairs, *chosen]
    return {name: chosen[name] for name in dict.fromkeys(order) if name in chosen}


def short(name: str) -> str:
    """A pair's name without `.weight`."""
    return "->".join(stem(side) for side in name.split("->"))


def _is_meant(by_step: dict[int, Pair], glob: str) -> bool:
    return any(
        fits_glob(label, glob) for pair in by_step.values() for label in (pair.name, short(pair.name), pair.kind)
    )


def _of_one_head(pairs: dict[str, dict[int, Pair]], name: str) -> dict[str, dict[int, Pair]]:
    """The one head that is named, as in `NAME[q,3]->NAME[k,1]`."""
    for by_step in pairs.values():
        for heads in dict.fromkeys(pair.heads or 0 for pair in by_step.values()):
            for head in range(heads):
                one = {step: pair.of_head(head) for step, pair in by_step.items() if pair.heads == heads}
                label = next(iter(one.values())).name
                if name in (label, short(label)):
                    return {label: one}
    return {}


def _layers(info: StepInfo) -> Layers:
    return Layers(Layer(r.name, r.shape, r.role, r.kernel, r.tied) for r in info.records if not r.blocks)


def _remembering(find: Find) -> Find:
    """Most steps have the same matrices, and so the same pairs."""
    known: dict[object, list[Pair]] = {}

    def remembered(info: StepInfo) -> list[Pair]:
        matrices = tuple((r.name, r.shape, r.role, r.kernel, r.tied) for r in info.records if not r.blocks)
        key = (matrices, repr(info.architecture))
        if key not in known:
            known[key] = find(info)
        return known[key]

    return remembered
