"""Checkpoints as the weights of a model: the same names and shapes, nothing broadcast, nothing left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from ..arrays import Array, to_torch
from ..checkpoints import Checkpoint, Reference, find_checkpoints
from ..errors import RequestError
from ..skipping import constant_kind
from ..tensors import TensorInfo
from ..words import listed

Weights = Mapping[str, torch.Tensor]
MOST = 20


class StoredWeights(Weights):
    """Weights under the names of a model's state dict, each read when it is asked for, and not kept.

    Parameters: `load` reads a tensor of the checkpoint, `names` gives the checkpoint's name for each of the model's.
    """

    def __init__(self, load: Callable[[str], Array], names: Mapping[str, str]) -> None:
        self._load = load
        self._names = names

    def __getitem__(self, name: str) -> torch.Tensor:
        return to_torch(self._load(self._names[name]))

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@contextmanager
def opened(reference: Reference, weights: str = "auto") -> Iterator[Checkpoint]:
    """A checkpoint, for as long as it is read. Raises CheckpointError."""
    try:
        container, _ = reference.open()
        yield Checkpoint(container, weights, reference.origin)
    finally:
        reference.release()


def read_weights(source: str | Path, model: torch.nn.Module, trust_pickle: bool = False) -> Weights:
    """All tensors of a checkpoint under the names of the model's state dict, on the CPU, as stored.

    Raises RequestError where the source is not one checkpoint, CheckpointError where it cannot be read, and
    RequestError that lists every name and shape in which it differs from the model.
    """
    with opened(the_only(source, trust_pickle)) as checkpoint:
        return dict(StoredWeights(checkpoint.load, names_in(checkpoint, model)))


def the_only(source: str | Path, trust_pickle: bool = False) -> Reference:
    """The checkpoint that a source is. Raises RequestError where it holds several."""
    found = find_checkpoints([source], trust_pickle=trust_pickle).references
    if len(found) != 1:
        steps = listed([reference.step for reference in found], 6)
        raise RequestError(f"{source} holds {len(found)} checkpoints, steps {steps}: name one of them")
    return found[0]


def names_in(checkpoint: Checkpoint, model: torch.nn.Module) -> dict[str, str]:
    """The checkpoint's name for each name of the model's state dict.

    They differ for tied tensors that are stored once. Raises RequestError that lists every name and shape in which the
    checkpoint differs from the model.
    """
    stored = {name: info for name, info in checkpoint.tensors.items() if is_stored(info)}
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    # Masks and rotary tables that a model of today makes for itself are in files of yesterday.
    there = {name: info.shape for name, info in stored.items() if name in expected or constant_kind(info) is None}
    aliases = _aliases(model, expected, there)
    own = {name: shape for name, shape in expected.items() if name not in aliases}
    _require_same(str(checkpoint.path), there, own)
    return {name: aliases.get(name, name) for name in expected}


def is_stored(info: TensorInfo) -> bool:
    """Whether a tensor is of the model, and stored as it is listed."""
    return info.made_of is None and (info.kind == "part" or (info.kind == "parameter" and info.problem is None))


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


def require_alike(labels: Sequence[str], weights: Sequence[Weights]) -> None:
    """Raises RequestError that lists every name and shape in which a checkpoint differs from the first one."""
    first = {name: tuple(tensor.shape) for name, tensor in weights[0].items()}
    for label, one in zip(labels[1:], weights[1:], strict=True):
        _require_same(label, {name: tuple(tensor.shape) for name, tensor in one.items()}, first, labels[0])


def put(weights: Weights, model: torch.nn.Module) -> None:
    """Copy weights into a model, in the model's own types."""
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            tensor.copy_(weights[name])


def _shape(sizes: tuple[int, ...]) -> str:
    return "x".join(map(str, sizes)) or "a single number"
