"""Opening a store for a report."""

from __future__ import annotations

from pathlib import Path

from ..errors import NothingAnalysed, RequestError
from ..report.rows import Row, failures_among
from ..store import Trajectory
from ..store import open as open_store
from ._output import Output, failure_line


def open_several(stores: list[Path], aggregate: bool, output: Output) -> list[Trajectory]:
    """The stores of a report. Raises RequestError for several of which no mean is asked for."""
    if len(stores) > 1 and not aggregate:
        raise RequestError("several stores are reported together with --aggregate: their mean and standard deviation")
    return [open_with_steps(store, output) for store in stores]


def all_matrices(trajectories: list[Trajectory]) -> list[str]:
    """The matrices of stores, each once, in the order of the first that has it."""
    return list(dict.fromkeys(name for one in trajectories for name in one.matrices))


def all_failures(trajectories: list[Trajectory], chosen: list[list[int]], matrices: list[str]) -> list[Row]:
    """The failures of stores that concern these matrices and the steps chosen of each."""
    pairs = zip(trajectories, chosen, strict=True)
    return [failure for store, steps in pairs for failure in failures_among(store, steps, matrices)]


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
