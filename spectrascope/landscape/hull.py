"""The convex hull of several checkpoints (thesis Algorithm 1; SPEC section 5): is its inside better than beside it?"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ..metrics import hull
from .runner import Runner
from .weights import Weights

Read = Callable[[int], Weights]


@dataclass
class Hull:
    """What was found: `inside`, `around` and `ends` are losses of each sample, {metric: (J,)}; `gram` is (P, P)."""

    gram: NDArray[np.float64]
    inside: dict[str, list[float]]
    around: dict[str, list[float]]
    ends: dict[str, list[float]]

    def row(self, metric: str) -> dict[str, object]:
        """The columns of a hull's row."""
        ends = self.ends[metric]
        shares = {}
        for name, losses in (("p_conv", self.inside[metric]), ("p_rand", self.around[metric])):
            shares[name], shares[f"{name}_se"] = hull.share_below(losses, ends)
        broken = sum(not np.isfinite(value) for losses in (self.inside, self.around) for value in losses[metric])
        return {
            "metric": metric,
            **shares,
            "distances": hull.distances(self.gram).tolist(),
            "singular_values": hull.singular_values(self.gram).tolist(),
            "singular_values_centred": hull.singular_values(hull.centred(self.gram)).tolist(),
            "reason": f"{broken} losses are not finite, and count as not below" if broken else None,
        }


def gram_matrix(read: Read, count: int, parameters: Collection[str]) -> NDArray[np.float64]:
    """<W_i, W_j> of the flattened parameters of each pair, in float64; two checkpoints are held at a time.

    Buffers, such as the running statistics of batch norm, are no parameters.
    """
    gram = np.zeros((count, count))
    for i in range(count):
        one = read(i)
        for j in range(i + 1):
            other = one if i == j else read(j)
            gram[i, j] = gram[j, i] = _inner(one, other, parameters)
    return gram


def explore(
    runner: Runner,
    read: Read,
    count: int,
    samples: int,
    seed: int,
    progress: Callable[[int], None] = lambda done: None,
) -> Hull:
    """Losses at random points of the hull, at points as far from the nearest end as those, and at that end.

    W_conv = sum a_i W_i with a uniform on the simplex; W_end is the end nearest to it; W_rand = W_end +
    ||W_end - W_conv|| eps / ||eps||, eps ~ N(0, I). `read(i)` gives the i-th checkpoint: one is held at a time, beside
    the mixture. Raises TaskError.
    """
    parameters = runner.order
    gram = gram_matrix(read, count, parameters)
    found = Hull(gram, {}, {}, {})
    at_end: dict[int, dict[str, float]] = {}
    for done, shares in enumerate(hull.simplex_samples(samples, count, seed)):
        progress(done)
        away = _distances_to(shares, gram)
        end = int(np.argmin(away))
        if end not in at_end:
            at_end[end] = runner.losses(read(end))
        mixed = runner.losses(_mixture(read, shares, end))
        nearby = runner.losses(_beside(read(end), parameters, float(away[end]), seed, done))
        for losses, into in ((mixed, found.inside), (nearby, found.around), (at_end[end], found.ends)):
            for metric, value in losses.items():
                into.setdefault(metric, []).append(value)
    progress(samples)
    return found


def _distances_to(shares: NDArray[np.float64], gram: NDArray[np.float64]) -> NDArray[np.float64]:
    """||W_i - sum_j a_j W_j|| for each i."""
    squares = np.diag(gram) - 2 * gram @ shares + shares @ gram @ shares
    found: NDArray[np.float64] = np.sqrt(np.maximum(squares, 0.0))
    return found


def _mixture(read: Read, shares: Sequence[float] | NDArray[np.float64], end: int) -> Weights:
    """sum a_i W_i, summed in float64; whole numbers come from the nearest end, unchanged."""
    nearest = read(end)
    sums = {name: tensor.double() * shares[end] for name, tensor in nearest.items() if tensor.is_floating_point()}
    for i, share in enumerate(shares):
        if i != end:
            for name, tensor in read(i).items():
                if name in sums:
                    sums[name] += tensor.double() * share
    return {name: sums.get(name, tensor) for name, tensor in nearest.items()}


def _beside(weights: Weights, parameters: Collection[str], distance: float, seed: int, sample: int) -> Weights:
    """The weights and a random step of this length, over all parameters together."""

    def noise() -> Iterator[tuple[str, torch.Tensor]]:
        """The same each time: it is drawn twice, once for its length, rather than held."""
        generator = torch.Generator().manual_seed(2**32 * (seed + 1) + sample)
        for name in parameters:
            yield name, torch.randn(weights[name].shape, generator=generator, dtype=torch.float64)

    length = float(np.sqrt(sum(float((one**2).sum()) for _, one in noise())))
    moved = {name: weights[name].double() + distance / length * one for name, one in noise()}
    return {**weights, **moved}


def _inner(one: Weights, other: Weights, parameters: Collection[str]) -> float:
    return float(sum(torch.dot(one[name].double().flatten(), other[name].double().flatten()) for name in parameters))
