"""One run over a trajectory: what the store lacks is decomposed, failures are named, the rest goes on.

One matrix is one unit of work, on one thread with one BLAS thread: threaded LAPACK collapses on a busy machine and a
pool of single threads does not. The largest matrices of a checkpoint go first, and the next checkpoint is queued
behind them, so that no worker waits. Matrices too large to hold one per core run alone, with all cores.
"""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .checkpoints import Checkpoint, Container, Reference
from .errors import (
    CheckpointError,
    NothingAnalysed,
    RequestError,
    SpectrascopeError,
    StoreDamaged,
    StoreError,
    StoreUnwritable,
    unreadable,
)
from .fetching import Fetcher, Opened
from .job import Job, LookUp, Settings, has_commit, look_up, require_same_weights
from .matrices import LEFT_OUT, Matrix, Plan
from .progress import Progress
from .remarks import describe_refused
from .reuse import Known
from .store import Trajectory, read_info, remove_parts, set_aside, step_files, step_path
from .words import counted, coverage_words, human_bytes, listed
from .workers import Pool


@dataclass
class Run:
    """One call of `analyze`: what is decomposed into a store, and what is to be said of it."""

    store: Path
    settings: Settings
    trust_mtime: bool
    progress: Progress
    weights: str = "auto"
    warnings: list[str] = field(default_factory=list)
    failures: list[dict[str, Any]] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.known = Known()
        self._missing = 0
        self._done = 0
        self.total = 0  # checkpoints; 0 if that is not known beforehand
        self._announced = False
        self._weights_are_settled = False
        self.is_without_matrices = False
        self.left_out: dict[str, None] = {}

    def warn(self, line: str) -> None:
        """Something to know of; said at once, and once more with the result."""
        self.warnings.append(line)
        self.progress.warn(line)

    def report(self, step: int | None) -> None:
        """Say how far the run is; `step` is the one in hand. May raise KeyboardInterrupt."""
        self.progress.update(self._done, self.total, step)

    def is_done(self, step: int) -> None:
        """One more checkpoint is through."""
        self._done += 1
        self.report(step)

    def fail(self, path: Path | str, step: int | None, reason: str) -> None:
        """A checkpoint that came to nothing; said at once, and once more with the result."""
        self.failures.append({"path": str(path), "step": step, "matrix": None, "reason": reason})
        self.progress.fail(f"{path}: {reason}")

    def go(self, references: Iterable[Reference], pool: Pool) -> None:
        """Decompose what is not in the store yet, one checkpoint computed while the next one is queued."""
        self.known.learn(self.store)
        if isinstance(references, list):
            self.total = len(references)
            self._missing = sum(not step_path(self.store, reference.step).exists() for reference in references)
        with Fetcher(self.progress) as fetcher:
            self._go_through(self._opening(references, fetcher), pool)
        self.report(None)
        if self.steps and not self._announced:
            self.progress.say(f"{counted(len(self.steps), 'checkpoint')}, all in {self.store} already")

    def _go_through(self, references: Iterable[tuple[Reference, Callable[[], Opened]]], pool: Pool) -> None:
        queue: deque[Job] = deque()
        for reference, opened in references:
            job = self._start(reference, opened)
            if job is not None:
                with _released_after_failure(reference):
                    self._announce(job.plan)
                # A job with matrices that run alone needs an idle pool: none is queued before or behind it.
                if not job.alone:
                    job.submit(pool, self.known)
                queue.append(job)
            is_only = reference.is_live or reference.origin is not None
            ahead = 0 if is_only or (job is not None and job.alone) else 1
            while len(queue) > ahead:
                self._finish(queue.popleft(), pool)
            if job is None:
                self.is_done(reference.step)
        while queue:
            self._finish(queue.popleft(), pool)

    def _opening(
        self, references: Iterable[Reference], fetcher: Fetcher
    ) -> Iterator[tuple[Reference, Callable[[], Opened]]]:
        """Each checkpoint with what opens it; of those elsewhere, only what the store lacks, and one ahead."""
        if not isinstance(references, list) or not any(one.origin for one in references):
            yield from ((one, one.open) for one in references)
            return
        lacking = [one for one in references if not self._is_stored(one)]
        self._done = len(references) - len(lacking)
        yield from fetcher.each(lacking, lambda one: self.report(one.step))

    def _is_stored(self, reference: Reference) -> bool:
        """Whether the store has all that is asked for of a checkpoint elsewhere, which is then done."""
        try:
            is_stored = has_commit(self.store, reference, self.settings, self.weights, self.trust_mtime)
        except StoreDamaged:
            return False  # set aside when it comes up
        if is_stored:
            self.steps.append(reference.step)
            reference.release()  # what a run that was killed may have left
            remove_parts(self.store, reference.step)
        return is_stored

    def result(self) -> Trajectory:
        """The store, opened for the steps of this run."""
        if not self.steps:
            raise self._nothing()
        trajectory = Trajectory(self.store, self.steps)
        wanted = {
            record.name
            for step in self.steps
            for record in trajectory.info(step).records
            if any(map(self.settings.wants, (record.name, *record.tied)))
        }
        trajectory.matrices = [name for name in trajectory.matrices if name in wanted]
        trajectory.warnings[:0] = self.warnings
        trajectory.failures = self.failures + [one for one in trajectory.failures if self._concerns(one, trajectory)]
        return trajectory

    def _concerns(self, failure: dict[str, Any], trajectory: Trajectory) -> bool:
        """Whether a failure that the store knows of is one of what was asked for."""
        if failure["matrix"] is not None or failure["step"] not in trajectory.steps:
            return True
        return any(self.settings.wants(name) for name, _ in trajectory.info(failure["step"]).refused)

    def _nothing(self) -> SpectrascopeError:
        """Why no step was analysed."""
        if self.left_out:
            globs = [glob for match, skip in self.settings.filters for glob in (*match, *skip)]
            return RequestError(f"no matrix is left by {' '.join(globs)}; there are {listed(self.left_out)}")
        if self.is_without_matrices:
            return NothingAnalysed("no checkpoint holds a matrix to analyse; `spectrascope show SOURCE` says why")
        return NothingAnalysed("nothing could be analysed", [f"{f['path']}: {f['reason']}" for f in self.failures])

    def _start(self, reference: Reference, opened: Callable[[], Opened]) -> Job | None:
        """A checkpoint's job; None where there is nothing to do, or it cannot be read."""
        job = None
        with self._failing(reference):
            container, warnings = opened()
            for warning in warnings:
                self.warn(warning)
            with _released_after_failure(reference):
                job = self._job(reference, self._checkpoint(container, reference))
            if job is None:
                reference.release()
        return job

    def _job(self, reference: Reference, checkpoint: Checkpoint) -> Job | None:
        stamp = checkpoint.stamp
        try:
            found = look_up(self.store, reference, checkpoint, stamp, self.settings, self.trust_mtime)
        except StoreDamaged as error:
            aside = set_aside(step_path(self.store, reference.step))
            self.warn(f"{error}; set aside as {aside.name} and made again")
            found = LookUp(False, self.settings)
        if found.is_done:
            remove_parts(self.store, reference.step)
            self.steps.append(reference.step)
            return None
        job = Job(reference, checkpoint, stamp, found)
        if job.plan.matrices:
            return job
        if refused := describe_refused(job.plan.refused):
            raise CheckpointError(reference.path, refused)
        self.is_without_matrices = True
        self.left_out |= dict.fromkeys(one.name for one in job.plan.skipped if one.reason == LEFT_OUT)
        return None

    def _checkpoint(self, container: Container, reference: Reference) -> Checkpoint:
        """The checkpoint, in the one copy of the weights, live or averaged, that all of this run are read in."""
        checkpoint = Checkpoint(container, self.weights, reference.origin)
        if not self._weights_are_settled:
            self._weights_are_settled = True
            self.weights = checkpoint.weights
            self.settings = replace(self.settings, weights=checkpoint.weights)
            for path in step_files(self.store).values():
                with suppress(StoreDamaged):
                    require_same_weights(read_info(path), checkpoint.weights)
        return checkpoint

    def _finish(self, job: Job, pool: Pool) -> None:
        step = job.reference.step

        def progress(share: float) -> None:
            self.progress.update(self._done + share, self.total, step)

        with self._failing(job.reference):
            with _released_after_failure(job.reference):
                job.finish(self.store, pool, self.known, progress)
            job.reference.release()
            self.steps.append(step)
        self._done += 1

    @contextmanager
    def _failing(self, reference: Reference) -> Iterator[None]:
        """A checkpoint that cannot be read is named; the others go on."""
        try:
            yield
        except CheckpointError as error:
            self.fail(_shown(error.path, reference), reference.step, error.reason)
        except StoreUnwritable as error:
            self.fail(reference.path, reference.step, str(error))
        except SpectrascopeError:
            raise
        except MemoryError:
            self.fail(reference.path, reference.step, "does not fit into memory")
        except Exception as error:  # damaged files make the libraries that read them raise whatever they raise
            self.fail(reference.path, reference.step, unreadable(error))

    def _announce(self, todo: Plan) -> None:
        """Say, once, what there is to do, and stop where the disk cannot hold it. Raises StoreError."""
        if self._announced:
            return
        self._announced = True
        given = self.settings.heads
        if given and not any(matrix.blocks and matrix.blocks.word == "head" for matrix in todo.blocks):
            self.warn(f"--heads {given} divides no attention layer; `spectrascope show --pairs` says why")
        top_k = self.settings.top_k
        each = sum(_stored_bytes(matrix, top_k) for matrix in (*todo.matrices, *todo.blocks)) + 20_000
        estimate = each * max(self._missing, 1)
        free = shutil.disk_usage(self.store).free
        checkpoints = f"{counted(self._missing, 'checkpoint')} to do" if self._missing else "each checkpoint"
        count = sum(not one.is_part for one in todo.skipped)
        skipped = f" ({counted(count, 'tensor')} skipped; `spectrascope show` lists them)"
        self.progress.say(
            f"{coverage_words(len(todo.matrices), todo.coverage)}{skipped if count else ''}; "
            f"{checkpoints} -> about {human_bytes(estimate)} in {self.store}"
        )
        if estimate > free:
            raise StoreError(
                f"{self.store} needs about {human_bytes(estimate)} and the disk has {human_bytes(free)} free; "
                "use a smaller --top-k (0 keeps singular values alone), fewer --steps, or another disk with -o"
            )


@contextmanager
def _released_after_failure(reference: Reference) -> Iterator[None]:
    """What was fetched is taken away, but not after Ctrl-C: the next run goes on from there."""
    try:
        yield
    except Exception:
        reference.release()
        raise


def _stored_bytes(matrix: Matrix, top_k: int) -> int:
    """What a matrix takes in the store, roughly: values, the vectors of one or both sides, its record."""
    count = max(matrix.block_count, 1)
    sides = {None: sum(matrix.shape), "left": matrix.shape[0], "right": matrix.shape[1]}[matrix.side]
    return count * (8 * matrix.rank + 4 * min(top_k, matrix.rank) * sides) + 600


def _shown(path: str, reference: Reference) -> str:
    """A file that was fetched for the while is shown by its address."""
    folder = reference.origin.folder if reference.origin is not None else None
    return f"{reference.path}/{Path(path).name}" if folder is not None and folder in Path(path).parents else path
