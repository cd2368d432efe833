"""Joins sources, matrices, decomposition and store: workers, resume, reuse (behind `spectrascope.analyze`).

One matrix is one unit of work, on one thread with one BLAS thread: threaded LAPACK collapses on a busy machine and a
pool of single threads does not. The largest matrices of a checkpoint go first, and the next checkpoint is queued
behind them, so that no worker waits. Matrices too large to hold one per core run alone, with all cores.
"""

from __future__ import annotations

import os
import shutil
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, cast

from .checkpoints import Checkpoint, Reference, find_checkpoints, from_state_dicts
from .checkpoints.checkpoint import hash_tensor
from .decompose import Decomposition, decompose
from .errors import CheckpointError, NothingAnalysed, RequestError, StoreDamaged, StoreError
from .matrices import Matrix, Plan, plan, selected
from .progress import Progress, Silent
from .reuse import Known
from .steps import select_steps
from .store import (
    Record,
    StepInfo,
    StepWriter,
    Trajectory,
    open_for_writing,
    read_step,
    set_aside,
    step_path,
)
from .words import counted, coverage_words, human_bytes
from .workers import Pool, all_cores, choose_devices, needs_all_cores, open_pool, single_threaded

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
    progress: Progress | None = None,
) -> Trajectory:
    """Decompose every weight matrix of a trajectory of checkpoints into a store, and open it.

    Parameters
    ----------
    source : a directory, a file, several of either, or an iterable of (step, state_dict)
    out : the store's directory; `./NAME.spectra` by default for one path, required otherwise
    steps : which of the steps found: all, last, every:N, log:N, or a list of steps and ranges
    step_regex : finds the step in names; its group `step`, else its first group
    match, skip : globs of matrix names to analyse, and to leave out
    top_k : how many singular vectors to keep of either side; 0 keeps singular values alone
    device : auto, cpu, cuda or cuda:i. Float64 is needed, so MPS gives way to the CPU
    workers : threads of the pool; one per core by default
    trust_mtime : take files of unchanged size and time as unchanged, without reading them
    trust_pickle : load pickles that need more than the safe loader gives; they can run any code

    Returns the store, opened for the steps asked for. `failures` lists what could not be read, `warnings` the rest.
    What the store already holds of the same content under the same settings is not computed again.

    Raises RequestError for a source, step or setting that does not exist, StoreError where the store cannot be read
    or written, NothingAnalysed where no checkpoint could be read or none holds a matrix.
    """
    if top_k < 0:
        raise RequestError(f"--top-k must be 0 or more, not {top_k}")
    if workers is not None and workers < 1:
        raise RequestError(f"--workers must be 1 or more, not {workers}")
    progress = progress or Silent()
    devices, device_warning = choose_devices(device)
    run = _Run(_store_path(source, out), top_k, tuple(match), tuple(skip), trust_mtime, progress)
    if device_warning:
        run.warn(device_warning)
    references, total = run.references(source, steps, step_regex, trust_pickle)
    with open_for_writing(run.store), single_threaded(), open_pool(workers, devices) as pool:
        run.go(references, total, pool)
        return run.result()


@dataclass
class _Job:
    """A checkpoint whose matrices are being decomposed."""

    reference: Reference
    checkpoint: Checkpoint
    plan: Plan
    stamp: list[tuple[str, int, int]]
    content: Future[str]
    results: dict[str, Future[tuple[str, Decomposition]]]


@dataclass
class _Run:
    """One call of `analyze`."""

    store: Path
    top_k: int
    match: tuple[str, ...]
    skip: tuple[str, ...]
    trust_mtime: bool
    progress: Progress
    warnings: list[str] = field(default_factory=list)
    failures: list[dict[str, Any]] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.known = Known(self.top_k)
        self._missing = 0
        self._announced = False

    def warn(self, line: str) -> None:
        self.warnings.append(line)
        self.progress.warn(line)

    def fail(self, path: Path | str, step: int | None, reason: str) -> None:
        self.failures.append({"path": str(path), "step": step, "matrix": None, "reason": reason})
        self.progress.fail(f"{path}: {reason}")

    def references(
        self, source: Source, steps: str, step_regex: str | None, trust_pickle: bool
    ) -> tuple[Iterable[Reference], int]:
        """The checkpoints to analyse in step order, and how many (0 if that is not known beforehand)."""
        items = iter([source] if isinstance(source, (str, os.PathLike)) else source)
        first = next(items, None)
        if first is not None and not isinstance(first, (str, os.PathLike)):
            if steps != "all":
                raise RequestError("steps are selected among checkpoints in files; leave out state dicts yourself")
            return from_state_dicts(chain([first], cast(Iterator[StateDictAtStep], items))), 0
        paths = [Path(path) for path in chain([first], cast(Iterator[str], items)) if path is not None]
        found = find_checkpoints(paths, step_regex, trust_pickle)
        for warning in found.warnings:
            self.warn(warning)
        wanted = set(select_steps([reference.step for reference in found.references], steps))
        references = [reference for reference in found.references if reference.step in wanted]
        return references, len(references)

    def go(self, references: Iterable[Reference], total: int, pool: Pool) -> None:
        """Decompose what is not in the store yet, one checkpoint computed while the next one is queued."""
        self.known.learn(self.store)
        if isinstance(references, list):
            self._missing = sum(not step_path(self.store, reference.step).exists() for reference in references)
        queue: deque[_Job] = deque()
        done = 0
        for reference in references:
            job = self._start(reference, pool, queue)
            if job is None:
                done += 1
                self.progress.update(done, total, reference.step)
                continue
            queue.append(job)
            if len(queue) > 1:
                self._finish(queue.popleft(), done, total)
                done += 1
        while queue:
            self._finish(queue.popleft(), done, total)
            done += 1
        self.progress.update(done, total, None)

    def result(self) -> Trajectory:
        """The store, opened for the steps of this run."""
        if not self.steps:
            raise NothingAnalysed("nothing could be analysed", [f"{f['path']}: {f['reason']}" for f in self.failures])
        trajectory = Trajectory(self.store, self.steps)
        trajectory.matrices = [name for name in trajectory.matrices if selected(name, self.match, self.skip)]
        if not trajectory.matrices:
            raise self._no_matrix(trajectory)
        trajectory.warnings[:0] = self.warnings
        trajectory.failures[:0] = self.failures
        return trajectory

    def _no_matrix(self, trajectory: Trajectory) -> Exception:
        if self.match or self.skip:
            names = dict.fromkeys(one["name"] for step in self.steps for one in trajectory.info(step).skipped)
            return RequestError(
                f"no matrix is left by {' '.join((*self.match, *self.skip))}; there are {', '.join(list(names)[:12])}"
            )
        return NothingAnalysed("no checkpoint holds a matrix to analyse; `spectrascope show SOURCE` says why")

    def _start(self, reference: Reference, pool: Pool, queue: deque[_Job]) -> _Job | None:
        """Queue the matrices of a checkpoint; None where there is nothing to do, or it cannot be read."""
        try:
            container, warnings = reference.open()
            for warning in warnings:
                self.warn(warning)
            checkpoint = Checkpoint(container)
            stamp = checkpoint.stamp()
            is_done, content = self._look_up(reference, checkpoint, stamp)
            if is_done:
                self.steps.append(reference.step)
                return None
            todo = plan(checkpoint.tensors, checkpoint.tied, checkpoint.load, self.match, self.skip)
        except CheckpointError as error:
            self.fail(error.path, reference.step, error.reason)
            return None
        except MemoryError:
            self.fail(reference.path, reference.step, "does not fit into memory")
            return None
        if not self._announced:
            self._announce(todo)
            self._announced = True
        return self._submit(reference, checkpoint, todo, stamp, content, pool, queue)

    def _submit(
        self,
        reference: Reference,
        checkpoint: Checkpoint,
        todo: Plan,
        stamp: list[tuple[str, int, int]],
        content: str | None,
        pool: Pool,
        queue: deque[_Job],
    ) -> _Job:
        results: dict[str, Future[tuple[str, Decomposition]]] = {}
        largest_first = sorted(todo.matrices, key=lambda matrix: -matrix.cost)
        alone = [matrix for matrix in largest_first if needs_all_cores(matrix)]
        if alone:
            wait([future for job in queue for future in job.results.values()])
            with all_cores():
                for matrix in alone:
                    results[matrix.name] = _completed(self._decompose, checkpoint, matrix, pool)
        for matrix in largest_first[len(alone) :]:
            results[matrix.name] = pool.executor.submit(self._decompose, checkpoint, matrix, pool)
        if content is None:
            digest = pool.executor.submit(checkpoint.content_hash)
        else:
            digest = Future()
            digest.set_result(content)
        return _Job(reference, checkpoint, todo, stamp, digest, results)

    def _look_up(
        self, reference: Reference, checkpoint: Checkpoint, stamp: list[tuple[str, int, int]]
    ) -> tuple[bool, str | None]:
        """Whether the store has this content under these settings, and the hash of the content if it is known."""
        path = step_path(self.store, reference.step)
        if not path.exists():
            return False, None
        try:
            info, _ = read_step(path)
        except StoreDamaged as error:
            self.warn(f"{error}; set aside as {set_aside(path).name} and made again")
            return False, None
        same_place = info.source["path"] == _place(reference.path, stamp)
        if self.trust_mtime and stamp and same_place and info.source["stamp"] == [list(entry) for entry in stamp]:
            content = str(info.source["content"])
        else:
            content = checkpoint.content_hash()
        if content == info.source["content"]:
            return self._settings_serve(info), content
        if not same_place:
            raise RequestError(
                f"{self.store} already holds step {reference.step} of another checkpoint, {info.source['path']}; "
                f"name another store for {reference.path} with -o"
            )
        return False, content

    def _settings_serve(self, info: StepInfo) -> bool:
        settings = info.settings
        filters_serve = (settings["match"], settings["skip"]) in (
            ([], []),
            (list(self.match), list(self.skip)),
        )
        return settings["top_k"] == self.top_k and filters_serve and not any(r.failed for r in info.records)

    def _announce(self, todo: Plan) -> None:
        """Say what there is to do, and stop where the disk cannot hold it. Raises StoreError."""
        each = sum(8 * m.rank + 4 * min(self.top_k, m.rank) * sum(m.shape) + 600 for m in todo.matrices) + 20_000
        estimate = each * max(self._missing, 1)
        free = shutil.disk_usage(self.store).free
        checkpoints = f"{counted(self._missing, 'checkpoint')} to do" if self._missing else "each checkpoint"
        skipped = counted(len(todo.skipped), "tensor")
        self.progress.say(
            f"{coverage_words(len(todo.matrices), todo.coverage)} "
            f"({skipped} skipped; `spectrascope show` lists them); "
            f"{checkpoints} -> about {human_bytes(estimate)} in {self.store}"
        )
        if estimate > free:
            raise StoreError(
                f"{self.store} needs about {human_bytes(estimate)} and the disk has {human_bytes(free)} free; "
                "use a smaller --top-k (0 keeps singular values alone), fewer --steps, or another disk with -o"
            )

    def _decompose(self, checkpoint: Checkpoint, matrix: Matrix, pool: Pool) -> tuple[str, Decomposition]:
        """The hash of the tensor's bytes and its decomposition."""
        tensor = checkpoint.load(matrix.tensor)
        raw_hash = hash_tensor(tensor)

        def compute() -> Decomposition:
            with pool.device() as device:
                return decompose(matrix.of(tensor), self.top_k, device)

        return raw_hash, self.known.get(raw_hash, matrix, compute)

    def _finish(self, job: _Job, done: int, total: int) -> None:
        """Write the file of one checkpoint as its matrices come in."""
        step = job.reference.step
        records = {matrix.name: self._record(matrix) for matrix in job.plan.matrices}
        info = StepInfo(
            path=step_path(self.store, step),
            step=step,
            source={"path": _place(job.reference.path, job.stamp), "stamp": job.stamp},
            settings={"top_k": self.top_k, "match": list(self.match), "skip": list(self.skip)},
            records=list(records.values()),
            skipped=[asdict(one) for one in job.plan.skipped],
            coverage=job.plan.coverage,
        )
        writer = StepWriter(self.store, info)
        try:
            cost = sum(matrix.cost for matrix in job.plan.matrices) or 1.0
            spent = 0.0
            for matrix in sorted(job.plan.matrices, key=lambda matrix: -matrix.cost):
                self.progress.update(done + spent / cost, total, step)
                record = records[matrix.name]
                record.raw_hash, result = job.results.pop(matrix.name).result()
                record.reason, record.failed, record.note = result.reason, result.failed, result.note
                writer.add(record, result.singular_values, result.left, result.right)
                spent += matrix.cost
            info.source["content"] = job.content.result()
            if job.checkpoint.stamp() != job.stamp:
                raise CheckpointError(job.reference.path, "changed while it was being read; analyse it again")
            path = writer.finish()
        except (CheckpointError, MemoryError) as error:
            for future in job.results.values():
                future.cancel()
            reason = error.reason if isinstance(error, CheckpointError) else "does not fit into memory"
            self.fail(job.reference.path, step, reason)
            return
        finally:
            writer.abandon()
        for record in info.records:
            self.known.remember(record, path)
        self.steps.append(step)

    def _record(self, matrix: Matrix) -> Record:
        return Record(
            name=matrix.name,
            shape=matrix.shape,
            dtype=matrix.dtype,
            role=matrix.role,
            raw_hash="",
            vectors=min(self.top_k, matrix.rank),
            guessed=matrix.guessed,
            tied=matrix.tied,
        )


def _completed(function: Any, *arguments: Any) -> Future[Any]:
    future: Future[Any] = Future()
    try:
        future.set_result(function(*arguments))
    except Exception as error:
        future.set_exception(error)
    return future


def _store_path(source: Source, out: str | os.PathLike[str] | None) -> Path:
    if out is not None:
        return Path(out)
    if not isinstance(source, (str, os.PathLike)):
        raise RequestError("several sources need a store: name one with -o")
    path = Path(source).resolve()
    return Path(f"{path.name if path.is_dir() else path.stem}.spectra")


def _place(path: Path, stamp: list[tuple[str, int, int]]) -> str:
    """Where a checkpoint is, wherever the command runs; a state dict in memory has a label alone."""
    return os.path.abspath(path) if stamp else str(path)
