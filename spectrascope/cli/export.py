"""`spectrascope export`: the singular values of a store as one file for other tools."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..report.files import require_writable, write_whole
from ..report.formats import to_csv, to_json
from ..report.rows import Row, spectrum_rows
from ..store import Trajectory, write_plain
from ..words import counted
from ._options import DebugOption, QuietOption, StoreArgument
from ._output import Output, failure_line
from ._store import open_with_steps


def export(
    store: StoreArgument,
    to: Annotated[Path, typer.Option("--to", metavar="FILE", help="all.h5, all.csv or all.json.")],
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> int:
    """Write all singular values of a store into one plain HDF5, CSV or JSON file.

    HDF5: `steps`, `names`, and `singular_values/0`, `/1`, ... of shape (steps, R), NaN where there is none. CSV has a
    line per singular value, JSON a row per step and matrix.
    """
    output = Output(quiet=quiet)
    require_writable("--to", to, tuple(WRITERS))
    trajectory = open_with_steps(store, output)
    write_whole(to, lambda path: WRITERS[to.suffix.lower()](trajectory, path))
    for failure in trajectory.failures:
        output.fail(failure_line(failure))
    matrices = counted(len(trajectory.matrices), "matrix", "matrices")
    output.say(f"{matrices} at {counted(len(trajectory.steps), 'step')} written to {to}")
    return 3 if trajectory.failures else 0


def _write_csv(trajectory: Trajectory, path: Path) -> None:
    rows = [
        {"step": row["step"], "matrix": row["matrix"], "index": index, "singular_value": value}
        for row in _rows(trajectory)
        for index, value in enumerate(row["singular_values"] or [], start=1)
    ]
    text = to_csv(rows, ["step", "matrix", "index", "singular_value"])
    path.write_text(text, encoding="utf-8", errors="backslashreplace")


def _write_json(trajectory: Trajectory, path: Path) -> None:
    text = to_json("export", str(trajectory.path), _rows(trajectory), trajectory.warnings, trajectory.failures)
    path.write_text(text, encoding="utf-8")


def _rows(trajectory: Trajectory) -> list[Row]:
    return [row for matrix in trajectory.matrices for row in spectrum_rows(trajectory, trajectory.steps, matrix)]


WRITERS = {".h5": write_plain, ".hdf5": write_plain, ".csv": _write_csv, ".json": _write_json}
