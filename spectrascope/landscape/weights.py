"""Checkpoints as the weights of a model: the same names and shapes, nothing broadcast, nothing left out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch

from ..arrays import Array, to_torch
from ..checkpoints import Checkpoint, Reference, find_checkpoints
from ..errors import RequestError
from ..skipping import constant_kind
from ..words import first_of, listed

Weights = Mapping[str, torch.Tensor]


class Computed(Weights):
    """Weights that are computed one by one as they are asked for, and not kept: memory is that of one tensor."""

    def __init__(self, names: Iterable[str], compute: Callable[[str], torch.Tensor]) -> None:
        self._names = dict.fromkeys(names)
        self._compute = compute

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._compute(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def stored_weights(load: Callable[[str], Array], names: Mapping[str, str]) -> Weights:
    """Weights under the names of a model's state dict, for each of which `names` gives the name that `load` reads."""
    return Computed(names, lambda name: to_torch(load(names[name])))


@contextmanager
def opened(reference: Reference, weights: str = "auto") -> Iterator[Checkpoint]:
    """A checkpoint, for as long as it is read. Raises CheckpointError."""
    try:
        container, _ = reference.open()
        yield Checkpoint(container, weights, reference.origin)
    finally:
        reference.release()


@contextmanager
def weights_at(source: str | Path, model: torch.nn.Module, trust_pickle: bool = False) -> Iterator[Weights]:
    """The weights of a checkpoint under the names of the model's state dict, read tensor by tensor while this is open.

    Raises RequestError where the source is not one checkpoint, CheckpointError where it cannot be read, and
    RequestError that lists every name and shape in which it differs from the model.
    """
    with opened(the_only(source, trust_pickle)) as checkpoint:
        yield stored_weights(checkpoint.load_stored, names_in(checkpoint, model))


@contextmanager
def weights_of(
    sources: Sequence[str | Path], model: torch.nn.Module, trust_pickle: bool = False
) -> Iterator[list[Weights]]:
    """Those of several checkpoints. Raises as `weights_at`."""
    with ExitStack() as stack:
        yield [stack.enter_context(weights_at(source, model, trust_pickle)) for source in sources]


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
    state = tensors_of(model)
    expected = {name: tuple(tensor.shape) for name, tensor in state.items()}
    stored = {name: info for name, info in checkpoint.stored.items() if info.problem is None}
    # Masks and rotary tables that a model of today makes for itself are in files of yesterday.
    there = {name: info.shape for name, info in stored.items() if name in expected or constant_kind(info) is None}
    aliases: dict[str, str] = {}
    for names in same_memory(model):
        first = next((name for name in names if name in there), None)
        if first is not None:
            aliases |= {name: first for name in names if name not in there}
    own = {name: shape for name, shape in expected.items() if name not in aliases}
    _require_same(str(checkpoint.path), there, own)
    return {name: aliases.get(name, name) for name in expected}


def tensors_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The state dict of a model without what is no tensor, as some modules keep beside their weights."""
    return {name: one for name, one in model.state_dict().items() if isinstance(one, torch.Tensor)}


def same_memory(model: torch.nn.Module) -> list[list[str]]:
    """The names of a model's tensors, those of tied ones together, in the order of the state dict."""
    groups: dict[object, list[str]] = {}
    for name, tensor in tensors_of(model).items():
        key = (tensor.data_ptr(), tuple(tensor.shape)) if tensor.numel() else name
        groups.setdefault(key, []).append(name)
    return list(groups.values())


def _require_same(label: str, there: Mapping[str, tuple[int, ...]], expected: Mapping[str, tuple[int, ...]]) -> None:
    """Raises RequestError that names all differences at once."""
    differences = [
        f"{name} is {_shape(there[name])} there and {_shape(shape)} in the model"
        for name, shape in expected.items()
        if name in there and there[name] != shape
    ]
    differences += [f"{name} is only in the model" for name in expected if name not in there]
    differences += [f"{name} is only there" for name in there if name not in expected]
    if differences:
        raise RequestError(f"{label} does not fit the model: {first_of(differences)}")


def put(weights: Weights, model: torch.nn.Module) -> None:
    """Copy weights into a model, in the model's own types."""
    with torch.no_grad():
        for name, tensor in tensors_of(model).items():
            tensor.copy_(weights[name])


def _shape(sizes: tuple[int, ...]) -> str:
    return "x".join(map(str, sizes)) or "a single number"
