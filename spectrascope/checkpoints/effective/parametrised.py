"""Weights that torch computes from others: pruning, weight norm, spectral norm, `parametrizations`.

The values are those of the layer in evaluation mode, in float64 where arithmetic is needed.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from math import prod

import numpy as np

from ...arrays import Array
from .rules import Beside, Effective, Refused, Tensors

PARAMETRIZATION = re.compile(r"(?P<module>.*?)(?:^|\.)parametrizations\.(?P<name>\w+)\.(?P<rest>.+)$")
# The cosine of u and W v once power iteration has run.
SETTLED = 0.9
SPECTRAL = {"original", "0._u", "0._v"}
WAY_OUT = "call torch.nn.utils.parametrize.remove_parametrizations on its layer before saving"


def masked(tensors: Tensors, beside: Beside) -> Iterator[Effective | Refused]:
    """torch.nn.utils.prune: `weight_orig` * `weight_mask`; also a `weight` with a `weight_mask` of its shape."""
    for name, info in tensors.items():
        stem = name.removesuffix("_orig")
        mask = tensors.get(f"{stem}_mask")
        beside_it = _other_part_of_weight_norm(stem, tensors)
        if mask is not None and stem != name and (beside_it or PARAMETRIZATION.match(stem)):
            reason = "pruned below another parametrisation; call prune.remove before saving"
            yield Refused(name, reason, (mask.name, *beside_it))
            continue
        is_masked = stem != name or (name.endswith("weight") and f"{name}_orig" not in tensors)
        if is_masked and mask is not None and mask.shape == info.shape:
            made_of = f"{name.rpartition('.')[2]} * {mask.name.rpartition('.')[2]}"
            yield Effective(replace(info, name=stem, storage=None, made_of=made_of), (name, mask.name), _times)
        elif stem != name and _is_weight(stem):
            yield Refused(name, "re-parametrised, and its mask is not in the file; call prune.remove before saving")


def weight_norm(tensors: Tensors, beside: Beside) -> Iterator[Effective | Refused]:
    """torch.nn.utils.weight_norm: `weight_g` * `weight_v` / ||`weight_v`|| (Salimans & Kingma 2016)."""
    for name, info in tensors.items():
        stem = name.removesuffix("_v")
        size = tensors.get(f"{stem}_g")
        if stem != name and _is_weight(stem) and size is not None and _is_size_of(size.shape, info.shape):
            made_of = f"weight norm of {name.rpartition('.')[2]}"
            yield Effective(replace(info, name=stem, storage=None, made_of=made_of), (name, size.name), _normalised)


def spectral_norm(tensors: Tensors, beside: Beside) -> Iterator[Effective | Refused]:
    """torch.nn.utils.spectral_norm: `weight_orig` / (u^T W v) (Miyato et al. 2018)."""
    for name, info in tensors.items():
        stem = name.removesuffix("_orig")
        u, v = tensors.get(f"{stem}_u"), tensors.get(f"{stem}_v")
        # Layers in training mode only keep u in old versions of torch.
        if stem != name and u is not None and v is not None and _axes_of(info.shape, u.size, v.size):
            made_of = f"spectral norm of {name.rpartition('.')[2]}"
            parts = (name, u.name, v.name)
            yield Effective(replace(info, name=stem, storage=None, made_of=made_of), parts, _spectrally_normalised)


def parametrizations(tensors: Tensors, beside: Beside) -> Iterator[Effective | Refused]:
    """torch.nn.utils.parametrize: `parametrizations.weight.original`, or `original0` and `original1`, and buffers.

    Weight norm and spectral norm are known by what they keep; any other function is not in the file.
    """
    groups: defaultdict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for name in tensors:
        if found := PARAMETRIZATION.match(name):
            groups[found["module"], found["name"]][found["rest"]] = name
    for (module, parameter), names in groups.items():
        name = f"{module}.{parameter}".lstrip(".")
        first = names.get("original", names.get("original1", next(iter(names.values()))))
        if len(tensors[first].shape) < 2:
            continue
        info = replace(tensors[first], name=name, storage=None)
        kept = set(names)
        if kept == {"original0", "original1"} and _is_size_of(tensors[names["original0"]].shape, info.shape):
            parts = (first, names["original0"])
            yield Effective(replace(info, made_of="weight norm of original1"), parts, _normalised)
        elif kept == SPECTRAL and _axes_of(info.shape, *(tensors[names[one]].size for one in ("0._u", "0._v"))):
            vectors = (names["0._u"], names["0._v"])
            made_of = "spectral norm of original"
            yield Effective(replace(info, made_of=made_of), (first, *vectors), _spectrally_normalised)
        else:
            others = tuple(other for other in names.values() if other != first)
            yield Refused(first, f"re-parametrised by a function that the file does not hold; {WAY_OUT}", others)


def _other_part_of_weight_norm(name: str, tensors: Tensors) -> tuple[str, ...]:
    """What there is of `weight_g` beside a pruned `weight_v`, or the other way round."""
    other = {"_v": "_g", "_g": "_v"}.get(name[-2:])
    names = [f"{name[:-2]}{other}{end}" for end in ("", "_orig", "_mask")] if other else []
    return tuple(one for one in names if one in tensors)


def _is_size_of(size: tuple[int, ...], direction: tuple[int, ...]) -> bool:
    """Whether one tensor may be the lengths of the slices of another: as long on one axis at most, 1 on the others."""
    if not size:
        return True
    return (
        len(size) == len(direction)
        and sum(a != 1 for a in size) <= 1
        and all(a in (1, b) for a, b in zip(size, direction, strict=True))
    )


def _times(weight: Array, mask: Array) -> Array:
    return np.asarray(weight * mask.astype(weight.dtype))


def _normalised(direction: Array, size: Array) -> Array:
    direction, size = direction.astype(np.float64), size.astype(np.float64)
    axes = tuple(axis for axis in range(direction.ndim) if size.ndim == 0 or size.shape[axis] == 1)
    lengths = np.sqrt(np.square(direction).sum(axis=axes, keepdims=True))
    return np.asarray(direction * (size / lengths))


def _spectrally_normalised(weight: Array, u: Array, v: Array) -> Array:
    """Transposed convolutions have their rows on axis 1; where both axes are as long as u, u = W v / |W v| tells."""
    weight, u, v = weight.astype(np.float64), u.astype(np.float64).ravel(), v.astype(np.float64).ravel()
    axes = _axes_of(weight.shape, u.size, v.size)
    images = [np.moveaxis(weight, axis, 0).reshape(u.size, -1) @ v for axis in axes]
    cosines = [float(u @ image / np.linalg.norm(image)) for image in images]
    is_settled = weight.ndim > 2 and max(cosines) > SETTLED
    return np.asarray(weight / (u @ images[cosines.index(max(cosines)) if is_settled else 0]))


def _axes_of(shape: tuple[int, ...], u: int, v: int) -> list[int]:
    """The axes that may be the rows of the matrix of which u and v are singular vectors."""
    return [axis for axis, length in enumerate(shape) if length == u and length * v == prod(shape)]


def _is_weight(name: str) -> bool:
    return "weight" in name.rpartition(".")[2]
