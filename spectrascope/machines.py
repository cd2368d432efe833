"""One run over many machines: a checkpoint is a task, whose worker reads it and writes its file of the store.

Every machine sees the same disk. What crosses the network are names and sentences.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from .checkpoints import Reference
from .cluster import Cluster, describe_lost, require_shared, threads_here
from .errors import SpectrascopeError
from .job import Settings
from .progress import Silent
from .reuse import Known
from .run import Run
from .store import clear_temporaries
from .words import counted
from .workers import choose_devices, open_pool, single_threaded


@dataclass(frozen=True)
class Task:
    """A checkpoint for another machine, and how to analyse it."""

    reference: Reference
    store: Path
    settings: Settings
    trust_mtime: bool
    weights: str
    device: str
    workers: int | None


@dataclass(frozen=True)
class Outcome:
    """What became of a checkpoint on another machine, beside its file of the store."""

    steps: list[int]
    warnings: list[str]
    failures: list[dict[str, Any]]
    weights: str
    settings: Settings
    left_out: dict[str, None]
    is_without: bool


_one_at_a_time = threading.Lock()
# What this worker has read of each store, so that each task reads only what is new.
_known: dict[Path, Known] = {}


def run_task(task: Task) -> Outcome:
    """Analyse one checkpoint here, on a worker: with as many threads as it has, whatever else waits for it."""
    require_shared(str(task.store))
    devices, warning = choose_devices(task.device)
    workers = task.workers or (threads_here() if devices == ["cpu"] else None)
    run = Run(task.store, task.settings, task.trust_mtime, Silent(), task.weights)
    run.known = _known.setdefault(task.store, run.known)
    if warning:
        run.warn(warning)
    # BLAS counts its threads by process, not by task.
    with _one_at_a_time, single_threaded(), open_pool(workers, devices) as pool:
        run.go([task.reference], pool)
    return Outcome(
        run.steps, run.warnings, run.failures, run.weights, run.settings, run.left_out, run.is_without_matrices
    )


def run_on(cluster: Cluster, run: Run, references: list[Reference], device: str, workers: int | None) -> None:
    """As `Run.go`, a checkpoint on each worker.

    Where none is named, the first checkpoint that is read says which copy of the weights all are read in: the others
    wait for it. Raises what a worker raised that is no fault of one checkpoint, as a run on one machine does.
    """
    run.total = len(references)
    there = counted(cluster.workers, "worker")
    run.progress.say(f"{counted(run.total, 'checkpoint')} on {there} of {cluster.address}")
    outcomes: dict[int, Outcome] = {}
    left = list(references)
    while left:
        group = left[:1] if run.weights == "auto" else left
        left = left[len(group) :]
        tasks = [
            Task(one, run.store.resolve(), run.settings, run.trust_mtime, run.weights, device, workers) for one in group
        ]
        for task, outcome in cluster.each(run_task, tasks, partial(_wait, run, cluster)):
            step = task.reference.step
            if isinstance(outcome, SpectrascopeError):
                raise outcome
            if isinstance(outcome, BaseException):
                outcome = _failed(task, describe_lost(outcome))
            for failure in outcome.failures:
                run.progress.fail(f"{failure['path']}: {failure['reason']}")
            if outcome.weights != "auto" and run.weights == "auto":
                run.weights, run.settings = outcome.weights, outcome.settings
            outcomes[step] = outcome
            run.is_done(step)
    for step in sorted(outcomes):
        _take(run, outcomes[step])
    clear_temporaries(run.store, run.steps)
    run.report(None)


def _wait(run: Run, cluster: Cluster) -> None:
    """Between tasks: hear Ctrl-C, and say once where there is nobody to wait for."""
    if not cluster.workers:
        run.progress.warn(f"{cluster.address} has no worker; the run goes on when one comes")
    run.report(None)


def _failed(task: Task, reason: str) -> Outcome:
    failure = {"path": str(task.reference.path), "step": task.reference.step, "matrix": None, "reason": reason}
    return Outcome([], [], [failure], "auto", task.settings, {}, False)


def _take(run: Run, outcome: Outcome) -> None:
    """What a worker says of its checkpoint, as if it had been found here; in the order of steps."""
    run.steps += outcome.steps
    for warning in outcome.warnings:
        if warning not in run.warnings:
            run.warn(warning)
    run.failures += outcome.failures
    run.is_without_matrices |= outcome.is_without
    run.left_out |= outcome.left_out
