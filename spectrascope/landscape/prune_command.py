"""Pruning of checkpoints and trajectories: sources in, rows and files out."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from ..arrays import Array, from_torch
from ..checkpoints import Checkpoint, Reference, find_checkpoints
from ..errors import CheckpointError, NothingAnalysed, RequestError
from ..pipeline import analyze
from ..progress import Muted, Progress, Silent
from ..steps import select_steps
from ..tensors import TensorInfo
from .edits import Edited
from .prune import OVERFLOWS, Request, Row, Subject, loss_rows, matrix_rows, require_fitting, ways
from .runner import Runner
from .saving import require_another, require_copyable, save, save_checkpoint
from .targets import find_targets
from .weights import names_in, opened, stored_weights


@dataclass(frozen=True)
class Sources:
    """Where checkpoints are, and which of them are meant; as for `analyze`."""

    paths: Sequence[str]
    steps: str = "all"
    step_regex: str | None = None
    weights: str = "auto"
    trust_pickle: bool = False

    def references(self) -> list[Reference]:
        """The checkpoints in step order. Raises RequestError."""
        found = find_checkpoints(self.paths, self.step_regex, self.trust_pickle).references
        wanted = set(select_steps([reference.step for reference in found], self.steps))
        return [reference for reference in found if reference.step in wanted]


@dataclass(frozen=True)
class Outputs:
    """Files to write, of one checkpoint pruned in one way: the checkpoint itself, and the masks of its tensors."""

    checkpoint: Path | None = None
    masks: Path | None = None

    def require_one(self, request: Request, count: int) -> None:
        """Raises RequestError where several are to be written to one file."""
        paths = [path for path in (self.checkpoint, self.masks) if path is not None]
        if paths and (count > 1 or request.is_sweep or len(request.keeps) > 1):
            raise RequestError(f"{paths[0]} is to hold one checkpoint pruned in one way, and several are asked for")
        if len(paths) > 1 and os.path.realpath(paths[0]) == os.path.realpath(paths[1]):
            raise RequestError(f"the pruned checkpoint and its masks cannot both be {paths[0]}")

    def require_apart(self, checkpoint: Checkpoint) -> None:
        """Raises RequestError where one is the checkpoint that is pruned, or cannot be written."""
        if self.checkpoint is not None:
            require_copyable(self.checkpoint, checkpoint)
        if self.masks is not None:
            require_another(self.masks, checkpoint)


NOTHING_TO_WRITE = Outputs()


@dataclass
class PruneResult:
    """What pruning found: rows of losses, rows of matrices (none for a sweep), and checkpoints that failed."""

    losses: list[Row] = field(default_factory=list)
    matrices: list[Row] = field(default_factory=list)
    failures: list[Row] = field(default_factory=list)


def prune(
    sources: Sources,
    request: Request,
    runner: Runner | None = None,
    store: Path | None = None,
    outputs: Outputs = NOTHING_TO_WRITE,
    progress: Progress | None = None,
) -> PruneResult:
    """Prune checkpoints in each way that is asked for; there are rows of losses where a model is there to run.

    Their spectra are in `store`, which is made or added to where it lacks some, else in one for the while. A checkpoint
    that cannot be read is a failure, and the others go on. Raises RequestError, TaskError, and NothingAnalysed where no
    checkpoint can be read.
    """
    progress = progress or Silent()
    references = sources.references()
    outputs.require_one(request, len(references))
    places = {} if runner is None else runner.places
    vectors = request.vectors_for(_largest_rank(references, sources, request, runner, outputs))
    result = PruneResult()
    total = len(references)
    with _store_or_temporary(store) as place:
        trajectory = analyze(
            sources.paths,
            place,
            steps=sources.steps,
            step_regex=sources.step_regex,
            weights=sources.weights,
            trust_pickle=sources.trust_pickle,
            top_k=vectors,
            progress=Muted(progress, 0, total / 2, total),
        )
        result.failures += trajectory.failures
        there = [reference for reference in references if reference.step in trajectory.steps]
        for done, reference in enumerate(there):
            try:
                with opened(reference, sources.weights) as checkpoint:
                    targets = find_targets(checkpoint, places, request.include_last)
                    subject = Subject(checkpoint, reference.step, targets, trajectory)
                    share = Muted(progress, (total + done) / 2, 0.5, total)
                    _prune_one(subject, request, runner, outputs, result, share)
            except CheckpointError as error:
                failure = {"path": error.path, "step": reference.step, "matrix": None, "reason": error.reason}
                result.failures.append(failure)
    progress.update(total, total, None)
    if not result.losses and not result.matrices:
        raise NothingAnalysed("nothing was pruned", [f"{one['path']}: {one['reason']}" for one in result.failures])
    return result


def _largest_rank(
    references: Sequence[Reference], sources: Sources, request: Request, runner: Runner | None, outputs: Outputs
) -> int:
    """The largest rank among the matrices to prune, 0 where no checkpoint can be read.

    What is asked for and does not fit the first checkpoint that can be read is said here, before any work.
    """
    for reference in references:
        with suppress(CheckpointError), opened(reference, sources.weights) as checkpoint:
            outputs.require_apart(checkpoint)
            if runner is not None:
                names_in(checkpoint, runner.model)
            targets = find_targets(checkpoint, {} if runner is None else runner.places, request.include_last)
            if request.masks:
                require_fitting(request.masks, checkpoint, targets)
            return max((matrix.rank for matrix in targets.matrices), default=0)
    return 0


def _prune_one(
    subject: Subject,
    request: Request,
    runner: Runner | None,
    outputs: Outputs,
    result: PruneResult,
    progress: Progress,
) -> None:
    """Add the rows of one checkpoint, and write what is to be written of it."""
    checkpoint = subject.checkpoint
    names = {} if runner is None else _names_in(checkpoint, runner)
    before = {} if runner is None else runner.losses(stored_weights(checkpoint.load_stored, names))
    todo = ways(request, subject)
    for done, way in enumerate(todo):
        progress.update(done, len(todo), subject.step)
        edited = subject.edited(way)
        load: Callable[[str], Array] = edited.load
        if not request.is_sweep:
            rows = matrix_rows(subject, way)
            result.matrices += rows
            result.failures += [_failure(subject, row) for row in rows if str(row["reason"]).startswith(OVERFLOWS)]
        if runner is not None:
            after = runner.losses(stored_weights(edited.load, names))
            result.losses += [row | runner.label for row in loss_rows(subject, way, before, after)]
            load = _with_statistics(runner, names, edited)
        if outputs.checkpoint is not None:
            save_checkpoint(outputs.checkpoint, checkpoint, load)
        if outputs.masks is not None:
            masks = {name: from_torch(mask) for name, mask in way.masks.items()}
            infos = {name: TensorInfo(name, mask.shape, "bool") for name, mask in masks.items()}
            save(outputs.masks, infos, masks.__getitem__)


def _names_in(checkpoint: Checkpoint, runner: Runner) -> dict[str, str]:
    """As `names_in`, for one of several checkpoints: that it does not fit the model is a fault of its own."""
    try:
        return names_in(checkpoint, runner.model)
    except RequestError as error:
        raise CheckpointError(checkpoint.path, str(error).removeprefix(f"{checkpoint.path} ")) from error


def _with_statistics(runner: Runner, names: dict[str, str], edited: Edited) -> Callable[[str], Array]:
    """What reads a pruned checkpoint, with the statistics of batch norm that its losses were taken with."""
    statistics = {names[name]: from_torch(one) for name, one in runner.statistics().items() if name in names}

    def load(name: str) -> Array:
        array = edited.load(name)
        return statistics[name].astype(array.dtype) if name in statistics else array

    return load


def _failure(subject: Subject, row: Row) -> Row:
    place = {"path": str(subject.checkpoint.path), "step": subject.step}
    return place | {"matrix": row["matrix"], "reason": row["reason"]}


@contextmanager
def _store_or_temporary(store: Path | None) -> Iterator[Path]:
    if store is not None:
        yield store
        return
    with TemporaryDirectory(prefix="spectrascope-") as folder:
        yield Path(folder) / "pruned.spectra"
