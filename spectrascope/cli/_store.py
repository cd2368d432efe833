"""Opening a store for a report."""

from __future__ import annotations

from pathlib import Path

from ..errors import NothingAnalysed, RequestError
from ..store import Trajectory
from ..store import open as open_store
from ._output import Output, failure_line


def open_several(stores: list[Path], aggregate: bool, output: Output) -> list[Trajectory]:
    """The stores of a report. Raises RequestError for several of which no mean is asked for."""
    if len(stores) > 1 and not aggregate:
        raise RequestError("several stores are reported together with --aggregate: their mean and standard deviation")
    return [open_with_steps(store, output) for store in stores]


def shared_warnings(trajectories: list[Trajectory]) -> list[str]:
    """The warnings of stores, each once."""
    return list(dict.fromkeys(warning for one in trajectories for warning in one.warnings))


def open_with_steps(store: Path, output: Output) -> Trajectory:
    """The store, in which at least one step can be read. Raises NothingAnalysed, after naming the causes."""
    trajectory = open_store(store)
    if not trajectory.steps:
        for failure in trajectory.failures:
            output.fail(failure_line(failure))
        raise NothingAnalysed(f"{store}: no step can be read; make it again with `spectrascope analyze`")
    return trajectory
