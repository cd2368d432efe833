"""`spectrascope sva`: agreement of singular vectors between checkpoints, from a store."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from ..errors import RequestError
from ..metrics.alignment import LEADING
from ..report.aggregate import aggregate as mean_rows
from ..report.aggregate import columns_of
from ..report.agreement_rows import Reference, sva_rows
from ..report.figures import require_plottable
from ..report.rows import ABSENT, Row, require_rows
from ..report.tables import Table, of_several, score_details, score_summary
from ..selection import require_match
from ..steps import select_steps
from ..store import Trajectory
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
)
from ._output import Output
from ._store import all_failures, all_matrices, open_with_steps, shared_warnings


def sva(
    stores: Annotated[
        list[Path],
        typer.Argument(metavar="STORE...", help="A store; two of them with --paired, any number with --aggregate."),
    ],
    reference: Annotated[
        str,
        typer.Option("--reference", "-r", metavar="WHAT", help="last, first, a step, or another store (same steps)."),
    ] = "last",
    paired: Annotated[bool, typer.Option("--paired", help="Compare the same steps of two stores.")] = False,
    subspace: Annotated[
        int | None,
        typer.Option("--subspace", min=1, metavar="K", help="Also the overlap of the spaces of the first K vectors."),
    ] = None,
    matrix: MatrixOption = None,
    steps: StepsOption = "all",
    all: Annotated[bool, typer.Option("--all", help="A line per step and matrix.")] = False,
    aggregate: AggregateOption = False,
    plot: PlotOption = None,
    log_steps: LogStepsOption = False,
    format: FormatOption = Format.table,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> int:
    """Singular vector agreement: are the leading directions of a matrix those that it has at the reference?

    The score is the mean of |u_i . u'_i| |v_i . v'_i| over the first ten; the baseline beside it is what random
    directions give. --plot draws the diagonal of one matrix, or the scores of several, over the steps.
    """
    output = Output(format, quiet)
    if plot:
        require_plottable(plot)
    if paired and aggregate:
        raise RequestError("--paired compares two stores and --aggregate averages over several: give one of the two")
    groups = [[store] for store in stores] if aggregate else [stores]
    opened = [_opened(group, reference, paired, output) for group in groups]
    trajectories = [trajectory for trajectory, _ in opened]
    matrices = require_match(all_matrices(trajectories), matrix or ())
    chosen = [select_steps(one.steps, steps) for one in trajectories]
    count = LEADING if format is Format.table and not plot else None
    found = [
        sva_rows(trajectory, some, matrices, compared, count, subspace)
        for (trajectory, compared), some in zip(opened, chosen, strict=True)
    ]
    overlaps = ["left_overlap", "right_overlap"] if subspace else []
    numbers = ["score", *overlaps]
    require_rows([row for rows in found for row in rows if row["reason"] != ABSENT], matrices)
    rows = mean_rows(found, numbers) if aggregate else found[0]
    all_steps = sorted(set(chain(*chosen)))
    if plot:
        _draw(rows, all_steps, plot, log_steps)
        output.say(f"figure: {plot}")
    return output.rows(
        "sva",
        ", ".join(map(str, stores)),
        rows,
        columns=[
            *("step", "reference", "matrix"),
            *(["seeds", *columns_of(numbers)] if aggregate else ["score"]),
            *("baseline", "diagonal"),
            *([] if aggregate else overlaps),
            "reason",
        ],
        tables=lambda: [
            _table(rows, all_steps, overlaps, all or bool(matrix), output, len(stores) if aggregate else 1)
        ],
        warnings=shared_warnings(trajectories),
        failures=all_failures(trajectories, chosen, matrices),
    )


def _opened(stores: list[Path], reference: str, paired: bool, output: Output) -> tuple[Trajectory, Reference]:
    """The trajectory to report and what its steps are compared with. Raises RequestError for what makes no sense."""
    if len(stores) > 2 or (len(stores) == 2) != paired:
        raise RequestError(
            "one store is compared with itself, two with --paired, several each with itself with --aggregate; "
            "or name another as --reference"
        )
    trajectory = open_with_steps(stores[0], output)
    is_step = reference in ("first", "last") or reference.isdecimal()
    other = stores[1] if paired else Path(reference)
    if not paired and (is_step or not other.is_dir()):
        step = _step(trajectory, reference)
        return trajectory, Reference(trajectory, lambda _: step)
    reference_trajectory = open_with_steps(other, output)
    there = set(reference_trajectory.steps)
    if not there.intersection(trajectory.steps):
        raise RequestError(f"{stores[0]} and {other} have no step in common")
    return trajectory, Reference(reference_trajectory, lambda step: step if step in there else None)


def _step(trajectory: Trajectory, reference: str) -> int:
    if reference in ("first", "last"):
        return trajectory.steps[0 if reference == "first" else -1]
    if not reference.isdecimal():
        raise RequestError(f"--reference is last, first, a step or a store, not {reference!r}")
    return select_steps(trajectory.steps, reference)[0]


def _draw(rows: list[Row], steps: list[int], path: Path, log: bool) -> None:
    from ..report import figures

    names = {row["matrix"] for row in rows}
    label = "singular vector agreement"
    if len(names) == 1:
        figures.diagonal_heat_map(rows, steps, path, rows[0]["matrix"], label, log)
    else:
        figures.score_heat_map(rows, "matrix", steps, path, f"{label}, mean of the first {LEADING}", log)


def _table(rows: list[Row], steps: list[int], overlaps: list[str], details: bool, output: Output, seeds: int) -> Table:
    if details or overlaps or len(steps) == 1:
        table = score_details(rows, "matrix", ["score", "baseline", *overlaps])
    else:
        table = score_summary(rows, "matrix", steps, "singular vector agreement", "lowest", output.terminal_width)
    return of_several(table, seeds)
