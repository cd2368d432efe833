"""Joins sources, matrices, decomposition and store: workers, resume, reuse (behind `spectrascope.analyze`).

One matrix is one unit of work, on one thread with one BLAS thread: threaded LAPACK collapses on a busy machine and a
pool of single threads does not. The largest matrices of a checkpoint go first, and the next checkpoint is queued
behind them, so that no worker waits. Matrices too large to hold one per core run alone, with all cores.
"""

from __future__ import annotations

import os
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, cast

from .checkpoints import (
    Checkpoint,
    Container,
    HubRequest,
    Reference,
    find_checkpoints,
    from_state_dicts,
    is_on_the_hub,
    require_weights,
)
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
from .progress import Progress, Silent
from .remarks import describe_refused
from .reuse import Known
from .steps import select_steps
from .store import Trajectory, open_for_writing, read_info, set_aside, step_files, step_path
from .words import counted, coverage_words, human_bytes, listed
from .workers import Pool, choose_devices, open_pool, single_threaded

StateDictAtStep = tuple[int, Mapping[str, Any]]
Source = str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | Iterable[StateDictAtStep]


def analyze(
    source: Source,
    out: str | os.PathLike[str] | None = None,
    *,
    steps: str = "all",
    step_regex: str | None = None,
    match: Sequence[str] = (),
    skip: Sequence[str] = (),
    top_k: int = 100,
    device: str = "auto",
    workers: int | None = None,
    trust_mtime: bool = False,
    trust_pickle: bool = False,
    weights: str = "auto",
    heads: int | None = None,
    kv_heads: int | None = None,
    revisions: Sequence[str] = (),
    keep: bool = False,
    progress: Progress | None = None,
) -> Trajectory:
    """Decompose every weight matrix of a trajectory of checkpoints into a store, and open it.

    Parameters
    ----------
    source : a directory, a file, a repository of the Hugging Face Hub ("hf://owner/name[@revision]"), several of these,
        or an iterable of (step, state_dict); each state dict is done with when the next one is asked for, so that a
        generator may train in place
    out : the store's directory; `./NAME.spectra` by default for one path, required otherwise
    steps : which of the steps found: all, last, every:N, log:N, or a list of steps and ranges
    step_regex : finds the step in names; its group `step`, else its first group
    match, skip : globs of matrix names to analyse, and to leave out
    top_k : how many singular vectors to keep of either side; 0 keeps singular values alone
    device : auto, cpu, cuda or cuda:i. Float64 is needed, so MPS gives way to the CPU
    workers : threads of the pool; one per core by default
    trust_mtime : take files of unchanged size and time as unchanged, without reading them
    trust_pickle : load pickles that need more than the safe loader gives; they can run any code
    weights : of checkpoints that hold averages (EMA) of the weights as well, which copy: live, averaged, or auto, which
        is live where the first checkpoint has live weights. The two are never mixed
    heads, kv_heads : how many heads attention layers have, and their keys and values, where no config.json beside the
        checkpoint says it
    revisions : of a repository on the Hub, those that fit one of these globs, or regular expressions after "re:"
    keep : leave what is fetched from the Hub in its cache, rather than remove each revision when it is done

    Returns the store, opened for the steps asked for. `failures` lists what could not be read, `warnings` the rest.
    What the store already holds of the same content under the same settings is not computed again.

    Raises RequestError for a source, step or setting that does not exist, HubError where a repository is not listed,
    StoreError where the store cannot be read or written, NothingAnalysed where no checkpoint could be read or none
    holds a matrix.
    """
    if top_k < 0:
        raise RequestError(f"--top-k must be 0 or more, not {top_k}")
    if workers is not None and workers < 1:
        raise RequestError(f"--workers must be 1 or more, not {workers}")
    if any(count is not None and count < 1 for count in (heads, kv_heads)):
        raise RequestError("--heads and --kv-heads must be 1 or more")
    require_weights(weights)
    progress = progress or Silent()
    devices, device_warning = choose_devices(device)
    settings = Settings(top_k, ((tuple(match), tuple(skip)),), heads=heads, kv_heads=kv_heads)
    run = _Run(_store_path(source, out), settings, trust_mtime, progress, weights)
    if device_warning:
        run.warn(device_warning)
    request = HubRequest(tuple(revisions), keep, bool(match), str(run.store))
    references, total = run.references(source, steps, step_regex, trust_pickle, request)
    with open_for_writing(run.store), single_threaded(), open_pool(workers, devices) as pool:
        run.go(references, total, pool)
        return run.result()


@dataclass
class _Run:
    """One call of `analyze`."""

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
        self._announced = False
        self._weights_are_settled = False
        self._without_matrices: list[Plan] = []

    def warn(self, line: str) -> None:
        self.warnings.append(line)
        self.progress.warn(line)

    def fail(self, path: Path | str, step: int | None, reason: str) -> None:
        self.failures.append({"path": str(path), "step": step, "matrix": None, "reason": reason})
        self.progress.fail(f"{path}: {reason}")

    def references(
        self, source: Source, steps: str, step_regex: str | None, trust_pickle: bool, request: HubRequest
    ) -> tuple[Iterable[Reference], int]:
        """The checkpoints to analyse in step order, and how many (0 if that is not known beforehand)."""
        items = iter([source] if isinstance(source, (str, os.PathLike)) else source)
        first = next(items, None)
        if first is not None and not isinstance(first, (str, os.PathLike)):
            if steps != "all":
                raise RequestError("steps are selected among checkpoints in files; leave out state dicts yourself")
            return from_state_dicts(chain([first], cast(Iterator[StateDictAtStep], items))), 0
        paths = [path for path in chain([first], cast(Iterator[str], items)) if path is not None]
        found = find_checkpoints(paths, step_regex, trust_pickle, request)
        for warning in found.warnings:
            self.warn(warning)
        for note in found.notes:
            self.progress.say(note)
        wanted = set(select_steps([reference.step for reference in found.references], steps))
        references = [reference for reference in found.references if reference.step in wanted]
        return references, len(references)

    def go(self, references: Iterable[Reference], total: int, pool: Pool) -> None:
        """Decompose what is not in the store yet, one checkpoint computed while the next one is queued."""
        self.known.learn(self.store)
        if isinstance(references, list):
            self._missing = sum(not step_path(self.store, reference.step).exists() for reference in references)
        queue: deque[Job] = deque()
        for reference, opened in self._opening(references, total):
            job = self._start(reference, opened)
            if job is not None:
                self._announce(job.plan)
                # A job with matrices that run alone needs an idle pool: none is queued before or behind it.
                if not job.alone:
                    job.submit(pool, self.known)
                queue.append(job)
            is_only = reference.is_live or reference.origin is not None
            ahead = 0 if is_only or (job is not None and job.alone) else 1
            while len(queue) > ahead:
                self._finish(queue.popleft(), pool, total)
            if job is None:
                self._done += 1
                self.progress.update(self._done, total, reference.step)
        while queue:
            self._finish(queue.popleft(), pool, total)
        self.progress.update(self._done, total, None)
        if self.steps and not self._announced:
            self.progress.say(f"{counted(len(self.steps), 'checkpoint')}, all in {self.store} already")

    def _opening(self, references: Iterable[Reference], total: int) -> Iterator[tuple[Reference, Callable[[], Opened]]]:
        """Each checkpoint with what opens it; of those elsewhere, only what the store lacks, and one ahead."""
        if not isinstance(references, list) or not any(one.origin for one in references):
            yield from ((one, one.open) for one in references)
            return
        with Fetcher(self.progress) as fetcher:
            lacking = [one for one in references if not self._is_stored(one)]
            self._done = len(references) - len(lacking)
            yield from fetcher.each(lacking, lambda one: self.progress.update(self._done, total, one.step))

    def _is_stored(self, reference: Reference) -> bool:
        """Whether the store has all that is asked for of a checkpoint elsewhere, which is then done."""
        settings = self.settings if self.weights == "auto" else replace(self.settings, weights=self.weights)
        try:
            is_stored = has_commit(self.store, reference, settings, self.trust_mtime)
        except StoreDamaged:
            return False  # set aside when it comes up
        if is_stored:
            self.steps.append(reference.step)
            reference.release()  # what a run that was killed may have left
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
        left_out = dict.fromkeys(
            one.name for plan in self._without_matrices for one in plan.skipped if one.reason == LEFT_OUT
        )
        if left_out:
            globs = [glob for match, skip in self.settings.filters for glob in (*match, *skip)]
            return RequestError(f"no matrix is left by {' '.join(globs)}; there are {listed(left_out)}")
        if self._without_matrices:
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
            self.steps.append(reference.step)
            return None
        job = Job(reference, checkpoint, stamp, found)
        if job.plan.matrices:
            return job
        if refused := describe_refused(job.plan.refused):
            raise CheckpointError(reference.path, refused)
        self._without_matrices.append(job.plan)
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

    def _finish(self, job: Job, pool: Pool, total: int) -> None:
        step = job.reference.step

        def progress(share: float) -> None:
            self.progress.update(self._done + share, total, step)

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


def default_store(source: str | os.PathLike[str]) -> Path:
    """`./NAME.spectra`, NAME being that of the directory, file or repository."""
    if is_on_the_hub(source):
        return Path(f"{str(source).partition('@')[0].rpartition('/')[2]}.spectra")
    path = Path(source).resolve()
    return Path(f"{path.name if path.is_dir() else path.stem}.spectra")


def _store_path(source: Source, out: str | os.PathLike[str] | None) -> Path:
    if out is not None:
        return Path(out)
    if not isinstance(source, (str, os.PathLike)):
        raise RequestError("several sources, or state dicts, need a store: name one as `out`")
    return default_store(source)
