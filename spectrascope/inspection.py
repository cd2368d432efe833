"""What would be analysed (behind `spectrascope show`): plans without decompositions."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from .architectures.facts import read_facts
from .architectures.pairs import Pair
from .checkpoints import Checkpoint, HubRequest, Origin, find_checkpoints, is_on_the_hub, require_weights
from .errors import CheckpointError, NothingAnalysed, RequestError, unreadable
from .matrices import plan
from .remarks import AVERAGED, describe_refused
from .selection import selected
from .steps import select_steps


@dataclass
class Inspection:
    """Rows of matrices and skipped tensors over all checkpoints. `coverage` is the lowest share of parameters."""

    steps: list[int] = field(default_factory=list)
    matrices: list[dict[str, Any]] = field(default_factory=list)
    skipped: list[dict[str, Any]] = field(default_factory=list)
    coverage: float = 0.0
    warnings: list[str] = field(default_factory=list)
    failures: list[dict[str, Any]] = field(default_factory=list)
    families: list[str] = field(default_factory=list)
    pairs: list[dict[str, Any]] = field(default_factory=list)


def inspect(
    sources: Sequence[str | os.PathLike[str]],
    steps: str = "all",
    step_regex: str | None = None,
    match: Sequence[str] = (),
    skip: Sequence[str] = (),
    trust_pickle: bool = False,
    weights: str = "auto",
    heads: int | None = None,
    kv_heads: int | None = None,
    revisions: Sequence[str] = (),
) -> Inspection:
    """List what `analyze` would do with these sources; arguments as there.

    A matrix or skipped tensor whose name, shape and dtype occur in several checkpoints is one row, with the number
    of `steps` it occurs in; so is a pair of consecutive matrices. Raises RequestError for a source or step that does
    not exist, checkpoints of which some hold live weights and some averages alone, or a number of heads that
    config.json contradicts; NothingAnalysed where no checkpoint can be read.
    """
    require_weights(weights)
    request = HubRequest(tuple(revisions), in_place=True)
    found = find_checkpoints(sources, step_regex, trust_pickle, request)
    wanted = set(select_steps([reference.step for reference in found.references], steps))
    result = Inspection(warnings=found.warnings)
    matrices: dict[tuple[Any, ...], dict[str, Any]] = {}
    skipped: dict[tuple[Any, ...], dict[str, Any]] = {}
    pairs: dict[Pair, dict[str, Any]] = {}
    coverages = []

    def wants(name: str) -> bool:
        return selected(name, match, skip)

    for reference in found.references:
        if reference.step not in wanted:
            continue
        try:
            if reference.origin is not None:
                reference.origin.require_in_place()
            container, warnings = reference.open()
            checkpoint = Checkpoint(container, weights, reference.origin)
            weights = checkpoint.weights
            facts = read_facts(checkpoint.config, heads, kv_heads)
            todo = plan(checkpoint.tensors, checkpoint.tied, checkpoint.load, wants, checkpoint.ordered, facts)
        except RequestError:
            raise
        except Exception as error:  # damaged files make the libraries that read them raise whatever they raise
            reason = error.reason if isinstance(error, CheckpointError) else unreadable(error)
            path = error.path if isinstance(error, CheckpointError) else str(reference.path)
            result.failures.append({"path": path, "step": reference.step, "matrix": None, "reason": reason})
            continue
        finally:
            reference.release()
        result.warnings += [warning for warning in warnings if warning not in result.warnings]
        if refused := describe_refused(todo.refused):
            failure = {"path": str(reference.path), "step": reference.step, "matrix": None, "reason": refused}
            result.failures.append(failure)
        result.steps.append(reference.step)
        coverages.append(todo.coverage)
        for matrix in todo.matrices:
            row = {
                "matrix": matrix.name,
                "shape": list(matrix.shape),
                "dtype": matrix.dtype,
                "role": matrix.role,
                "guessed": matrix.guessed,
                "tied": list(matrix.tied),
                "made_of": matrix.made_of,
                "steps": 0,
                "reason": None,
            }
            matrices.setdefault((matrix.name, matrix.shape, matrix.dtype), row)["steps"] += 1
        for pair in todo.pairs:
            pairs.setdefault(pair, _pair_row(pair))["steps"] += 1
        result.families += [todo.family] if todo.family not in result.families else []
        for one in todo.skipped:
            row = {"name": one.name, "shape": list(one.shape), "dtype": one.dtype, "reason": one.reason}
            skipped.setdefault((one.name, one.shape, one.dtype, one.reason), row)
    if not result.steps:
        causes = [f"{failure['path']}: {failure['reason']}" for failure in result.failures]
        raise NothingAnalysed("no checkpoint could be read", causes)
    result.matrices, result.skipped = list(matrices.values()), list(skipped.values())
    result.pairs = list(pairs.values())
    result.coverage = min(coverages)
    if weights == "averaged":
        result.warnings.append(AVERAGED)
    return result


@dataclass
class Revisions:
    """Rows of revisions, in step order, as the Hub lists them."""

    steps: list[int] = field(default_factory=list)
    revisions: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    failures: list[dict[str, Any]] = field(default_factory=list)


def list_revisions(
    sources: Sequence[str | os.PathLike[str]],
    revisions: Sequence[str],
    steps: str = "all",
    step_regex: str | None = None,
) -> Revisions:
    """What `analyze` would fetch of repositories on the Hub: revisions, steps, bytes. Only indices of shards are read.

    Raises RequestError for a source, revision or step that does not exist, HubError where a repository is not listed.
    """
    local = [str(source) for source in sources if not is_on_the_hub(source)]
    if local:
        raise RequestError(f"--revisions are of repositories on the Hub, which {local[0]} is not: show it by itself")
    found = find_checkpoints(sources, step_regex, request=HubRequest(tuple(revisions)))
    wanted = set(select_steps([reference.step for reference in found.references], steps))
    chosen = [(one, one.origin) for one in found.references if one.step in wanted and one.origin is not None]
    result = Revisions([reference.step for reference, _ in chosen], warnings=found.warnings)
    executor = ThreadPoolExecutor(8)
    try:
        sizes = list(executor.map(lambda one: _sizes(one[1]), chosen))
    finally:
        executor.shutdown(wait=False, cancel_futures=True)  # after Ctrl-C, a server that stalls is not waited for
    for (reference, origin), size in zip(chosen, sizes, strict=True):
        row = {"revision": str(reference.path).partition("@")[2], "step": reference.step, "commit": origin.commit}
        result.revisions.append(row | size)
        if size["reason"]:
            failure = {"path": origin.label, "step": reference.step, "matrix": None, "reason": size["reason"]}
            result.failures.append(failure)
    if len(result.failures) == len(result.revisions):
        causes = [f"{failure['path']}: {failure['reason']}" for failure in result.failures]
        raise NothingAnalysed("no revision could be read", causes)
    return result


def _sizes(origin: Origin) -> dict[str, Any]:
    try:
        files, to_fetch = origin.sizes()
    except CheckpointError as error:
        return {"bytes": None, "to_fetch": None, "files": [], "reason": error.reason}
    finally:
        origin.release()  # an index of shards had to be read
    return {"bytes": sum(files.values()), "to_fetch": to_fetch, "files": list(files), "reason": None}


def _pair_row(pair: Pair) -> dict[str, Any]:
    row: dict[str, Any] = {"pair": pair.name, "kind": pair.kind}
    for name, side in (("from", pair.one), ("to", pair.other)):
        row |= {name: side.matrix, f"{name}_side": side.vectors, f"{name}_rows": side.kept.text if side.kept else None}
    return row | {
        "heads": None if pair.reason else pair.heads,
        "guessed": pair.guessed,
        "steps": 0,
        "reason": pair.reason,
    }
