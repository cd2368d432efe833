"""Pruning of checkpoints and trajectories: sources in, rows and files out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from ..arrays import from_torch
from ..checkpoints import Reference, find_checkpoints
from ..errors import RequestError
from ..pipeline import analyze
from ..progress import Muted, Progress, Silent
from ..steps import select_steps
from ..tensors import TensorInfo
from .edits import Edited
from .prune import Request, Row, Subject, loss_rows, matrix_rows, ways
from .runner import Runner
from .saving import save, save_checkpoint
from .targets import find_targets
from .weights import StoredWeights, names_in, opened


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
    out: Path | None = None,
    masks_out: Path | None = None,
    progress: Progress | None = None,
) -> PruneResult:
    """Prune checkpoints in each way that is asked for; there are rows of losses where a model is there to run.

    Their spectra are in `store`, which is made or added to where it lacks some, else in one for the while. With `out`
    or `masks_out`, which are of one checkpoint pruned in one way, that is written. Raises RequestError, TaskError, and
    NothingAnalysed where no checkpoint can be read.
    """
    progress = progress or Silent()
    references = sources.references()
    for path in (out, masks_out):
        if path is not None and (len(references) > 1 or request.is_sweep or len(request.keeps) > 1):
            raise RequestError(f"{path} is to hold one checkpoint pruned in one way, and several are asked for")
    order = [] if runner is None else runner.order
    with opened(references[0], sources.weights) as checkpoint:
        if runner is not None:
            names_in(checkpoint, runner.model)  # differences are named before any work
        ranks = [matrix.rank for matrix in find_targets(checkpoint, order, request.include_last).matrices]
    result = PruneResult()
    with _store_or_temporary(store) as place:
        trajectory = analyze(
            sources.paths,
            place,
            steps=sources.steps,
            step_regex=sources.step_regex,
            weights=sources.weights,
            trust_pickle=sources.trust_pickle,
            top_k=request.vectors_for(max(ranks, default=0)),
            progress=Muted(progress),
        )
        result.failures += trajectory.failures
        for done, reference in enumerate(references):
            progress.update(done, len(references), reference.step)
            if reference.step in trajectory.steps:
                with opened(reference, sources.weights) as checkpoint:
                    targets = find_targets(checkpoint, order, request.include_last)
                    subject = Subject(checkpoint, reference.step, targets, trajectory)
                    _prune_one(subject, request, runner, out, masks_out, result)
    progress.update(len(references), len(references), None)
    return result


def _prune_one(
    subject: Subject,
    request: Request,
    runner: Runner | None,
    out: Path | None,
    masks_out: Path | None,
    result: PruneResult,
) -> None:
    """Add the rows of one checkpoint, and write what is to be written of it."""
    checkpoint = subject.checkpoint
    names = {} if runner is None else names_in(checkpoint, runner.model)
    before = {} if runner is None else runner.losses(StoredWeights(checkpoint.load, names))
    for way in ways(request, subject):
        edited = Edited(checkpoint, way.edits)
        if not request.is_sweep:
            result.matrices += matrix_rows(subject, way)
        if out is not None:
            save_checkpoint(out, checkpoint, edited.load)
        if masks_out is not None:
            masks = {name: from_torch(mask) for name, mask in way.masks.items()}
            infos = {name: TensorInfo(name, mask.shape, "bool") for name, mask in masks.items()}
            save(masks_out, infos, masks.__getitem__)
        if runner is not None:
            after = runner.losses(StoredWeights(edited.load, names))
            result.losses += [row | runner.label for row in loss_rows(subject, way, before, after)]


@contextmanager
def _store_or_temporary(store: Path | None) -> Iterator[Path]:
    if store is not None:
        yield store
        return
    with TemporaryDirectory(prefix="spectrascope-") as folder:
        yield Path(folder) / "pruned.spectra"
