"""Random steps away from a checkpoint (thesis B.2.11; SPEC section 7)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from ..arrays import from_torch
from ..checkpoints import Reference
from .edits import Edited
from .saving import save_checkpoint
from .targets import find_targets
from .weights import StoredWeights, opened

Tensors = dict[str, torch.Tensor]


def perturb(
    tensors: Mapping[str, torch.Tensor], names: Iterable[str], scale: float, seed: int, rescaled: bool = True
) -> Tensors:
    """W' = W + eta ||W|| eps / ||eps|| for the matrices of these names, in their order; all others are left out.

    Parameters: `scale` is eta, 0 or more; the noise eps ~ N(0, I) comes from one generator with this seed, in the type
    of the weights. With `rescaled`, W' is brought back to the norm of W, as the reference code does. A zero matrix
    stays.
    """
    generator = torch.Generator().manual_seed(seed)
    found = {}
    for name in names:
        weight = tensors[name]
        wide = weight.to(torch.promote_types(weight.dtype, torch.float32))
        noise = torch.randn(wide.shape, generator=generator, dtype=wide.dtype)
        norm = torch.linalg.vector_norm(wide)
        moved = wide + scale * norm * noise / torch.linalg.vector_norm(noise)
        if rescaled and float(norm):
            moved = moved * (norm / torch.linalg.vector_norm(moved))
        found[name] = moved.to(weight.dtype)
    return found


def perturbed_checkpoint(
    reference: Reference,
    out: Path,
    scale: float,
    seed: int,
    rescaled: bool = True,
    include_last: bool = False,
    skip_embeddings: bool = False,
) -> list[dict[str, Any]]:
    """Perturb every matrix of a checkpoint but the last one, and write it.

    Rows `matrix, norm_before, norm_after, cosine`. A stack of experts is one row. Raises CheckpointError where it
    cannot be read, SpectrascopeError where the file cannot be written.
    """
    with opened(reference) as checkpoint:
        targets = find_targets(checkpoint, (), include_last, skip_embeddings)
        weights = StoredWeights(checkpoint.load, {name: name for name in targets.tensors})
        found = perturb(weights, targets.tensors, scale, seed, rescaled)
        arrays = {name: from_torch(tensor) for name, tensor in found.items()}
        edits = {name: lambda array, changed=changed: changed for name, changed in arrays.items()}
        save_checkpoint(out, checkpoint, Edited(checkpoint, edits).load)
        rows = [
            {"matrix": name, **_difference(weights[name], tensor), "reason": None} for name, tensor in found.items()
        ]
    nothing = dict.fromkeys(("norm_before", "norm_after", "cosine"))
    return rows + [{"matrix": name, **nothing, "reason": reason} for name, reason in targets.left_alone.items()]


def _difference(before: torch.Tensor, after: torch.Tensor) -> dict[str, float | None]:
    """Norms in the unit of the weights, and the cosine of the two, None of a zero matrix."""
    one, other = before.double().flatten(), after.double().flatten()
    norms = float(one.norm()), float(other.norm())
    cosine = float(torch.dot(one, other)) / (norms[0] * norms[1]) if all(norms) else None
    return {"norm_before": norms[0], "norm_after": norms[1], "cosine": cosine}
