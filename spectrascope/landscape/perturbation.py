"""Random steps away from a checkpoint (thesis B.2.11; SPEC section 7)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

Tensors = dict[str, torch.Tensor]


def perturb(
    tensors: Mapping[str, torch.Tensor], names: Iterable[str], scale: float, seed: int, rescaled: bool = True
) -> Tensors:
    """W' = W + eta ||W|| eps / ||eps|| for the matrices of these names, in their order; all others as they are.

    Parameters: `scale` is eta, 0 or more; the noise eps ~ N(0, I) comes from one generator with this seed, in the type
    of the weights. With `rescaled`, W' is brought back to the norm of W, as the reference code does. A zero matrix
    stays.
    """
    generator = torch.Generator().manual_seed(seed)
    found = dict(tensors)
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
