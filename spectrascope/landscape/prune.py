"""Pruning: which parts of the weights are kept, what that does to the loss, and to the spectra (SPEC section 6)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from ..architectures.pairs import Vectors
from ..arrays import Array, count_zeros, from_torch
from ..checkpoints import Checkpoint
from ..decompose import decompose
from ..errors import RequestError
from ..matrices import Matrix
from ..metrics.agreement import agreement_diagonal
from ..metrics.alignment import LEADING, score
from ..metrics.rank import numerical_rank
from ..report.agreement_rows import few_directions
from ..store import Trajectory
from ..workers import cores, single_threaded
from .components import Keep, count_of_top, keep_components, keep_filters
from .edits import Edit, Edited, masked, matrix_by_matrix, matrix_in
from .masks import magnitude_masks, random_masks
from .targets import Targets
from .weights import StoredWeights

Row = dict[str, Any]
Method = Literal["svd", "magnitude", "random", "mask"]
Masks = Mapping[str, torch.Tensor]
Losses = Mapping[str, float]


@dataclass(frozen=True)
class Request:
    """What was asked for.

    `fractions` are shares of the components, or of the weights; `keeps` which of the components; `masks` those to
    apply, or to be like. With `each`, matrices are pruned one at a time.
    """

    method: Method
    fractions: tuple[float, ...] = (0.5,)
    keeps: tuple[Keep, ...] = ("top",)
    masks: Masks = field(default_factory=dict)
    seed: int = 0
    include_last: bool = False
    each: bool = False

    @property
    def is_sweep(self) -> bool:
        """Whether only losses are asked for, of many ways to prune."""
        return len(self.fractions) > 1 or self.each

    def vectors_for(self, largest_rank: int) -> int:
        """How many singular vectors of each matrix it needs, of which the largest has so many."""
        if self.method != "svd":
            return LEADING
        counts = (count_of_top(largest_rank, fraction) for fraction in self.fractions)
        return max(LEADING, *(count for count in counts if count < largest_rank), 0)


@dataclass(frozen=True)
class Pruned:
    """One way to prune a checkpoint: `edits` of its tensors; `kept` says how much is kept of a matrix."""

    edits: dict[str, Edit]
    kept: Callable[[Matrix], int]
    label: Row
    masks: Masks = field(default_factory=dict)


@dataclass(frozen=True)
class Subject:
    """A checkpoint to be pruned, with its spectra, of which `trajectory` has those of `step`."""

    checkpoint: Checkpoint
    step: int
    targets: Targets
    trajectory: Trajectory

    def spectrum(self, matrix: Matrix) -> NDArray[np.float64]:
        """All singular values of a matrix, (R,)."""
        return self.trajectory.singular_values(matrix.name, self.step)

    def vectors(self, matrix: Matrix, side: Vectors, count: int) -> NDArray[np.float32]:
        """Its first singular vectors of one side, (count, d), fewer where it has no more."""
        return self.trajectory.sides(self.step, [(matrix.name, side)], count)[matrix.name, side]

    def reason(self, matrix: Matrix) -> str | None:
        """Why a matrix has no spectrum, None where it has one."""
        record = self.trajectory.info(self.step).record(matrix.name)
        return "it has no spectrum" if record is None else record.reason

    def weights(self) -> Mapping[str, torch.Tensor]:
        """The tensors of the matrices to be pruned, each read when it is asked for."""
        return StoredWeights(self.checkpoint.load, {name: name for name in self.targets.tensors})


def ways(request: Request, subject: Subject) -> Iterator[Pruned]:
    """Each way to prune a checkpoint that is asked for. Raises RequestError for masks that do not fit it."""
    targets = subject.targets
    groups = [[matrix] for matrix in targets.matrices] if request.each else [targets.matrices]
    if request.method == "svd":
        for keep in request.keeps:
            for fraction in request.fractions:
                for group in groups:
                    label = {"keep": keep, "fraction": fraction} | ({"matrix": group[0].name} if request.each else {})
                    yield _by_components(subject, group, fraction, keep, label)
        return
    if request.method == "magnitude":
        (fraction,) = request.fractions
        masks: Masks = magnitude_masks(subject.weights(), fraction)
    else:
        masks = dict(_fitting(request.masks, subject))
        if request.method == "random":
            masks = random_masks(dict(masks), request.seed)
    yield _by_masks(masks, targets)


def _by_components(subject: Subject, matrices: list[Matrix], fraction: float, keep: Keep, label: Row) -> Pruned:
    def kept(matrix: Matrix) -> int:
        top = count_of_top(matrix.rank, fraction)
        return top if keep == "top" else matrix.rank - top

    def change(matrix: Matrix, values: Array) -> Array:
        top = count_of_top(matrix.rank, fraction)
        if subject.reason(matrix):
            return values
        if not matrix.has_vectors:
            return keep_filters(values, top, keep)
        side: Vectors = "left" if values.shape[0] < values.shape[1] else "right"
        needed = 0 if top == matrix.rank else top
        return keep_components(values, subject.vectors(matrix, side, needed), top, keep)

    tensors = dict.fromkeys(matrix.tensor for matrix in matrices)
    edits = {
        name: matrix_by_matrix([matrix for matrix in matrices if matrix.tensor == name], change) for name in tensors
    }
    return Pruned(edits, kept, label)


def _by_masks(masks: Masks, targets: Targets) -> Pruned:
    arrays = {name: from_torch(mask) for name, mask in masks.items()}

    def kept(matrix: Matrix) -> int:
        return int(np.count_nonzero(matrix_in(arrays[matrix.tensor], matrix)))

    share = sum(map(np.count_nonzero, arrays.values())) / sum(mask.size for mask in arrays.values()) if arrays else 0.0
    label = {"keep": None, "fraction": float(share)}
    return Pruned({name: masked(mask) for name, mask in arrays.items()}, kept, label, masks)


def _fitting(masks: Masks, subject: Subject) -> Iterator[tuple[str, torch.Tensor]]:
    """The masks of a checkpoint's matrices, in its order. Raises RequestError that names all that do not fit."""
    tensors, wanted = subject.checkpoint.tensors, subject.targets.tensors
    wrong = [f"{name} is in no matrix that is pruned" for name in masks if name not in wanted]
    wrong += [f"{name} has no mask" for name in wanted if name not in masks]
    wrong += [
        f"the mask of {name} is {tuple(masks[name].shape)}, the tensor {tensors[name].shape}"
        for name in wanted
        if name in masks and tuple(masks[name].shape) != tensors[name].shape
    ]
    if wrong:
        raise RequestError(f"the masks do not fit {subject.checkpoint.path}: {'; '.join(wrong[:20])}")
    return ((name, masks[name]) for name in wanted)


def loss_rows(subject: Subject, way: Pruned, before: Losses, after: Losses) -> list[Row]:
    """Rows `metric, before, after` of one way to prune a checkpoint; a loss that is not finite is None, and said."""
    rows = []
    for metric, value in before.items():
        pair = {"before": value, "after": after.get(metric, float("nan"))}
        broken = [word for word, loss in pair.items() if not np.isfinite(loss)]
        numbers = {word: None if word in broken else loss for word, loss in pair.items()}
        reason = f"not finite {' and '.join(broken)}" if broken else None
        rows.append({"step": subject.step, **way.label, "metric": metric, **numbers, "reason": reason})
    return rows


def matrix_rows(subject: Subject, way: Pruned) -> list[Row]:
    """Rows `matrix, kept, sparsity, energy, score` of one way to prune a checkpoint, those left alone at the end.

    `kept` counts components or weights, `sparsity` is the share of zeros after it, `energy` ||W'||^2 / ||W||^2, and
    `score` the SVA of the matrix before and after, over the directions that both have.
    """
    edited = Edited(subject.checkpoint, way.edits)

    def of_tensor(name: str) -> list[Row]:
        before, after = subject.checkpoint.load(name), edited.load(name)
        return [
            _matrix_row(subject, way, matrix, matrix_in(before, matrix), matrix_in(after, matrix))
            for matrix in subject.targets.of(name)
        ]

    with single_threaded(), ThreadPoolExecutor(cores()) as pool:
        rows = [row for rows in pool.map(of_tensor, subject.targets.tensors) for row in rows]
    nothing = {"kept": None, "sparsity": None, "energy": None, "score": None}
    return [{"step": subject.step, **way.label, **row} for row in rows] + [
        {"step": subject.step, **way.label, "matrix": name, **nothing, "reason": reason}
        for name, reason in subject.targets.left_alone.items()
    ]


def _matrix_row(subject: Subject, way: Pruned, matrix: Matrix, before: Array, after: Array) -> Row:
    reason = subject.reason(matrix)
    total = _energy(before)
    row = {
        "matrix": matrix.name,
        "kept": None if reason else way.kept(matrix),
        "sparsity": count_zeros(after) / after.size,
        "energy": None if reason or not total else _energy(after) / total,
        "score": None,
        "reason": reason or (None if total else "zero matrix: it has no energy"),
    }
    if row["reason"] is None and matrix.has_vectors:
        row["score"], row["reason"] = _score(subject, matrix, after)
    return row


def _energy(values: Array) -> float:
    return float(np.square(np.linalg.norm(values.astype(np.float64))))


def _score(subject: Subject, matrix: Matrix, after: Array) -> tuple[float | None, str | None]:
    """SVA of a matrix before and after, over the directions that are above the rounding noise in both."""
    left, right = (subject.vectors(matrix, side, LEADING) for side in ("left", "right"))
    found = decompose(after, LEADING)
    if found.reason:
        return None, f"after it: {found.reason}"
    diagonal = agreement_diagonal(left.T, right.T, found.left.T, found.right.T)
    spectra = (subject.spectrum(matrix), found.singular_values)
    ranks = (numerical_rank(values, matrix.shape, matrix.dtype) for values in spectra)
    there = int(min(ranks))
    diagonal[there:] = np.nan
    if there == 0:
        return None, "nothing is left of it"
    needed = min(LEADING, matrix.rank)
    return float(score(diagonal)), few_directions(there, needed) if there < needed else None
