"""One checkpoint on its way into the store: looked up, decomposed matrix by matrix, written."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .architectures.facts import Facts, from_plain, read_facts
from .checkpoints import Checkpoint, Reference, Stamp
from .checkpoints.checkpoint import hash_tensor
from .decompose import Decomposition, decompose, decompose_blocks, norms_of_rows, share_of_zeros
from .errors import RequestError
from .matrices import Matrix, Plan, plan
from .reuse import Known
from .selection import selected
from .store import (
    FORMAT_VERSION,
    Parts,
    Record,
    StepInfo,
    StepWriter,
    read_step,
    read_vectors,
    remove_parts,
    step_path,
)
from .workers import Pool, all_cores, needs_all_cores

Found = tuple[str, float, Decomposition]
Filter = tuple[tuple[str, ...], tuple[str, ...]]
NO_FILTER: Filter = ((), ())


@dataclass(frozen=True)
class Settings:
    """What was asked for, as far as it decides what a step's file holds.

    `filters` are pairs of --match and --skip globs; a matrix is wanted if any of them lets it through. `weights` is
    the copy of the model, live or averaged; `heads` and `kv_heads` what the user says of attention layers.
    """

    top_k: int
    filters: tuple[Filter, ...]
    weights: str = "live"
    heads: int | None = None
    kv_heads: int | None = None

    def wants(self, name: str) -> bool:
        """Whether a matrix of this name is asked for."""
        return any(selected(name, match, skip) for match, skip in self.filters)

    def facts(self, checkpoint: Checkpoint) -> Facts:
        """What is known of the architecture. Raises RequestError where config.json contradicts the user."""
        return read_facts(checkpoint.config, self.heads, self.kv_heads)

    def served_by(self, info: StepInfo, facts: Facts) -> bool:
        """Whether a file holds all that is asked for, if of more matrices or with more vectors."""
        has = info.settings
        if info.version < FORMAT_VERSION or from_plain(info.architecture.get("facts", {})) != facts:
            return False
        filters = [_filter(one) for one in has["filters"]]
        enough = NO_FILTER in filters or all(one in filters for one in self.filters)
        return enough and has["top_k"] >= self.top_k and not any(record.failed for record in info.records)

    def together_with(self, info: StepInfo, knows_heads: bool) -> Settings:
        """These settings and those of a file that is about to be replaced, so that it loses no matrix.

        What was said of heads then is forgotten where more is known of them now.
        """
        filters = dict.fromkeys((*map(_filter, info.settings["filters"]), *self.filters))
        has = info.settings
        heads = self.heads if knows_heads else self.heads or has.get("heads")
        kv_heads = self.kv_heads if knows_heads else self.kv_heads or has.get("kv_heads")
        return Settings(max(self.top_k, has["top_k"]), tuple(filters), self.weights, heads, kv_heads)

    def as_plain(self) -> dict[str, Any]:
        """For the store."""
        filters = [[list(match), list(skip)] for match, skip in self.filters]
        plain = {"top_k": self.top_k, "filters": filters, "weights": self.weights}
        return plain | {"heads": self.heads, "kv_heads": self.kv_heads}


def _filter(plain: Sequence[Sequence[str]]) -> Filter:
    match, skip = plain
    return tuple(match), tuple(skip)


@dataclass(frozen=True)
class LookUp:
    """What the store says of a checkpoint: whether it is done, under which settings to do it, its content's hash."""

    is_done: bool
    settings: Settings
    content: str | None = None


class Job:
    """A checkpoint that is not in the store yet.

    Attributes: `reference`, `plan` (what becomes of its tensors), and `alone` (its matrices that are too large to
    hold one per core; the pool must be idle when `finish` comes to them).
    Raises CheckpointError where the checkpoint cannot be read.
    """

    def __init__(self, reference: Reference, checkpoint: Checkpoint, stamp: Stamp, found: LookUp) -> None:
        self.reference = reference
        self._checkpoint = checkpoint
        self._stamp = stamp
        self._settings = found.settings
        self._content = found.content
        self.plan: Plan = plan(
            checkpoint.tensors,
            checkpoint.tied,
            checkpoint.load,
            found.settings.wants,
            checkpoint.ordered,
            found.settings.facts(checkpoint),
        )
        self._all = [*self.plan.matrices, *self.plan.blocks]
        self._largest_first = sorted(self._all, key=lambda matrix: -matrix.cost)
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
        cost = sum(matrix.cost for matrix in self._all) or 1.0
        spent = 0.0

        def report() -> None:
            progress(spent / cost)

        try:
            parts = Parts(store, info)
            with StepWriter(store, info) as writer:
                for matrix, found in self._as_they_come(pool, known, report):
                    record = records[matrix.name]
                    record.raw_hash, record.sparsity, result = found
                    record.reason, record.failed, record.note = result.reason, result.failed, result.note
                    writer.add(record, result.singular_values, result.left, result.right)
                    known.is_in(writer, record)
                    parts.add(record, writer)
                    spent += matrix.cost
                    report()
                info.source["content"] = self._digest.result()
                self._checkpoint.require_unchanged()
                path = writer.finish()
        finally:
            for future in self._results.values():
                future.cancel()
        for record in info.records:
            known.is_stored(record, path)
        remove_parts(store, info.step)

    def _as_they_come(self, pool: Pool, known: Known, waiting: Callable[[], None]) -> Iterator[tuple[Matrix, Found]]:
        """Largest first; `waiting` is called now and then, and may raise KeyboardInterrupt."""
        for matrix in self.alone:
            with all_cores():
                found = self._decompose(matrix, pool, known)
            yield matrix, found
        if self.alone:
            self.submit(pool, known)
        for matrix in self._largest_first[len(self.alone) :]:
            future = self._results.pop(matrix.name)
            while not wait([future], timeout=0.2).done:
                waiting()
            yield matrix, future.result()

    def _decompose(self, matrix: Matrix, pool: Pool, known: Known) -> Found:
        """The hash of the matrix's bytes as stored, its sparsity, and its decomposition."""
        piece = matrix.cut(self._checkpoint.load)
        # The bytes of a transposed convolution do not tell how they are flattened.
        raw_hash = hash_tensor(matrix.of(piece) if matrix.role == "transposed conv" else piece)

        def compute() -> Decomposition:
            if not matrix.has_vectors:
                return norms_of_rows(matrix.of(piece), matrix.shape)
            with pool.device() as device:
                if matrix.side is not None:
                    return decompose_blocks(matrix.of(piece), matrix.side, self._settings.top_k, device)
                return decompose(matrix.of(piece), self._settings.top_k, device)

        return raw_hash, share_of_zeros(piece), known.get(raw_hash, matrix, self._vectors(matrix), compute)

    def _vectors(self, matrix: Matrix) -> int:
        """How many singular vectors of either side are kept."""
        return min(self._settings.top_k, matrix.rank) if matrix.has_vectors else 0

    def _step_info(self, store: Path) -> StepInfo:
        records = [
            Record(
                name=matrix.name,
                shape=matrix.shape,
                dtype=matrix.dtype,
                role=matrix.role,
                raw_hash="",
                vectors=self._vectors(matrix),
                guessed=matrix.guessed,
                tied=matrix.tied,
                made_of=matrix.made_of,
                kernel=matrix.kernel,
                block_count=matrix.blocks.count if matrix.blocks else 0,
                side=matrix.side,
                word=matrix.blocks.word if matrix.blocks else "",
            )
            for matrix in self._all
        ]
        return StepInfo(
            path=step_path(store, self.reference.step),
            step=self.reference.step,
            source={"path": place(self.reference.path, self._stamp), "stamp": self._stamp} | commit_of(self.reference),
            settings=self._settings.as_plain(),
            records=records,
            skipped=[asdict(one) for one in self.plan.skipped],
            coverage=self.plan.coverage,
            architecture={
                "family": self.plan.family,
                "facts": self.plan.facts.as_plain(),
                "left_out": [(place, asdict(layer)) for place, layer in self.plan.left_out],
            },
        )


def look_up(
    store: Path, reference: Reference, checkpoint: Checkpoint, stamp: Stamp, settings: Settings, trust_mtime: bool
) -> LookUp:
    """What a store has of a checkpoint whose files have this stamp.

    Raises StoreDamaged where the step's file is none, RequestError where it is of another checkpoint.
    """
    path = step_path(store, reference.step)
    if not path.exists():
        return LookUp(False, settings)
    info = _sound(path, trust_mtime)
    require_same_weights(info, settings.weights)
    same_place = info.source["path"] == place(reference.path, stamp)
    if trust_mtime and stamp and same_place and info.source["stamp"] == [list(entry) for entry in stamp]:
        content = str(info.source["content"])
    else:
        content = checkpoint.content_hash()
    if content == info.source["content"]:
        together = settings.together_with(info, settings.facts(checkpoint).heads is not None)
        return LookUp(settings.served_by(info, together.facts(checkpoint)), together, content)
    if not same_place:
        raise RequestError(
            f"{store} already holds step {reference.step} of another checkpoint, {info.source['path']}; "
            f"name another store for {reference.path}: -o, or --store of prune"
        )
    return LookUp(False, settings, content)


def has_commit(store: Path, reference: Reference, settings: Settings, weights: str, trust_mtime: bool) -> bool:
    """Whether a store holds all that is asked for of a checkpoint elsewhere, by its commit: without fetching it.

    `weights` is the copy that is asked for, auto for whichever is there. Raises StoreDamaged where the step's file is
    none, RequestError where it is of the other copy.
    """
    path = step_path(store, reference.step)
    if reference.origin is None or not path.exists():
        return False
    info = _sound(path, trust_mtime)
    if weights != "auto":
        require_same_weights(info, weights)
    is_same = info.source["path"] == str(reference.path) and info.source.get("commit") == reference.origin.commit
    heads = (settings.heads, info.settings.get("heads")), (settings.kv_heads, info.settings.get("kv_heads"))
    if not is_same or any(asked not in (None, stored) for asked, stored in heads):
        return False
    return settings.served_by(info, from_plain(info.architecture.get("facts", {})))


def _sound(path: Path, trust_mtime: bool) -> StepInfo:
    """A step's file, with all its vectors read unless that is to be trusted. Raises StoreDamaged where altered."""
    info, _ = read_step(path)
    if not trust_mtime:
        for record in info.records:
            read_vectors(info, record)
    return info


def require_same_weights(info: StepInfo, weights: str) -> None:
    """Raises RequestError where a file of the store is of another copy of the model, live or averaged."""
    stored = info.settings.get("weights", "live")
    if stored != weights:
        raise RequestError(
            f"{info.path.parent} holds {stored} weights of step {info.step}, which are not mixed with {weights} ones; "
            "name another store (-o, or --store of prune), or choose with --weights"
        )


def place(path: Path | str, stamp: Stamp) -> str:
    """Where a checkpoint is, wherever the command runs; a state dict in memory, or an address, is a label alone."""
    return os.path.abspath(path) if stamp and isinstance(path, Path) else str(path)


def commit_of(reference: Reference) -> dict[str, str]:
    """What identifies a checkpoint elsewhere for good, for the store."""
    return {} if reference.origin is None else {"commit": reference.origin.commit}
