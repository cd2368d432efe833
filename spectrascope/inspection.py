"""What would be analysed (behind `spectrascope show`): plans without decompositions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .architectures.facts import read_facts
from .architectures.pairs import Pair
from .checkpoints import Checkpoint, find_checkpoints, require_weights
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
    sources: Sequence[Path],
    steps: str = "all",
    step_regex: str | None = None,
    match: Sequence[str] = (),
    skip: Sequence[str] = (),
    trust_pickle: bool = False,
    weights: str = "auto",
    heads: int | None = None,
    kv_heads: int | None = None,
) -> Inspection:
    """List what `analyze` would do with these sources; arguments as there.

    A matrix or skipped tensor whose name, shape and dtype occur in several checkpoints is one row, with the number
    of `steps` it occurs in; so is a pair of consecutive matrices. Raises RequestError for a source or step that does
    not exist, checkpoints of which some hold live weights and some averages alone, or a number of heads that
    config.json contradicts; NothingAnalysed where no checkpoint can be read.
    """
    require_weights(weights)
    found = find_checkpoints(sources, step_regex, trust_pickle)
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
            container, warnings = reference.open()
            checkpoint = Checkpoint(container, weights)
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
