"""`spectrascope lmc`: the losses between checkpoints: barriers, and the convex hull of several."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ..errors import RequestError
from ..report.figures import require_plottable
from ..report.rows import Row
from ..report.tables import Table, Words, number
from ._options import DebugOption, Format, FormatOption, PlotOption, QuietOption, TrustPickleOption
from ._output import Output
from ._progress import AnalysisProgress

CURVE = ["metric", "barrier", "max_deviation", "alpha", "alphas", "curve", "recalibrated", "reason"]
HULL = [
    *("metric", "p_conv", "p_conv_se", "p_rand", "p_rand_se", "distances"),
    *("singular_values", "singular_values_centred", "recalibrated", "reason"),
]
TaskOption = Annotated[
    str, typer.Option("--task", metavar="FILE", help="Your model and loss: task.py, package.module, or task.py:name.")
]


def lmc(
    checkpoints: Annotated[
        list[str], typer.Argument(metavar="CKPT CKPT...", help="Two checkpoints; three or more make a hull.")
    ],
    task: TaskOption,
    points: Annotated[int, typer.Option(min=2, help="Alphas from 0 to 1, ends included.")] = 11,
    samples: Annotated[int, typer.Option(min=1, help="Random points of a hull.")] = 100,
    seed: Annotated[int, typer.Option(min=0, help="Of the random points.")] = 0,
    no_recalibrate: Annotated[
        bool, typer.Option("--no-recalibrate", help="Interpolate the statistics of batch norm as well.")
    ] = False,
    plot: PlotOption = None,
    device: Annotated[str, typer.Option(help="Where the model runs: cpu, cuda, cuda:1, ...")] = "cpu",
    trust_pickle: TrustPickleOption = False,
    format: FormatOption = Format.table,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> int:
    """Linear mode connectivity: how high does the loss rise on the straight line between two checkpoints?

    Every number that the task gives has its own curve and barrier: the largest rise above the line between the ends,
    0 or more. Three or more checkpoints make a convex hull: P_conv is the share of its points that are better than the
    nearest checkpoint, P_rand that of random points equally far from it.
    """
    output = Output(format, quiet)
    if len(checkpoints) < 2:
        raise RequestError("two checkpoints have a line between them: name another")
    if plot:
        require_plottable(plot)
        if len(checkpoints) > 2:
            raise RequestError("--plot draws the losses between two checkpoints, and these are more")
    from ..landscape.rows import hull_of, line_between

    recalibrated = not no_recalibrate
    with AnalysisProgress(output) as progress:
        if len(checkpoints) == 2:
            rows = line_between(checkpoints, task, points, recalibrated, device, trust_pickle, progress)
        else:
            rows = hull_of(checkpoints, task, samples, seed, recalibrated, device, trust_pickle, progress)
    if plot:
        from ..report.landscape_figures import barrier_curves

        barrier_curves(rows, plot)
        output.say(f"figure: {plot}")
    code = output.rows(
        "lmc",
        ", ".join(checkpoints),
        rows,
        columns=CURVE if len(checkpoints) == 2 else HULL,
        tables=lambda: [_table(rows, len(checkpoints))],
    )
    return 3 if any(row["reason"] for row in rows) else code


def _table(rows: list[Row], count: int) -> Table:
    return _curves_table(rows) if count == 2 else _hulls_table(rows)


def _curves_table(rows: list[Row]) -> Table:
    headings = ["first", "last", "highest", "barrier", "max_deviation", "at alpha"]
    table = Table([Words("metric"), *headings, Words("note")])
    for row in rows:
        curve: list[Any] = row["curve"]
        highest = max((value for value in curve if value is not None), default=None)
        numbers = [curve[0], curve[-1], highest, *(row[name] for name in ("barrier", "max_deviation", "alpha"))]
        table.lines.append([row["metric"], *map(number, numbers), row["reason"] or ""])
    return table


def _hulls_table(rows: list[Row]) -> Table:
    table = Table([Words("metric"), "P_conv", "s.e.", "P_rand", "s.e. ", "mean distance", Words("note")])
    for row in rows:
        distances = [value for i, line in enumerate(row["distances"]) for value in line[:i]]
        numbers = [row[name] for name in ("p_conv", "p_conv_se", "p_rand", "p_rand_se")]
        mean = sum(distances) / len(distances)
        table.lines.append([row["metric"], *map(number, (*numbers, mean)), row["reason"] or ""])
    return table
