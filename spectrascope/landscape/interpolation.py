"""The straight line between two checkpoints, and the losses along it (SPEC section 5)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from ..metrics.barrier import barrier, max_deviation
from .runner import Runner
from .weights import Computed, Weights


def interpolate(one: Weights, other: Weights, alpha: float) -> Weights:
    """(1 - alpha) W_1 + alpha W_2, in the wider of the two types, and float32 at least between the ends.

    The ends are reproduced bit for bit. Whole numbers and booleans come from the first, unchanged. Each tensor is mixed
    when it is asked for.
    """
    return Computed(one, lambda name: _mix(one[name], other[name], alpha))


def _mix(one: torch.Tensor, other: torch.Tensor, alpha: float) -> torch.Tensor:
    if not one.is_floating_point() and not one.is_complex():
        return one
    if alpha in (0, 1) and one.dtype == other.dtype:
        return one if alpha == 0 else other
    # Floats of 8 bits have no type that both fit into but float32.
    one, other = (tensor.float() if tensor.dtype.itemsize == 1 else tensor for tensor in (one, other))
    dtype = torch.promote_types(one.dtype, other.dtype)
    if alpha in (0, 1):
        return (one if alpha == 0 else other).to(dtype)
    wide = torch.promote_types(dtype, torch.float32)
    return torch.lerp(one.to(wide), other.to(wide), alpha)


@dataclass
class Curve:
    """The losses along a line: {metric: one at each alpha}, NaN as they came."""

    alphas: list[float]
    losses: dict[str, list[float]] = field(default_factory=dict)

    def row(self, metric: str) -> dict[str, object]:
        """The columns of `lmc`; barrier and the rest are None, with a reason, where a loss is not finite."""
        values = self.losses[metric]
        broken = [alpha for alpha, value in zip(self.alphas, values, strict=True) if not np.isfinite(value)]
        if broken:
            numbers: dict[str, object] = {"barrier": None, "max_deviation": None, "alpha": None}
            reason: str | None = f"not finite at alpha {', '.join(f'{alpha:g}' for alpha in broken[:6])}"
        else:
            deviation, alpha = max_deviation(self.alphas, values)
            numbers = {"barrier": barrier(self.alphas, values), "max_deviation": deviation, "alpha": alpha}
            numbers = {name: None if number != number else number for name, number in numbers.items()}
            reason = None
        curve = [value if np.isfinite(value) else None for value in values]
        return {"metric": metric, **numbers, "alphas": self.alphas, "curve": curve, "reason": reason}


def curve(
    runner: Runner,
    one: Weights,
    other: Weights,
    points: int = 11,
    progress: Callable[[int], None] = lambda done: None,
) -> Curve:
    """The losses at `points` evenly spaced alphas, ends included.

    The weights of the ends, and their files, are never changed. Raises TaskError.
    """
    found = Curve([float(alpha) for alpha in np.linspace(0.0, 1.0, points)])
    for done, alpha in enumerate(found.alphas):
        progress(done)
        for metric, loss in runner.losses(interpolate(one, other, alpha)).items():
            found.losses.setdefault(metric, [float("nan")] * points)[done] = loss
    progress(points)
    return found
