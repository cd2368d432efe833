"""Losses between checkpoints: the commands' work with a model, checkpoints in, rows out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ..pipeline import analyze
from ..progress import Muted, Progress
from ..report.agreement_rows import Reference, sva_rows
from .branches import Group
from .hull import explore
from .interpolation import Curve, curve
from .runner import Runner
from .weights import Weights, read_weights, require_alike

Row = dict[str, Any]
Read = Callable[[int], Weights]


def line_between(
    checkpoints: Sequence[str],
    runner: Runner,
    points: int,
    trust_pickle: bool,
    progress: Progress,
    layerwise: bool = False,
    sva: bool = False,
) -> list[Row]:
    """Rows `metric, barrier, ...` of the line between two checkpoints, and with `sva` rows `matrix, score, ...`.

    With `layerwise`, first the lines along which one matrix alone goes from the first checkpoint to the second, while
    all the rest stays the first's. Raises RequestError, TaskError.
    """
    read = _reader(checkpoints, runner, trust_pickle)
    one, other = read(0), read(1)
    require_alike(list(checkpoints), [one, other])
    matrices = [name for name in runner.order if layerwise and name in one and one[name].ndim > 1]
    total = (len(matrices) + 1) * points
    rows: list[Row] = []
    for done, name in enumerate([*matrices, None]):
        target = other if name is None else {**one, name: other[name]}
        found = _curve(runner, one, target, points, progress, done * points, total)
        rows += [({"matrix": name} if layerwise else {}) | row for row in _curve_rows(found, runner)]
    return rows + (_agreement(read, 2, [(0, 1)], progress)[0, 1] if sva else [])


def hull_of(
    checkpoints: Sequence[str],
    runner: Runner,
    samples: int,
    seed: int,
    trust_pickle: bool,
    progress: Progress,
) -> list[Row]:
    """A row for each metric of the hull of several checkpoints. Raises RequestError, TaskError."""
    read = _reader(checkpoints, runner, trust_pickle)
    for place in range(len(checkpoints)):
        read(place)  # all differences are named before any loss is computed
    result = explore(runner, read, len(checkpoints), samples, seed, lambda done: progress.update(done, samples, None))
    return [result.row(metric) | runner.label for metric in result.inside]


def between_branches(
    groups: Sequence[Group], runner: Runner, points: int, trust_pickle: bool, progress: Progress
) -> list[Row]:
    """Rows of the line and of the agreement between each pair of each group, labelled `group, one, other`.

    Raises RequestError, TaskError.
    """
    rows: list[Row] = []
    pairs_of = {group.name: list(combinations(range(len(group.paths)), 2)) for group in groups}
    total = points * sum(map(len, pairs_of.values()))
    done = 0
    for group in groups:
        read = _reader(group.paths, runner, trust_pickle)
        pairs = pairs_of[group.name]
        agreements = _agreement(read, len(group.paths), pairs, Muted(progress))
        for i, j in pairs:
            label = {"group": group.name, "one": group.paths[i], "other": group.paths[j]}
            require_alike([group.paths[i], group.paths[j]], [read(i), read(j)])
            found = _curve(runner, read(i), read(j), points, progress, done, total)
            rows += [label | row for row in _curve_rows(found, runner)]
            rows += [label | row for row in agreements[i, j]]
            done += points
    return rows


def _curve(
    runner: Runner, one: Weights, other: Weights, points: int, progress: Progress, done: int, total: int
) -> Curve:
    """A curve, `done` of `total` points having been evaluated before it."""
    return curve(runner, one, other, points, lambda now: progress.update(done + now, total, None))


def _curve_rows(found: Curve, runner: Runner) -> list[Row]:
    return [found.row(metric) | runner.label for metric in found.losses]


def _reader(checkpoints: Sequence[str], runner: Runner, trust_pickle: bool) -> Read:
    """Reads the weights of a checkpoint by its place; two are held."""

    @lru_cache(maxsize=2)
    def read(place: int) -> Weights:
        return read_weights(checkpoints[place], runner.model, trust_pickle)

    return read


def _agreement(
    read: Read, count: int, pairs: Sequence[tuple[int, int]], progress: Progress
) -> dict[tuple[int, int], list[Row]]:
    """Rows `matrix, score, baseline, diagonal` of each pair of checkpoints, each of which is decomposed once."""
    with TemporaryDirectory(prefix="spectrascope-") as folder:
        weights = ((place, read(place)) for place in range(count))
        found = analyze(weights, Path(folder) / "ends.spectra", progress=Muted(progress))
        rows = {(i, j): sva_rows(found, [i], found.matrices, Reference(found, {i: j}.get), None) for i, j in pairs}
    columns = ("matrix", "score", "baseline", "diagonal", "reason")
    return {pair: [{name: row[name] for name in columns} for row in some] for pair, some in rows.items()}
