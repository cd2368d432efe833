"""Opening a store for a report."""

from __future__ import annotations

from pathlib import Path

from ..errors import NothingAnalysed
from ..store import Trajectory
from ..store import open as open_store
from ._output import Output, failure_line


def open_with_steps(store: Path, output: Output) -> Trajectory:
    """The store, in which at least one step can be read. Raises NothingAnalysed, after naming the causes."""
    trajectory = open_store(store)
    if not trajectory.steps:
        for failure in trajectory.failures:
            output.fail(failure_line(failure))
        raise NothingAnalysed(f"{store}: no step can be read; make it again with `spectrascope analyze`")
    return trajectory
