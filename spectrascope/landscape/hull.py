"""The convex hull of several checkpoints (thesis Algorithm 1; SPEC section 5): is its inside better than beside it?"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ..metrics import hull
from ..report.rows import plain_list, plain_lists
from .runner import Runner
from .weights import Computed, Weights


@dataclass
class Hull:
    """What was found: `inside`, `around` and `ends` are losses of each sample, {metric: (J,)}; `gram` is (P, P)."""

    gram: NDArray[np.float64]
    inside: dict[str, list[float]]
    around: dict[str, list[float]]
    ends: dict[str, list[float]]

    @property
    def metrics(self) -> list[str]:
        """All that were given at least once."""
        return list(dict.fromkeys((*self.inside, *self.around, *self.ends)))

    def row(self, metric: str) -> dict[str, object]:
        """The columns of a hull's row."""
        losses = (self.inside.get(metric, []), self.around.get(metric, []), self.ends.get(metric, []))
        samples = max(map(len, self.ends.values()))
        inside, around, ends = (np.array(one + [np.nan] * (samples - len(one))) for one in losses)
        shares = {}
        for name, some in (("p_conv", inside), ("p_rand", around)):
            shares[name], shares[f"{name}_se"] = hull.share_below(some, ends)
        broken = int((~np.isfinite(inside)).sum() + (~np.isfinite(around)).sum())
        reason = f"{broken} losses are not finite or not given, and count as not below" if broken else None
        if not np.isfinite(self.gram).all():
            reason = "a checkpoint holds NaN or Inf"
        return {
            "metric": metric,
            **shares,
            "distances": plain_lists(hull.distances(self.gram)),
            "singular_values": plain_list(hull.singular_values(self.gram)),
            "singular_values_centred": plain_list(hull.singular_values(hull.centred(self.gram))),
            "reason": reason,
        }


def gram_matrix(ends: Sequence[Weights], parameters: Collection[str]) -> NDArray[np.float64]:
    """<W_i, W_j> of the flattened parameters of each pair, (P, P), in float64; two tensors are held at a time.

    Buffers, such as the running statistics of batch norm, are no parameters.
    """
    gram = np.zeros((len(ends), len(ends)))
    for name in parameters:
        for i, one in enumerate(ends):
            mine = one[name].double().flatten()
            for j, other in enumerate(ends[: i + 1]):
                gram[i, j] += float(torch.dot(mine, other[name].double().flatten()))
    return gram + np.tril(gram, -1).T


def explore(
    runner: Runner,
    ends: Sequence[Weights],
    samples: int,
    seed: int,
    progress: Callable[[int], None] = lambda done: None,
) -> Hull:
    """Losses at random points of the hull, at points as far from the nearest end as those, and at that end.

    W_conv = sum a_i W_i with a uniform on the simplex; W_end is the end nearest to it; W_rand = W_end +
    ||W_end - W_conv|| eps / ||eps||, eps ~ N(0, I), over all parameters together. Tensors are mixed one by one as they
    are put into the model. Raises TaskError.
    """
    gram = gram_matrix(ends, runner.order)
    found = Hull(gram, {}, {}, {})
    at_end: dict[int, dict[str, float]] = {}
    for done, shares in enumerate(hull.simplex_samples(samples, len(ends), seed)):
        progress(done)
        away = np.nan_to_num(_distances_to(shares, gram))
        end = int(np.argmin(away))
        if end not in at_end:
            at_end[end] = runner.losses(ends[end])
        mixed = runner.losses(_mixture(ends, shares, end))
        nearby = runner.losses(_beside(runner, ends[end], float(away[end]), (seed, done)))
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


def _mixture(ends: Sequence[Weights], shares: NDArray[np.float64], nearest: int) -> Weights:
    """sum a_i W_i, summed in float64; whole numbers come from the nearest end, unchanged."""

    def mix(name: str) -> torch.Tensor:
        tensor = ends[nearest][name]
        if not tensor.is_floating_point():
            return tensor
        total = torch.zeros(tensor.shape, dtype=torch.float64)
        for share, end in zip(shares, ends, strict=True):
            total += float(share) * end[name].double()
        return total

    return Computed(ends[nearest], mix)


def _beside(runner: Runner, end: Weights, distance: float, seed: tuple[int, int]) -> Weights:
    """An end and a random step of this length, over all parameters together; buffers are those of the end."""
    places = runner.places

    def noise(place: int, name: str) -> torch.Tensor:
        """Of each parameter its own, so that it need not be held: the same each time it is drawn."""
        (state,) = np.random.SeedSequence((*seed, place)).generate_state(1, np.uint64)
        generator = torch.Generator().manual_seed(int(state))
        return torch.randn(end[name].shape, generator=generator, dtype=torch.float64)

    squares = [float((noise(places[name], name) ** 2).sum()) for name in runner.order]
    factor = distance / float(np.sqrt(sum(squares)))

    def step(name: str) -> torch.Tensor:
        return end[name].double() + factor * noise(places[name], name) if name in places else end[name]

    return Computed(end, step)
