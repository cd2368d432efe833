"""The one place where re-parametrised, quantised and adapted weights become the matrices that act in the network.

A rule looks at the tensors that a checkpoint lists and says which of them make an effective weight, and how; or which
of them are codes that are refused. Rules that read the same tensors are tried in the order of RULES.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import replace

from ...tensors import CODES, FLOATS, TensorInfo
from .adapters import adapters
from .parametrised import masked, parametrizations, spectral_norm, weight_norm
from .quantised import four_bit_codes, scaled_codes
from .rules import Beside, Effective, Refused, Rule

RULES: list[Rule] = [spectral_norm, masked, weight_norm, parametrizations, four_bit_codes, scaled_codes, adapters]

__all__ = ["Beside", "Effective", "resolve"]


def resolve(tensors: dict[str, TensorInfo], beside: Beside) -> tuple[dict[str, TensorInfo], dict[str, Effective]]:
    """The tensors with every effective weight in the place of the first of its parts, and how each of those is made.

    Parts stay in the list, marked as such. Raises CheckpointError where what is stored cannot be taken for weights.
    """
    found: dict[str, Effective] = {}
    marked: dict[str, TensorInfo] = {}
    taken: set[str] = set()
    for rule in RULES:
        free = {name: info for name, info in tensors.items() if name not in marked and info.kind == "parameter"}
        for one in rule(free, beside):
            if not marked.keys().isdisjoint(one.names):
                continue
            if isinstance(one, Effective) and one.info.dtype not in (*FLOATS, *CODES):
                continue
            if isinstance(one, Effective) and one.info.name in taken:
                one = Refused(one.parts[0], "another weight has the name that it would have", one.names[1:])
            if isinstance(one, Effective) and (one.info.name in one.parts or one.info.name not in tensors):
                found[one.parts[0]] = replace(one, info=replace(one.info, storage=_storage(one, tensors)))
                taken.add(one.info.name)
            marked |= _marks(one, tensors)
    listed = {info.name: info for info in _in_place(tensors, found, marked)}
    return listed, {one.info.name: one for one in found.values()}


def _storage(one: Effective, tensors: dict[str, TensorInfo]) -> Hashable:
    """Equal for weights that are made in one way of the same memory: tied ones."""
    storages = tuple(tensors[part].storage for part in one.parts)
    return None if None in storages else (one.info.made_of, one.info.shape, storages)


def _marks(one: Effective | Refused, tensors: dict[str, TensorInfo]) -> dict[str, TensorInfo]:
    parts = (*one.parts, *one.also) if isinstance(one, Effective) else one.also
    whole = one.info.name if isinstance(one, Effective) else one.name
    marks = {name: replace(tensors[name], kind="part", problem=f"part of {whole}") for name in parts}
    if isinstance(one, Refused):
        info = tensors[one.name]
        marks[one.name] = replace(info, kind="refused", problem=one.reason, packed=one.packed)
    return marks


def _in_place(
    tensors: dict[str, TensorInfo], found: dict[str, Effective], marked: dict[str, TensorInfo]
) -> Iterator[TensorInfo]:
    effective = {one.info.name for one in found.values()}
    for name, info in tensors.items():
        if name in found:
            yield found[name].info
        if name not in effective:
            yield marked.get(name, info)
