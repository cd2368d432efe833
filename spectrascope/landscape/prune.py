"""Pruning: which parts of the weights are kept, what that does to the loss, and to the spectra (SPEC section 6)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from ..architectures.pairs import Vectors
from ..arrays import Array, count_zeros, energy, from_torch
from ..checkpoints import Checkpoint
from ..decompose import decompose
from ..errors import CheckpointError, RequestError
from ..matrices import Matrix
from ..metrics.agreement import agreement_diagonal, first_close
from ..metrics.alignment import LEADING, score
from ..metrics.rank import numerical_rank
from ..remarks import few_directions
from ..store import Trajectory
from ..words import first_of
from ..workers import cores, single_threaded
from .components import Keep, count_of_top, keep_components, keep_filters
from .edits import Edit, Edited, masked, matrix_by_matrix, matrix_in
from .masks import magnitude_masks, random_masks
from .targets import Targets
from .weights import stored_weights

Row = dict[str, Any]
Method = Literal["svd", "magnitude", "random", "mask"]
Masks = Mapping[str, torch.Tensor]
Losses = Mapping[str, float]
# Tensors of more numbers are looked at one at a time, not one a core.
LARGE = 2**24
OVERFLOWS = "what is left of it exceeds the range of"


@dataclass(frozen=True)
class Request:
    """What was asked for.

    `fractions` are shares of the components, or of the weights; `keeps` which of the components; `masks` those to
    apply, or to be like. With `each`, matrices are pruned one at a time. Raises RequestError for other shares than
    those from 0 to 1.
    """

    method: Method
    fractions: tuple[float, ...] = (0.5,)
    keeps: tuple[Keep, ...] = ("top",)
    masks: Masks = field(default_factory=dict)
    seed: int = 0
    include_last: bool = False
    each: bool = False

    def __post_init__(self) -> None:
        if any(not 0 <= fraction <= 1 for fraction in self.fractions):
            raise RequestError(f"a share is from 0 to 1, not {', '.join(f'{one:g}' for one in self.fractions)}")

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

    @property
    def is_of_components(self) -> bool:
        """Whether components are kept, rather than weights."""
        return self.label["keep"] is not None


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

    def edited(self, way: Pruned) -> Edited:
        """The checkpoint, pruned as it is read."""
        return Edited(self.checkpoint, way.edits, self.targets.tied)

    def weights(self) -> Mapping[str, torch.Tensor]:
        """The tensors of the matrices to be pruned, each read when it is asked for."""
        return stored_weights(self.checkpoint.load_stored, {name: name for name in self.targets.tensors})


def ways(request: Request, subject: Subject) -> list[Pruned]:
    """Each way to prune a checkpoint that is asked for. Raises RequestError for masks that do not fit it.

    Raises CheckpointError for NaN among weights that are to be ordered by magnitude.
    """
    targets = subject.targets
    groups = [[matrix] for matrix in targets.matrices] if request.each else [targets.matrices]
    if request.method == "svd":
        return [
            _by_components(subject, group, fraction, keep, request.each)
            for keep in request.keeps
            for fraction in request.fractions
            for group in groups
        ]
    if request.method != "magnitude":
        require_fitting(request.masks, subject.checkpoint, targets)
        masks = {name: request.masks[name] for name in targets.tensors}
        return [_by_masks(random_masks(masks, request.seed) if request.method == "random" else masks, targets)]
    try:
        return [_by_masks(magnitude_masks(subject.weights(), request.fractions[0]), targets)]
    except ValueError as error:
        raise CheckpointError(subject.checkpoint.path, str(error)) from error


def _by_components(subject: Subject, matrices: list[Matrix], fraction: float, keep: Keep, alone: bool) -> Pruned:
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
    return Pruned(edits, kept, {"keep": keep, "fraction": fraction} | ({"matrix": matrices[0].name} if alone else {}))


def _by_masks(masks: Masks, targets: Targets) -> Pruned:
    arrays = {name: from_torch(mask) for name, mask in masks.items()}

    def kept(matrix: Matrix) -> int:
        return int(np.count_nonzero(matrix_in(arrays[matrix.tensor], matrix)))

    share = sum(map(np.count_nonzero, arrays.values())) / sum(mask.size for mask in arrays.values()) if arrays else 0.0
    label = {"keep": None, "fraction": float(share)}
    return Pruned({name: masked(mask) for name, mask in arrays.items()}, kept, label, masks)


def require_fitting(masks: Masks, checkpoint: Checkpoint, targets: Targets) -> None:
    """Raises RequestError that names all masks that do not fit the matrices of a checkpoint that are pruned."""
    tensors, wanted = checkpoint.tensors, targets.tensors
    wrong = [f"{name} is in no matrix that is pruned" for name in masks if name not in wanted]
    wrong += [f"{name} has no mask" for name in wanted if name not in masks]
    wrong += [
        f"the mask of {name} is {tuple(masks[name].shape)}, the tensor {tensors[name].shape}"
        for name in wanted
        if name in masks and tuple(masks[name].shape) != tensors[name].shape
    ]
    if wrong:
        raise RequestError(f"the masks do not fit {checkpoint.path}: {first_of(wrong)}")


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
    edited = subject.edited(way)

    def of_tensor(name: str) -> list[Row]:
        tensor, matrices = subject.checkpoint.load_stored(name), subject.targets.of(name)
        energies = [energy(matrix_in(tensor, matrix)) for matrix in matrices]
        tensor = edited.edit(name, tensor)
        return [
            _matrix_row(subject, way, matrix, before, matrix_in(tensor, matrix))
            for matrix, before in zip(matrices, energies, strict=True)
        ]

    sizes = {name: subject.checkpoint.tensors[name].size for name in subject.targets.tensors}
    small = [name for name, size in sizes.items() if size <= LARGE]
    with single_threaded(), ThreadPoolExecutor(cores()) as pool:
        found = dict(zip(small, pool.map(of_tensor, small), strict=True))
        found |= {name: of_tensor(name) for name in sizes if name not in found}
    nothing = {"kept": None, "sparsity": None, "energy": None, "score": None}
    label = {"step": subject.step, **way.label}
    return [label | row for name in sizes for row in found[name]] + [
        {**label, "matrix": name, **nothing, "reason": reason} for name, reason in subject.targets.left_alone.items()
    ]


def _matrix_row(subject: Subject, way: Pruned, matrix: Matrix, before: float, after: Array) -> Row:
    reason = subject.reason(matrix)
    left = energy(after)
    if reason is None and not np.isfinite(left):
        reason = f"{OVERFLOWS} {matrix.dtype}"
    row = {
        "matrix": matrix.name,
        "kept": None if reason else way.kept(matrix),
        "sparsity": count_zeros(after) / after.size,
        "energy": None if reason or not before else left / before,
        "score": None,
        "reason": reason or (None if before else "zero matrix: it has no energy"),
    }
    if row["reason"] is None and matrix.has_vectors:
        row["score"], row["reason"] = _score(subject, way, matrix, after)
    return row


def _score(subject: Subject, way: Pruned, matrix: Matrix, after: Array) -> tuple[float | None, str | None]:
    """SVA of a matrix before and after, over the directions that are above the rounding noise in both."""
    left, right = (subject.vectors(matrix, side, LEADING) for side in ("left", "right"))
    found = decompose(after, LEADING)
    if found.reason:
        return None, f"after it: {found.reason}"
    diagonal = agreement_diagonal(left.T, right.T, found.left.T, found.right.T)
    spectra = (subject.spectrum(matrix), found.singular_values)
    ranks = (numerical_rank(values, matrix.shape, matrix.dtype) for values in spectra)
    most = way.kept(matrix) if way.is_of_components else matrix.rank
    there = min(*map(int, ranks), most)
    diagonal[there:] = np.nan
    if there == 0:
        return None, "nothing is left of it"
    needed = min(LEADING, matrix.rank)
    reason = few_directions(there, needed) if there < needed else None
    for values, where in zip(spectra, ("", " after it"), strict=True):
        place = int(first_close(values[: there + 1])) + 1
        if place <= min(there, needed) and place < len(values[: there + 1]):
            reason = f"sigma_{place} and sigma_{place + 1}{where} are equal to 1e-6: their vectors are not unique"
            break
    return float(score(diagonal)), reason
