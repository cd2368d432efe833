"""`spectrascope align`: alignment of singular vectors between consecutive matrices, from a store."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from ..errors import RequestError
from ..metrics.alignment import LEADING
from ..report.aggregate import aggregate as mean_rows
from ..report.aggregate import columns_of
from ..report.alignment_rows import align_rows
from ..report.figures import require_plottable
from ..report.pairs import (
    Find,
    matrices_of,
    of_architecture,
    of_entries,
    pairs_over,
    remarks_on,
    require_entries,
    select_pairs,
)
from ..report.rows import Row
from ..report.tables import Table, of_several, score_details, score_summary
from ..steps import select_steps
from ..store import Trajectory
from ._options import (
    AggregateOption,
    DebugOption,
    Format,
    FormatOption,
    LogStepsOption,
    PlotOption,
    QuietOption,
    StepsOption,
    StoresArgument,
)
from ._output import Output
from ._store import all_failures, open_several, shared_warnings

LABEL = "alignment"


def align(
    stores: StoresArgument,
    pair: Annotated[
        list[str] | None,
        typer.Option("--pair", "-p", metavar="GLOB", help="Only pairs of such names, 'A->B', or kinds. Repeatable."),
    ] = None,
    steps: StepsOption = "all",
    step: Annotated[int | None, typer.Option("--step", help="One step, one line per pair.")] = None,
    all: Annotated[bool, typer.Option("--all", help="A line per step and pair.")] = False,
    matrix: Annotated[
        bool, typer.Option("--matrix", help="The whole matrix A of one pair at one step: in --plot, and in JSON.")
    ] = False,
    plot: PlotOption = None,
    plot_scores: Annotated[
        Path | None,
        typer.Option("--plot-scores", metavar="FILE", help="Draw scores: pairs by depth x steps."),
    ] = None,
    log_steps: LogStepsOption = False,
    pairs: Annotated[
        Path | None,
        typer.Option("--pairs", metavar="FILE", help="A TOML file of pairs, instead of those of the architecture."),
    ] = None,
    lstm_gate: Annotated[
        str | None,
        typer.Option(
            "--lstm-gate", metavar="GATE", help="i, f, g or o of an LSTM; r, z or n of a GRU (g and n by default)."
        ),
    ] = None,
    aggregate: AggregateOption = False,
    format: FormatOption = Format.table,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> int:
    """Alignment of consecutive layers: does a matrix read in the directions that the one before it writes?

    The score is the mean of |u_i . v'_i| over the first ten; the baseline beside it is what random directions give.
    --plot draws the diagonal of one pair, or the scores of several, over the steps. `show --pairs` lists the pairs.
    """
    output = Output(format, quiet)
    for figure, option in ((plot, "--plot"), (plot_scores, "--plot-scores")):
        if figure:
            require_plottable(figure, option)
    if step is not None and steps != "all":
        raise RequestError("--step is one step and --steps are several: give one of the two")
    if matrix and not plot and format is Format.table:
        raise RequestError("--matrix is for a figure or another program: add --plot FILE or --format json")
    if matrix and aggregate:
        raise RequestError("--matrix is of one store and --aggregate averages over several: give one of the two")
    trajectories = open_several(stores, aggregate, output)
    find = _finder(trajectories, pairs, lstm_gate)
    chosen = [select_steps(one.steps, steps if step is None else str(step)) for one in trajectories]
    count = LEADING if format is Format.table and not plot and not matrix else None
    selected = [
        select_pairs(pairs_over(one, some, find), pair or ()) for one, some in zip(trajectories, chosen, strict=True)
    ]
    found = [
        align_rows(one, some, of_store, count, matrix)
        for one, some, of_store in zip(trajectories, chosen, selected, strict=True)
    ]
    rows = mean_rows(found, ["score"], "pair") if aggregate else found[0]
    if not rows:
        output.say("no pair of matrices follows from the names; list pairs of your own in a file: --pairs FILE")
    all_steps = sorted(set(chain(*chosen)))
    _draw(rows, all_steps, plot, plot_scores, matrix, log_steps, output)
    return output.rows(
        "align",
        ", ".join(map(str, stores)),
        rows,
        columns=[
            *("step", "pair", "kind"),
            *(["seeds", *columns_of(["score"])] if aggregate else ["score"]),
            *("baseline", "diagonal"),
            *([] if aggregate else ["per_head", *(["matrix"] if matrix else [])]),
            *("guessed", "reason"),
        ],
        tables=lambda: [_table(rows, all_steps, all or bool(pair), output, len(trajectories))],
        warnings=[*shared_warnings(trajectories), *remarks_on(trajectories)],
        failures=all_failures(trajectories, chosen, matrices_of(selected)),
    )


def _finder(trajectories: list[Trajectory], file: Path | None, gate: str | None) -> Find:
    """Where pairs come from. Raises RequestError for a file that is no list of pairs of these stores."""
    if gate is not None and gate not in tuple("ifgorzn"):
        raise RequestError(f"--lstm-gate is i, f, g or o of an LSTM, and r, z or n of a GRU, not {gate!r}")
    if file is None:
        return of_architecture(gate)
    from ..architectures.user_pairs import read_entries

    entries = read_entries(file)
    require_entries(trajectories, entries)
    return of_entries(entries)


def _draw(
    rows: list[Row], steps: list[int], plot: Path | None, scores: Path | None, whole: bool, log: bool, output: Output
) -> None:
    if plot is None and scores is None:
        return
    from ..report import figures

    names = list(dict.fromkeys(row["pair"] for row in rows))
    if plot and whole:
        if len(rows) != 1:
            raise RequestError(f"--matrix draws one pair at one step, and these are {len(rows)}: add --pair and --step")
        figures.alignment_matrix(rows[0], plot)
    elif plot and len(names) == 1:
        figures.diagonal_heat_map(rows, steps, plot, names[0], LABEL, log)
    elif plot:
        _draw_scores(rows, steps, plot, log)
    if scores:
        _draw_scores(rows, steps, scores, log)
    for path in filter(None, (plot, scores)):
        output.say(f"figure: {path}")


def _draw_scores(rows: list[Row], steps: list[int], path: Path, log: bool) -> None:
    from ..report import figures

    figures.score_heat_map(rows, "pair", steps, path, f"{LABEL}, mean of the first {LEADING}", log)


def _table(rows: list[Row], steps: list[int], details: bool, output: Output, seeds: int) -> Table:
    if details or len(steps) == 1:
        table = score_details(rows, "pair", ["score", "baseline"])
    else:
        table = score_summary(rows, "pair", steps, LABEL, "highest", output.terminal_width)
    return of_several(table, seeds)
