"""`spectrascope rank`: effective rank and norms over time, from a store."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from ..errors import RequestError
from ..report.aggregate import aggregate as mean_rows
from ..report.aggregate import columns_of
from ..report.figures import rank_heat_map, require_plottable
from ..report.rows import RANK_COLUMNS, Row, head_rows, rank_rows, require_rows
from ..report.tables import Table, of_several, rank_details, rank_summary
from ..report.training_metrics import read_training_metrics
from ..selection import require_match
from ..steps import select_steps
from ._options import (
    AggregateOption,
    DebugOption,
    Format,
    FormatOption,
    LogStepsOption,
    MatrixOption,
    PlotOption,
    QuietOption,
    StepsOption,
    StoresArgument,
)
from ._output import Output
from ._store import all_failures, all_matrices, open_several, shared_warnings

COLUMNS = ["step", "matrix", "shape", "dtype", *RANK_COLUMNS, "sparsity", "made_of", "reason"]


def rank(
    stores: StoresArgument,
    matrix: MatrixOption = None,
    steps: StepsOption = "all",
    step: Annotated[
        int | None,
        typer.Option("--step", help="One step, one line per matrix, every column."),
    ] = None,
    all: Annotated[bool, typer.Option("--all", help="A line per step and matrix, every column.")] = False,
    heads_table: Annotated[
        bool, typer.Option("--heads-table", help="The heads of attention layers, each as a matrix of its own.")
    ] = False,
    plot: PlotOption = None,
    metrics: Annotated[
        Path | None,
        typer.Option("--metrics", metavar="CSV", help="Training metrics (a column `step`) to draw above the heat map."),
    ] = None,
    log_steps: LogStepsOption = False,
    aggregate: AggregateOption = False,
    format: FormatOption = Format.table,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> int:
    """Effective rank, norms and numerical rank of every matrix over time, from a store.

    The table has one line per matrix; --step, --matrix or --all open it up. JSON, JSONL and CSV have a row per step
    and matrix with every column; --aggregate gives the mean of each over several stores, and its standard deviation
    as NAME_std. --plot draws matrices by depth x steps, coloured by normalised effective rank.
    """
    output = Output(format, quiet)
    if step is not None and steps != "all":
        raise RequestError("--step is one step and --steps are several: give one of the two")
    if metrics and not plot:
        raise RequestError("--metrics are drawn above the heat map: add --plot FILE")
    training = read_training_metrics(metrics) if metrics else None
    if plot:
        require_plottable(plot)
    trajectories = open_several(stores, aggregate, output)
    chosen = [select_steps(one.steps, steps if step is None else str(step)) for one in trajectories]
    if heads_table:
        of_heads = [head_rows(one, some) for one, some in zip(trajectories, chosen, strict=True)]
        names = list(dict.fromkeys(row["matrix"] for rows in of_heads for row in rows))
        if not names:
            raise RequestError(
                "the store has no heads: analyse with --heads N, or with config.json beside the checkpoint"
            )
        matrices = require_match(names, matrix or ())
        asked = set(matrices)
        found = [[row for row in rows if row["matrix"] in asked] for rows in of_heads]
    else:
        matrices = require_match(all_matrices(trajectories), matrix or ())
        found = [rank_rows(one, some, matrices) for one, some in zip(trajectories, chosen, strict=True)]
    numbers = (*RANK_COLUMNS, "sparsity")
    rows = require_rows(mean_rows(found, numbers) if aggregate else found[0], matrices)
    all_steps = sorted(set(chain(*chosen)))
    if plot:
        rank_heat_map(rows, all_steps, plot, training, log_steps)
        output.say(f"figure: {plot}")
    details = all or step is not None or bool(matrix)
    columns = ["step", "matrix", "shape", "dtype", "seeds", *columns_of(numbers), "reason"] if aggregate else COLUMNS
    return output.rows(
        "rank",
        ", ".join(map(str, stores)),
        rows,
        columns=columns,
        tables=lambda: [rank_table(rows, all_steps, details, output, len(stores) if aggregate else 1)],
        warnings=shared_warnings(trajectories),
        failures=all_failures(trajectories, chosen, matrices),
    )


def rank_table(rows: list[Row], steps: list[int], details: bool, output: Output, seeds: int = 1) -> Table:
    """The table of rank rows: of one step, or with `details`, every column."""
    is_small = details or len(steps) == 1
    table = rank_details(rows) if is_small else rank_summary(rows, steps, output.terminal_width)
    return of_several(table, seeds)
