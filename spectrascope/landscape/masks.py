"""Which weights pruning keeps: the largest of all matrices together, or as many at random (SPEC section 6)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray

Tensors = Mapping[str, torch.Tensor]
Masks = dict[str, torch.Tensor]
# Numbers that are looked at together: memory stays that of the weights and their masks.
CHUNK = 2**20
# Magnitudes are compared by the bits of their float64, which are in the order of the numbers, 16 at a time.
DIGIT, DIGITS = 16, 4


def magnitude_masks(tensors: Tensors, fraction: float) -> Masks:
    """Masks that keep the round(p N) weights of largest magnitude over all tensors together, exactly so many.

    Parameters: `fraction` p in [0, 1]. Of equal magnitudes the first are kept, in the order of the tensors and of their
    entries. No copy of the weights is made and nothing is sorted: the smallest magnitude that is kept is found digit by
    digit. Raises ValueError for a fraction outside [0, 1], or weights that are NaN.
    """
    if not 0 <= fraction <= 1:
        raise ValueError(f"a share of weights is from 0 to 1, not {fraction}")
    shapes = {name: tensors[name].shape for name in tensors}
    total = sum(map(prod, shapes.values()))
    count = round(fraction * total)
    # One block for all: small ones between the pieces of weights that come and go would keep the heap from shrinking.
    room = torch.zeros(total, dtype=torch.bool)
    masks = dict(zip(shapes, room.split([prod(shape) for shape in shapes.values()]), strict=True))
    smallest, ties = _threshold(tensors, count) if count else (0, 0)
    for name, start, bits in _chunks(tensors) if count else ():
        kept = bits > smallest
        equal = np.flatnonzero(bits == smallest)[:ties]
        kept[equal] = True
        ties -= len(equal)
        masks[name][start : start + len(bits)] = torch.from_numpy(kept)
    return {name: mask.reshape(shapes[name]) for name, mask in masks.items()}


def random_masks(like: Masks, seed: int) -> Masks:
    """Masks that keep in each tensor exactly as many entries as `like` does, chosen by the seed."""
    random = np.random.default_rng(seed)
    masks: Masks = {}
    for name, mask in like.items():
        chosen = np.zeros(mask.numel(), dtype=bool)
        chosen[: int(mask.sum())] = True
        random.shuffle(chosen)
        masks[name] = torch.from_numpy(chosen).reshape(mask.shape)
    return masks


def _threshold(tensors: Tensors, count: int) -> tuple[int, int]:
    """The bits of the count-th largest magnitude, and how many of those equal to it are among the largest."""
    prefix = 0
    for digit in reversed(range(DIGITS)):
        shift = DIGIT * digit
        counts = np.zeros(2**DIGIT, dtype=np.int64)
        for _, _, bits in _chunks(tensors):
            digits = bits >> shift
            here = digits[(digits >> DIGIT) == (prefix >> DIGIT)] if digit < DIGITS - 1 else digits
            counts += np.bincount(here & (2**DIGIT - 1), minlength=2**DIGIT)
        above = np.cumsum(counts[::-1])
        place = int(np.searchsorted(above, count))  # from the largest digit down
        count -= int(above[place - 1]) if place else 0
        prefix = (prefix & ~(2**DIGIT - 1)) | (2**DIGIT - 1 - place)
        prefix <<= DIGIT if digit else 0
    return prefix, count


def _chunks(tensors: Tensors) -> Iterator[tuple[str, int, NDArray[np.int64]]]:
    """Name of a tensor, where a piece of it begins, and the bits of its magnitudes. Raises ValueError for NaN.

    No tensor is held while the next one is read.
    """
    for name in tensors:
        yield from _chunks_of(name, tensors[name])


def _chunks_of(name: str, tensor: torch.Tensor) -> Iterator[tuple[str, int, NDArray[np.int64]]]:
    flat = tensor.detach().reshape(-1)
    for start in range(0, flat.numel(), CHUNK):
        values = flat[start : start + CHUNK].to(torch.float64).abs()
        if bool(torch.isnan(values).any()):
            raise ValueError(f"{name} holds NaN, which has no magnitude")
        yield name, start, values.numpy().view(np.int64)
