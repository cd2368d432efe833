"""The pairs of consecutive matrices of a trajectory, from what its store says of the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..architectures.facts import from_plain
from ..architectures.layers import Layer, Layers, stem
from ..architectures.pairs import Pair
from ..architectures.registry import by_name
from ..architectures.user_pairs import Entry
from ..errors import RequestError
from ..selection import fits_glob
from ..store import FORMAT_VERSION, StepInfo, Trajectory
from ..words import choices, listed

Find = Callable[[Trajectory, int], list[Pair]]


def of_architecture(gate: str | None = None) -> Find:
    """Finds the pairs of the model's family at a step. `gate` is that of recurrent layers."""

    def find(layers: Layers, architecture: dict[str, Any]) -> list[Pair]:
        facts = from_plain(architecture.get("facts", {}))
        return by_name(architecture.get("family"), layers, facts).pairs(layers, facts, gate)

    return _remembering(find)


def of_entries(entries: Sequence[Entry]) -> Find:
    """Finds the pairs that a user lists, at a step."""

    def find(layers: Layers, _: dict[str, Any]) -> list[Pair]:
        pairs = [pair for entry in entries for pair in entry.pairs(layers)]
        seen: dict[str, Pair] = {}
        for pair in pairs:
            if seen.setdefault(pair.name, pair) != pair:
                raise RequestError(f"--pairs: two different pairs are {pair.name}; leave one to a file of its own")
        return list(seen.values())

    return _remembering(find)


def require_entries(trajectories: Sequence[Trajectory], entries: Sequence[Entry]) -> None:
    """Raises RequestError for an entry that stands for no matrix of any step."""
    models = [Layers(_every_layer(one).values()) for one in trajectories]
    for entry in entries:
        if not any(entry.pairs(layers) for layers in models):
            names = [stem(name) for one in trajectories for name in one.matrices]
            raise RequestError(f"--pairs: no matrix is {entry.one!r}; {choices(entry.one, names)}")


def pairs_over(trajectory: Trajectory, steps: Sequence[int], find: Find) -> dict[str, dict[int, Pair]]:
    """The pairs of these steps: {name: {step: pair}}, in the model's order."""
    found: dict[str, dict[int, Pair]] = {}
    for step in steps:
        for pair in find(trajectory, step):
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
            raise RequestError(
                f"no pair is {glob!r}; {known}; kinds of pairs: {listed(list(kinds), 12)}; "
                "a number in place of `head` is one head"
            )
        chosen |= fitting
    order = [*pairs, *chosen]
    return {name: chosen[name] for name in dict.fromkeys(order) if name in chosen}


def remarks_on(trajectories: Sequence[Trajectory]) -> list[str]:
    """What to know of stores whose steps do not say all that pairs depend on."""
    old = [one for one in trajectories if any(one.info(step).version < FORMAT_VERSION for step in one.steps)]
    return [
        f"{one.path} holds steps of an earlier spectrascope, without heads and kernels of convolutions; analyse again"
        for one in old
    ]


def matrices_of(selected: Sequence[dict[str, dict[int, Pair]]]) -> list[str]:
    """The names of the matrices that some pairs are of."""
    found = (pair for pairs in selected for by_step in pairs.values() for pair in by_step.values())
    return list(dict.fromkeys(side.matrix for pair in found for side in (pair.one, pair.other)))


def short(name: str) -> str:
    """A pair's name without `.weight`."""
    return "->".join(stem(side) for side in name.split("->"))


def _is_meant(by_step: dict[int, Pair], glob: str) -> bool:
    return any(
        fits_glob(label, glob) for pair in by_step.values() for label in (pair.name, short(pair.name), pair.kind)
    )


def _of_one_head(pairs: dict[str, dict[int, Pair]], glob: str) -> dict[str, dict[int, Pair]]:
    """The heads that are named, as in `NAME[q,3]->NAME[k,1]`."""
    found: dict[str, dict[int, Pair]] = {}
    for by_step in pairs.values():
        first = next(iter(by_step.values()))
        for head in range(first.heads or 0):
            name = first.of_head(head).name
            if fits_glob(name, glob) or fits_glob(short(name), glob):
                found[name] = {step: pair.of_head(head) for step, pair in by_step.items() if pair.heads == first.heads}
    return found


def _every_layer(trajectory: Trajectory) -> dict[str, Layer]:
    """The matrices of all steps by name, also those that were left out; in the order of the step that has the most."""
    by_step = [_layers_at(trajectory.info(step)) for step in trajectory.steps]
    found: dict[str, Layer] = {}
    for layers in sorted(by_step, key=len, reverse=True):
        found |= {name: layer for name, layer in layers.items() if name not in found}
    return found


def _layers_at(info: StepInfo) -> dict[str, Layer]:
    layers = [Layer(r.name, r.shape, r.role, r.kernel, r.tied) for r in info.records if not r.block_count]
    for place, plain in info.architecture.get("left_out", ()):
        lists = {key: tuple(plain[key]) for key in ("shape", "kernel", "tied")}
        layers.insert(place, Layer(**(plain | lists)))
    return {layer.name: layer for layer in layers}


def _remembering(find: Callable[[Layers, dict[str, Any]], list[Pair]]) -> Find:
    """Most steps have the same matrices, and so the same pairs.

    A pair is a fact of the model: where a step lacks a matrix, its neighbours are those that it has at other steps.
    """
    every: dict[int, dict[str, Layer]] = {}
    known: dict[object, list[Pair]] = {}

    def remembered(trajectory: Trajectory, step: int) -> list[Pair]:
        if id(trajectory) not in every:
            every[id(trajectory)] = _every_layer(trajectory)
        info = trajectory.info(step)
        layers = tuple((every[id(trajectory)] | _layers_at(info)).values())
        key = (layers, repr(info.architecture))
        if key not in known:
            known[key] = find(Layers(layers), info.architecture)
        return known[key]

    return remembered
