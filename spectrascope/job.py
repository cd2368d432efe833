"""One checkpoint on its way into the store: looked up, decomposed matrix by matrix, written."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from pathlib import Path

from .checkpoints import Checkpoint, Reference
from .checkpoints.checkpoint import hash_tensor
from .decompose import Decomposition, decompose
from .errors import CheckpointError, RequestError
from .matrices import Matrix, Plan, plan
from .reuse import Known
from .store import Record, StepInfo, StepWriter, read_step, step_path
from .workers import Pool, all_cores, needs_all_cores

Stamp = list[tuple[str, int, int]]
Found = tuple[str, Decomposition]


@dataclass(frozen=True)
class Settings:
    """What was asked for, as far as it decides what a step's file holds."""

    top_k: int
    match: tuple[str, ...]
    skip: tuple[str, ...]

    def served_by(self, info: StepInfo) -> bool:
        """Whether a file was made under these settings, or holds more matrices than these ask for."""
        filters = (info.settings["match"], info.settings["skip"])
        enough = filters in (([], []), (list(self.match), list(self.skip)))
        return enough and info.settings["top_k"] == self.top_k and not any(r.failed for r in info.records)


class Job:
    """A checkpoint that is not in the store yet.

    Attributes: `reference`, `plan` (what becomes of its tensors), and `alone` (its matrices that are too large to
    hold one per core; the pool must be idle when `finish` comes to them).
    Raises CheckpointError where the checkpoint cannot be read.
    """

    def __init__(self, reference: Reference, checkpoint: Checkpoint, settings: Settings, content: str | None) -> None:
        self.reference = reference
        self._checkpoint = checkpoint
        self._settings = settings
        self._content = content
        self._stamp = checkpoint.stamp()
        self.plan: Plan = plan(checkpoint.tensors, checkpoint.tied, checkpoint.load, settings.match, settings.skip)
        self._largest_first = sorted(self.plan.matrices, key=lambda matrix: -matrix.cost)
        self.alone = [matrix for matrix in self._largest_first if needs_all_cores(matrix)]
        self._results: dict[str, Future[Found]] = {}
        self._digest: Future[str] = Future()

    def submit(self, pool: Pool, known: Known) -> None:
        """Queue all matrices but those that run alone, largest first, and the hash of the files."""
        for matrix in self._largest_first[len(self.alone) :]:
            self._results[matrix.name] = pool.executor.submit(self._decompose, matrix, pool, known)
        if self._content is None:
            self._digest = pool.executor.submit(self._checkpoint.content_hash)
        else:
            self._digest.set_result(self._content)

    def finish(self, store: Path, pool: Pool, known: Known, progress: Callable[[float], None]) -> None:
        """Write the step's file as matrices come in; `progress` is called with the share done, in [0, 1].

        Raises CheckpointError where the checkpoint cannot be read to its end or has changed meanwhile, StoreError
        where the file cannot be written. Nothing half-written is left.
        """
        info = self._step_info(store)
        records = {record.name: record for record in info.records}
        cost = sum(matrix.cost for matrix in self.plan.matrices) or 1.0
        spent = 0.0
        try:
            with StepWriter(store, info) as writer:
                for matrix, found in self._as_they_come(pool, known):
                    record = records[matrix.name]
                    record.raw_hash, result = found
                    record.reason, record.failed, record.note = result.reason, result.failed, result.note
                    writer.add(record, result.singular_values, result.left, result.right)
                    known.is_in(writer, record)
                    spent += matrix.cost
                    progress(spent / cost)
                info.source["content"] = self._digest.result()
                if self._checkpoint.stamp() != self._stamp:
                    raise CheckpointError(self.reference.path, "changed while it was being read; analyse it again")
                path = writer.finish()
        finally:
            for future in self._results.values():
                future.cancel()
        for record in info.records:
            known.is_stored(record, path)

    def _as_they_come(self, pool: Pool, known: Known) -> Iterator[tuple[Matrix, Found]]:
        for matrix in self.alone:
            with all_cores():
                yield matrix, self._decompose(matrix, pool, known)
        if self.alone:
            self.submit(pool, known)
        for matrix in self._largest_first[len(self.alone) :]:
            yield matrix, self._results.pop(matrix.name).result()

    def _decompose(self, matrix: Matrix, pool: Pool, known: Known) -> Found:
        """The hash of the tensor's bytes and its decomposition."""
        tensor = self._checkpoint.load(matrix.tensor)
        raw_hash = hash_tensor(tensor)

        def compute() -> Decomposition:
            with pool.device() as device:
                return decompose(matrix.of(tensor), self._settings.top_k, device)

        return raw_hash, known.get(raw_hash, matrix, compute)

    def _step_info(self, store: Path) -> StepInfo:
        records = [
            Record(
                name=matrix.name,
                shape=matrix.shape,
                dtype=matrix.dtype,
                role=matrix.role,
                raw_hash="",
                vectors=min(self._settings.top_k, matrix.rank),
                guessed=matrix.guessed,
                tied=matrix.tied,
            )
            for matrix in self.plan.matrices
        ]
        return StepInfo(
            path=step_path(store, self.reference.step),
            step=self.reference.step,
            source={"path": place(self.reference.path, self._stamp), "stamp": self._stamp},
            settings={key: list(value) if key != "top_k" else value for key, value in asdict(self._settings).items()},
            records=records,
            skipped=[asdict(one) for one in self.plan.skipped],
            coverage=self.plan.coverage,
        )


def look_up(
    store: Path, reference: Reference, checkpoint: Checkpoint, settings: Settings, trust_mtime: bool
) -> tuple[bool, str | None]:
    """Whether a store has this checkpoint under these settings, and the hash of its content if it came to light.

    Raises StoreDamaged where the step's file is none, RequestError where it is of another checkpoint.
    """
    path = step_path(store, reference.step)
    if not path.exists():
        return False, None
    info, _ = read_step(path)
    stamp = checkpoint.stamp()
    same_place = info.source["path"] == place(reference.path, stamp)
    if trust_mtime and stamp and same_place and info.source["stamp"] == [list(entry) for entry in stamp]:
        content = str(info.source["content"])
    else:
        content = checkpoint.content_hash()
    if content == info.source["content"]:
        return settings.served_by(info), content
    if not same_place:
        raise RequestError(
            f"{store} already holds step {reference.step} of another checkpoint, {info.source['path']}; "
            f"name another store for {reference.path} with -o"
        )
    return False, content


def place(path: Path, stamp: Stamp) -> str:
    """Where a checkpoint is, wherever the command runs; a state dict in memory has a label alone."""
    return os.path.abspath(path) if stamp else str(path)
