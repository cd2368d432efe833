"""Losses between checkpoints: the commands' work with a model, checkpoints in, rows out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ..errors import CheckpointError, NothingAnalysed
from ..pipeline import analyze
from ..progress import Muted, Progress
from ..report.agreement_rows import Reference, sva_rows
from .branches import Group
from .hull import explore
from .interpolation import Curve, curve
from .runner import Runner
from .weights import Computed, Weights, weights_at, weights_of

Row = dict[str, Any]


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
    with weights_of(checkpoints, runner.model, trust_pickle) as (one, other):
        matrices = [name for name in runner.order if layerwise and one[name].ndim > 1]
        total = (len(matrices) + 1) * points
        rows: list[Row] = []
        for done, name in enumerate([*matrices, None]):
            target = other if name is None else _with_one(runner, one, other, name)
            found = _curve(runner, one, target, points, progress, done * points, total)
            rows += [({"matrix": name} if layerwise else {}) | row for row in _curve_rows(found, runner)]
        if sva:
            ends = {"one": one, "other": other}
            (agreement,) = _agreement(runner, ends, [("one", "other")], Muted(progress, total, 0, total)).values()
            rows += agreement
    return rows


def _with_one(runner: Runner, one: Weights, other: Weights, name: str) -> Weights:
    """The first weights with one matrix of the others, under all the names that it has."""
    names = next(group for group in runner.groups if name in group)
    return Computed(one, lambda wanted: other[wanted] if wanted in names else one[wanted])


def hull_of(
    checkpoints: Sequence[str],
    runner: Runner,
    samples: int,
    seed: int,
    trust_pickle: bool,
    progress: Progress,
) -> list[Row]:
    """A row for each metric of the hull of several checkpoints. Raises RequestError, TaskError."""
    with weights_of(checkpoints, runner.model, trust_pickle) as ends:
        result = explore(runner, ends, samples, seed, lambda done: progress.update(done, samples, None))
    return [result.row(metric) | runner.label for metric in result.metrics]


def between_branches(
    groups: Sequence[Group], runner: Runner, points: int, trust_pickle: bool, progress: Progress
) -> tuple[list[Row], list[Row]]:
    """Rows of the line and of the agreement between each pair of each group, labelled `group, one, other`.

    Beside them come failures: branches that cannot be read. Raises RequestError, TaskError.
    """
    rows: list[Row] = []
    failures: list[Row] = []
    total = points * sum(len(list(combinations(group.paths, 2))) for group in groups)
    done = 0
    for group in groups:
        with ExitStack() as stack:
            ends: dict[str, Weights] = {}
            for path in group.paths:
                try:
                    ends[path] = stack.enter_context(weights_at(path, runner.model, trust_pickle))
                except CheckpointError as error:
                    failures.append({"path": error.path, "step": None, "matrix": None, "reason": error.reason})
            pairs = list(combinations(ends, 2))
            agreements = _agreement(runner, ends, pairs, Muted(progress, done, 0, total))
            for one, other in pairs:
                label = {"group": group.name, "one": one, "other": other}
                found = _curve(runner, ends[one], ends[other], points, progress, done, total)
                rows += [label | row for row in _curve_rows(found, runner)]
                rows += [label | row for row in agreements[one, other]]
                done += points
    return rows, failures


def _curve(
    runner: Runner, one: Weights, other: Weights, points: int, progress: Progress, done: int, total: int
) -> Curve:
    """A curve, `done` of `total` points having been evaluated before it."""
    return curve(runner, one, other, points, lambda now: progress.update(done + now, total, None))


def _curve_rows(found: Curve, runner: Runner) -> list[Row]:
    return [found.row(metric) | runner.label for metric in found.losses]


def _agreement(
    runner: Runner, ends: Mapping[str, Weights], pairs: Sequence[tuple[str, str]], progress: Progress
) -> dict[tuple[str, str], list[Row]]:
    """Rows `matrix, score, baseline, diagonal` of each pair of checkpoints, each decomposed once, tied tensors too.

    None where there is no matrix to compare.
    """
    names = [group[0] for group in runner.groups]
    steps = {path: step for step, path in enumerate(ends)}
    rows: dict[tuple[str, str], list[Row]] = {pair: [] for pair in pairs}
    with TemporaryDirectory(prefix="spectrascope-") as folder:
        weights = ((steps[path], {name: end[name] for name in names}) for path, end in ends.items())
        try:
            found = analyze(weights, Path(folder) / "ends.spectra", progress=progress)
        except NothingAnalysed:
            return rows
        for one, other in pairs:
            if {steps[one], steps[other]} <= set(found.steps):
                reference = Reference(found, {steps[one]: steps[other]}.get)
                rows[one, other] = sva_rows(found, [steps[one]], found.matrices, reference, None)
    columns = ("matrix", "score", "baseline", "diagonal", "reason")
    return {pair: [{name: row[name] for name in columns} for row in some] for pair, some in rows.items()}
