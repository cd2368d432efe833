"""`spectrascope lmc`: the losses between checkpoints: barriers, and the convex hull of several."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import RequestError
from ..report.figures import require_plottable
from ..report.rows import Row
from ..report.tables import Table, Words, number
from ..words import listed
from ._options import LARGEST_SEED, DebugOption, Format, FormatOption, PlotOption, QuietOption, TrustPickleOption
from ._output import Output
from ._progress import AnalysisProgress
from ._task import DeviceOption, NoRecalibrateOption, TaskOption, TextOption, TokensOption, runner_of

CURVE = ["metric", "barrier", "max_deviation", "alpha", "alphas", "curve", "recalibrated", "reason"]
AGREEMENT = ["matrix", "score", "baseline", "diagonal"]
BRANCH = ["group", "one", "other"]
HULL = [
    *("metric", "p_conv", "p_conv_se", "p_rand", "p_rand_se", "distances"),
    *("singular_values", "singular_values_centred", "recalibrated", "reason"),
]


def lmc(
    task: TaskOption,
    checkpoints: Annotated[
        list[str] | None, typer.Argument(metavar="CKPT CKPT...", help="Two checkpoints; three or more make a hull.")
    ] = None,
    points: Annotated[int, typer.Option(min=2, help="Alphas from 0 to 1, ends included.")] = 11,
    sva: Annotated[bool, typer.Option("--sva", help="Also the agreement of singular vectors of the two ends.")] = False,
    layerwise: Annotated[
        bool, typer.Option("--layerwise", help="Also one matrix at a time, the rest being the first checkpoint's.")
    ] = False,
    branches: Annotated[
        list[str] | None,
        typer.Option("--branches", metavar="GLOB", help="Barrier and agreement of each pair within each group."),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option("--group", metavar="REGEX", help="What branches of a group share in their path: split-[^/]*."),
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="Random points of a hull.")] = 100,
    seed: Annotated[int, typer.Option(min=0, max=LARGEST_SEED, help="Of the random points.")] = 0,
    text: TextOption = None,
    tokens: TokensOption = 10_000,
    no_recalibrate: NoRecalibrateOption = False,
    plot: PlotOption = None,
    device: DeviceOption = "cpu",
    trust_pickle: TrustPickleOption = False,
    format: FormatOption = Format.table,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> int:
    """Linear mode connectivity: how high does the loss rise on the straight line between two checkpoints?

    Every number that the task gives has its own curve and barrier: the largest rise above the line between the ends,
    0 or more. Three or more checkpoints make a convex hull: P_conv is the share of its points that are better than the
    nearest checkpoint, P_rand that of random points equally far from it. --branches compares runs that were split from
    one trunk, by the step at which they were.
    """
    output = Output(format, quiet)
    ends = checkpoints or []
    if plot:
        require_plottable(plot)
    groups, alone = _groups(ends, branches, group, sva or layerwise)
    if alone:
        output.warn(f"alone in a group, and left out: {listed(alone, 4)}")
    if not groups:
        _require_ends(ends, plot, sva or layerwise)
    runner = runner_of(task, text, tokens, groups[0].paths[0] if groups else ends[0], device, not no_recalibrate)
    from ..landscape import rows as landscape

    failures: list[Row] = []
    with AnalysisProgress(output, "evaluating", "points") as progress:
        if groups:
            rows, failures = landscape.between_branches(groups, runner, points, trust_pickle, progress)
        elif len(ends) == 2:
            rows = landscape.line_between(ends, runner, points, trust_pickle, progress, layerwise, sva)
        else:
            rows = landscape.hull_of(ends, runner, samples, seed, trust_pickle, progress)
    if (sva or groups) and not any("score" in row for row in rows):
        output.warn("no matrix of two checkpoints could be compared; `spectrascope show` says what there is")
    if plot:
        _draw(rows, bool(groups), plot)
        output.say(f"figure: {plot}")
    columns = HULL if len(ends) > 2 else CURVE
    if groups or sva or layerwise:
        columns = [*(BRANCH if groups else []), *AGREEMENT, *CURVE]
    code = output.rows(
        "lmc",
        ", ".join(branches or ends),
        rows,
        columns=columns,
        tables=lambda: _tables(rows, bool(groups), len(ends)),
        failures=failures,
    )
    return 3 if any(row["reason"] for row in rows if "metric" in row) else code


def _groups(ends: list[str], branches: list[str] | None, group: str | None, of_a_line: bool) -> Any:
    """The groups of branches that are meant, and who is alone; none without --branches. Raises RequestError."""
    if branches is None:
        if group is not None:
            raise RequestError("--group tells the groups of --branches apart: give those")
        return [], []
    if ends or of_a_line:
        raise RequestError("--branches names all checkpoints itself, and takes no --layerwise or --sva")
    from ..landscape.branches import GROUP, group_branches

    return group_branches(branches, group or GROUP)


def _require_ends(ends: list[str], plot: Path | None, of_a_line: bool) -> None:
    if len(ends) < 2:
        raise RequestError("two checkpoints have a line between them: name another")
    if len(ends) > 2 and plot:
        raise RequestError("--plot draws the losses between two checkpoints, and these are more")
    if len(ends) > 2 and of_a_line:
        raise RequestError("--sva and --layerwise are of the line between two checkpoints, and these are more")


def _draw(rows: list[Row], are_branches: bool, path: Path) -> None:
    from ..report.landscape_figures import barrier_curves, branches_figure

    if are_branches:
        branches_figure(rows, path)
    else:
        barrier_curves([row for row in rows if "metric" in row and row.get("matrix") is None], path)


def _tables(rows: list[Row], are_branches: bool, count: int) -> list[Table]:
    if count > 2:
        return [_hulls_table(rows)]
    losses = [row for row in rows if "metric" in row]
    agreement = [row for row in rows if "score" in row]
    if are_branches:
        return [_groups_table(rows)]
    return [_curves_table(losses), *([_agreement_table(agreement)] if agreement else [])]


def _curves_table(rows: list[Row]) -> Table:
    with_matrices = any("matrix" in row for row in rows)
    headings = ["first", "last", "highest", "barrier", "max_deviation", "at alpha"]
    table = Table([*([Words("matrix")] if with_matrices else []), Words("metric"), *headings, Words("note")])
    for row in rows:
        curve: list[Any] = row["curve"]
        highest = max((value for value in curve if value is not None), default=None)
        numbers = [curve[0], curve[-1], highest, *(row[name] for name in ("barrier", "max_deviation", "alpha"))]
        names = [row.get("matrix") or "(all)"] if with_matrices else []
        table.lines.append([*names, row["metric"], *map(number, numbers), row["reason"] or ""])
    return table


def _agreement_table(rows: list[Row]) -> Table:
    table = Table([Words("matrix"), "score", "baseline", Words("note")], title="singular vector agreement of the ends")
    for row in rows:
        table.lines.append([row["matrix"], number(row["score"]), number(row["baseline"]), row["reason"] or ""])
    return table


def _groups_table(rows: list[Row]) -> Table:
    """A line per group: the mean barrier of its pairs for each metric, and the mean agreement of all matrices."""
    metrics = list(dict.fromkeys(row["metric"] for row in rows if "metric" in row))
    table = Table(
        [Words("group"), "pairs", *(f"barrier {metric}" for metric in metrics), "SVA", "by chance", Words("note")]
    )
    for group in dict.fromkeys(row["group"] for row in rows):
        some = [row for row in rows if row["group"] == group]
        pairs = {(row["one"], row["other"]) for row in some}
        barriers = [_mean_of([row["barrier"] for row in some if row.get("metric") == metric]) for metric in metrics]
        scores = [_mean_of([row[name] for row in some if "score" in row]) for name in ("score", "baseline")]
        broken = sum(1 for row in some if row.get("metric") == metrics[0] and row["barrier"] is None)
        note = f"{broken} of {len(pairs)} pairs not finite, left out" if broken else ""
        table.lines.append([group, str(len(pairs)), *map(number, (*barriers, *scores)), note])
    return table


def _mean_of(values: list[float | None]) -> float | None:
    """The mean of the numbers that are there, None where there are none."""
    there = [value for value in values if value is not None]
    return sum(there) / len(there) if there else None


def _hulls_table(rows: list[Row]) -> Table:
    table = Table([Words("metric"), "P_conv", "s.e.", "P_rand", "s.e. ", "mean distance", Words("note")])
    for row in rows:
        distances = [value for i, line in enumerate(row["distances"]) for value in line[:i]]
        numbers = [row[name] for name in ("p_conv", "p_conv_se", "p_rand", "p_rand_se")]
        mean = sum(distances) / len(distances)
        table.lines.append([row["metric"], *map(number, (*numbers, mean)), row["reason"] or ""])
    return table
