"""`spectrascope spectrum`: every singular value of one matrix over time, from a store."""

from __future__ import annotations

from typing import Annotated

import typer

from ..errors import RequestError
from ..report.figures import require_plottable
from ..report.rows import failures_among, require_rows, spectrum_rows
from ..report.tables import spectrum_table
from ..steps import select_steps
from ..words import choices
from ._options import (
    DebugOption,
    Format,
    FormatOption,
    LogStepsOption,
    PlotOption,
    QuietOption,
    StepsOption,
    StoreArgument,
)
from ._output import Output
from ._store import open_with_steps


def spectrum(
    store: StoreArgument,
    matrix: Annotated[str, typer.Argument(metavar="MATRIX", help="The name of a matrix, as `rank` lists it.")],
    steps: StepsOption = "all",
    plot: PlotOption = None,
    log_steps: LogStepsOption = False,
    format: FormatOption = Format.table,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> int:
    """Every singular value of one matrix over time, from a store.

    --plot draws one line per singular value over the steps, coloured by its rank.
    """
    output = Output(format, quiet)
    if plot:
        require_plottable(plot)
    trajectory = open_with_steps(store, output)
    chosen = select_steps(trajectory.steps, steps)
    if matrix not in trajectory.matrices:
        raise RequestError(f"{store} has no matrix {matrix!r}; {choices(matrix, trajectory.matrices)}")
    rows = require_rows(spectrum_rows(trajectory, chosen, matrix), [matrix])
    if plot:
        from ..report import figures

        figures.spectrum(rows, plot, log_steps)
        output.say(f"figure: {plot}")
    return output.rows(
        "spectrum",
        str(store),
        rows,
        columns=["step", "matrix", "shape", "singular_values", "reason"],
        tables=lambda: [spectrum_table(rows)],
        warnings=trajectory.warnings,
        failures=failures_among(trajectory, chosen, [matrix]),
    )
