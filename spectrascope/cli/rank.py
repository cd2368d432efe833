"""`spectrascope rank`: effective rank and norms over time, from a store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import RequestError
from ..matrices import require_match
from ..report.figures import rank_heat_map, require_plottable
from ..report.rows import RANK_COLUMNS, Row, failures_among, rank_rows, require_rows
from ..report.tables import rank_details, rank_summary
from ..report.training_metrics import read_training_metrics
from ..steps import select_steps
from ..store import Trajectory
from ._options import (
    DebugOption,
    Format,
    FormatOption,
    LogStepsOption,
    MatrixOption,
    PlotOption,
    QuietOption,
    StepsOption,
    StoreArgument,
)
from ._output import Output
from ._store import open_with_steps


def rank(
    store: StoreArgument,
    matrix: MatrixOption = None,
    steps: StepsOption = "all",
    step: Annotated[
        int | None,
        typer.Option("--step", help="One step, one line per matrix, every column."),
    ] = None,
    all: Annotated[bool, typer.Option("--all", help="A line per step and matrix, every column.")] = False,
    plot: PlotOption = None,
    metrics: Annotated[
        Path | None,
        typer.Option("--metrics", metavar="CSV", help="Training metrics (a column `step`) to draw above the heat map."),
    ] = None,
    log_steps: LogStepsOption = False,
    format: FormatOption = Format.table,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> int:
    """Effective rank, norms and numerical rank of every matrix over time, from a store.

    The table has one line per matrix; --step, --matrix or --all open it up. JSON, JSONL and CSV have a row per step
    and matrix with every column. --plot draws matrices by depth x steps, coloured by normalised effective rank.
    """
    output = Output(format, quiet)
    if step is not None and steps != "all":
        raise RequestError("--step is one step and --steps are several: give one of the two")
    if metrics and not plot:
        raise RequestError("--metrics are drawn above the heat map: add --plot FILE")
    training = read_training_metrics(metrics) if metrics else None
    if plot:
        require_plottable(plot)
    trajectory = open_with_steps(store, output)
    chosen = select_steps(trajectory.steps, steps if step is None else str(step))
    matrices = require_match(trajectory.matrices, matrix or ())
    rows = require_rows(rank_rows(trajectory, chosen, matrices), matrices)
    if plot:
        rank_heat_map(rows, chosen, plot, training, log_steps)
        output.say(f"figure: {plot}")
    details = all or step is not None or bool(matrix)
    return report_ranks(trajectory, rows, chosen, matrices, output, "rank", str(store), details)


def report_ranks(
    trajectory: Trajectory,
    rows: list[Row],
    steps: list[int],
    matrices: list[str],
    output: Output,
    command: str,
    source: str,
    details: bool,
) -> int:
    """Write rank rows; gives the exit code."""
    return output.rows(
        command,
        source,
        rows,
        columns=["step", "matrix", "shape", "dtype", *RANK_COLUMNS, "sparsity", "made_of", "reason"],
        tables=lambda: [
            rank_details(rows) if details or len(steps) == 1 else rank_summary(rows, steps, output.terminal_width)
        ],
        warnings=trajectory.warnings,
        failures=failures_among(trajectory, steps, matrices),
    )
