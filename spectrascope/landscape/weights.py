"""Checkpoints as the weights of a model: the same names and shapes, nothing broadcast, nothing left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from ..arrays import to_torch
from ..checkpoints import find_checkpoints
from ..checkpoints.names import without_wrappers
from ..errors import CheckpointError, RequestError
from ..words import listed

Weights = dict[str, torch.Tensor]
MOST = 20


def read_weights(source: str | Path, model: torch.nn.Module, trust_pickle: bool = False) -> Weights:
    """The tensors of a checkpoint under the names of the model's state dict, on the CPU, as stored.

    Raises RequestError where the source is not one checkpoint, CheckpointError where it cannot be read, and
    RequestError that lists every name and shape in which it differs from the model.
    """
    found = find_checkpoints([source], trust_pickle=trust_pickle)
    if len(found.references) != 1:
        steps = listed([reference.step for reference in found.references], 6)
        raise RequestError(f"{source} holds {len(found.references)} checkpoints, steps {steps}: name one of them")
    container, _ = found.references[0].open()
    infos = {info.name: info for info in container.tensors() if info.problem is None}
    bare = without_wrappers(list(infos))
    stored = {bare[name]: name for name in infos}
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    there = {name: infos[stored_name].shape for name, stored_name in stored.items()}
    aliases = _aliases(model, expected, there)
    _require_same(str(source), there, {name: shape for name, shape in expected.items() if name not in aliases})
    try:
        return {name: to_torch(container.load(stored[aliases.get(name, name)])) for name in expected}
    except (OSError, RuntimeError, ValueError) as error:
        raise CheckpointError(source, f"cannot be read ({error})") from error


def _aliases(model: torch.nn.Module, expected: Mapping[str, object], there: Mapping[str, object]) -> dict[str, str]:
    """Tied names of the model that a checkpoint stores once: {name that is not there: one that is}."""
    state = model.state_dict()
    by_memory: dict[tuple[int, tuple[int, ...]], str] = {}
    for name in expected:
        if name in there:
            by_memory.setdefault((state[name].data_ptr(), tuple(state[name].shape)), name)
    found = {}
    for name in expected:
        same = by_memory.get((state[name].data_ptr(), tuple(state[name].shape)))
        if name not in there and same is not None and state[name].numel():
            found[name] = same
    return found


def _require_same(
    label: str, there: Mapping[str, tuple[int, ...]], expected: Mapping[str, tuple[int, ...]], other: str = "the model"
) -> None:
    """Raises RequestError that names all differences at once."""
    differences = [
        f"{name} is {_shape(there[name])} there and {_shape(shape)} in {other}"
        for name, shape in expected.items()
        if name in there and there[name] != shape
    ]
    differences += [f"{name} is only in {other}" for name in expected if name not in there]
    differences += [f"{name} is only there" for name in there if name not in expected]
    if differences:
        more = f"; and {len(differences) - MOST} more" if len(differences) > MOST else ""
        raise RequestError(f"{label} does not fit {other}: {'; '.join(differences[:MOST])}{more}")


def require_alike(labels: Sequence[str], weights: Sequence[Mapping[str, torch.Tensor]]) -> None:
    """Raises RequestError that lists every name and shape in which a checkpoint differs from the first one."""
    first = {name: tuple(tensor.shape) for name, tensor in weights[0].items()}
    for label, one in zip(labels[1:], weights[1:], strict=True):
        _require_same(label, {name: tuple(tensor.shape) for name, tensor in one.items()}, first, labels[0])


def put(weights: Mapping[str, torch.Tensor], model: torch.nn.Module) -> None:
    """Copy weights into a model, in the model's own types."""
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            tensor.copy_(weights[name])


def _shape(sizes: tuple[int, ...]) -> str:
    return "x".join(map(str, sizes)) or "a single number"
