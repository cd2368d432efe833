"""Random steps away from a checkpoint (thesis B.2.11; SPEC section 7)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..arrays import Array, from_torch
from ..checkpoints import Checkpoint, Reference
from ..errors import NothingAnalysed, RequestError
from ..matrices import Matrix
from .edits import Edited, matrix_in
from .saving import require_copyable, save_checkpoint
from .targets import Targets, find_targets
from .weights import opened

Row = dict[str, Any]


def step_away(weight: Array, noise: Array, scale: float, rescaled: bool = True) -> Array:
    """W' = W + eta ||W|| eps / ||eps||, in float64, of the shape of W. Eq. of B.2.11.

    Parameters: `scale` is eta, 0 or more; `noise` is eps. With `rescaled`, W' is brought back to the norm of W, as the
    reference code does. A zero matrix stays; NaN and Inf spread over all of it.
    """
    wide, direction = weight.astype(np.float64), noise.astype(np.float64)
    size = float(np.abs(wide).max(initial=0.0)) or 1.0  # relative to it, squares neither overflow nor vanish
    wide = wide / size
    norm = float(np.linalg.norm(wide))
    moved = wide + scale * norm * direction / np.linalg.norm(direction)
    if rescaled and norm:
        moved = moved * (norm / np.linalg.norm(moved))
    return np.asarray(moved * size)


class Perturbation:
    """Every matrix of a checkpoint but the last one, a random step away.

    One generator with this seed draws the noise, tensor by tensor in the model's order, in the type of the weights
    (float32 at least). `rows` say how far each went, or why it stays. A matrix that holds NaN or Inf stays as it is,
    and so does one that would exceed the range of its type.
    """

    def __init__(self, checkpoint: Checkpoint, targets: Targets, scale: float, seed: int, rescaled: bool) -> None:
        self._scale, self._rescaled = scale, rescaled
        self._generator = torch.Generator().manual_seed(seed)
        self.failures: list[Row] = []
        self.rows: list[Row] = []
        self.changed = {name: self._moved(checkpoint, name, targets.of(name)) for name in targets.tensors}
        nothing = dict.fromkeys(("norm_before", "norm_after", "cosine"))
        self.rows += [{"matrix": name, **nothing, "reason": reason} for name, reason in targets.left_alone.items()]

    def _moved(self, checkpoint: Checkpoint, name: str, matrices: list[Matrix]) -> Array:
        tensor = checkpoint.load_stored(name)
        dtype = torch.float64 if tensor.dtype == np.float64 else torch.float32
        noise = from_torch(torch.randn(tensor.shape, generator=self._generator, dtype=dtype))
        for matrix in matrices:
            before = matrix_in(tensor, matrix)
            with np.errstate(all="ignore"):
                after = step_away(before, matrix_in(noise, matrix), self._scale, self._rescaled).astype(tensor.dtype)
            problem = _problem(before, after)
            if problem is not None:
                after = before
                self.failures.append(
                    {"path": str(checkpoint.path), "step": None, "matrix": matrix.name, "reason": problem}
                )
            self.rows.append({"matrix": matrix.name, **_difference(before, after, problem)})
            matrix.put(after.copy(), tensor)
        return tensor


def perturb_checkpoint(
    reference: Reference,
    out: Path,
    scale: float,
    seed: int,
    rescaled: bool = True,
    include_last: bool = False,
    skip_embeddings: bool = False,
) -> tuple[list[Row], list[Row]]:
    """Perturb a checkpoint and write it: rows `matrix, norm_before, norm_after, cosine`, and failures.

    Raises RequestError for a scale that is not finite, or a checkpoint that cannot be written to this path,
    NothingAnalysed where it has no matrix, CheckpointError where it cannot be read.
    """
    if not np.isfinite(scale) or scale < 0:
        raise RequestError(f"--scale is a number from 0 on, not {scale}")
    with opened(reference) as checkpoint:
        require_copyable(out, checkpoint)
        targets = find_targets(checkpoint, include_last=include_last, skip_embeddings=skip_embeddings)
        if not targets.matrices:
            raise NothingAnalysed("there is no matrix to perturb", [f"{checkpoint.path}: see `spectrascope show`"])
        found = Perturbation(checkpoint, targets, scale, seed, rescaled)
        edits = {name: lambda array, changed=changed: changed for name, changed in found.changed.items()}
        save_checkpoint(out, checkpoint, Edited(checkpoint, edits, targets.tied).load)
    refused = [
        {"path": str(reference.path), "step": None, "matrix": name, "reason": reason}
        for name, reason in targets.refused.items()
    ]
    return found.rows, found.failures + refused


def _problem(before: Array, after: Array) -> str | None:
    """Why a matrix stays as it is, None where it does not."""
    if not np.isfinite(before.astype(np.float64)).all():
        return "left alone: it holds NaN or Inf"
    if not np.isfinite(after.astype(np.float64)).all():
        return f"left alone: the step exceeds the range of {before.dtype}"
    return None


def _difference(before: Array, after: Array, problem: str | None) -> Row:
    """Norms in the unit of the weights, and the cosine of the two; none of a matrix that stays, or is zero."""
    one, other = before.astype(np.float64).ravel(), after.astype(np.float64).ravel()
    norms = float(np.linalg.norm(one)), float(np.linalg.norm(other))
    if problem is not None or not all(norms) or not np.isfinite(norms).all():
        nothing = {"norm_before": None, "norm_after": None, "cosine": None}
        return nothing | {"reason": problem or "zero matrix: it has no direction"}
    cosine = float(one / norms[0] @ (other / norms[1]))
    return {"norm_before": norms[0], "norm_after": norms[1], "cosine": cosine, "reason": None}
