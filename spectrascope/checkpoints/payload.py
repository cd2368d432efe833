"""What a training checkpoint holds: the state dict of the model, averages of it, and the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from os import PathLike
from typing import Any

import numpy as np
import torch

from ..errors import CheckpointError
from ..tensors import TensorInfo
from ..words import listed
from .averages import average_of, is_average
from .steps import as_step
from .training_state import is_moment, is_training_state

MODEL_KEYS = (
    "state_dict",
    "model_state_dict",
    "model_state",
    "model",
    "module",
    "net",
    "network",
    "weights",
    "params",
)
# Lightning's WeightAveraging saves the average as `state_dict`, and the live weights under this key.
LIVE_BESIDE_AVERAGE = "current_model_state"
# Real checkpoints nest a few dicts; a pickle can nest more than there is time for.
MOST_DICTS, DEEPEST = 5_000, 100


@dataclass
class Payload:
    """Tensors of the model by name; those of an average, named `ema.NAME`; and why the rest is left out, by key."""

    tensors: dict[str, Any] = field(default_factory=dict)
    averages: dict[str, Any] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    @cached_property
    def all(self) -> dict[str, Any]:
        """The tensors of the model and of averages, once all are found."""
        return self.tensors | self.averages


def find_state_dict(payload: Any, path: str | PathLike[str]) -> Payload:
    """The tensors of the model in what a checkpoint file holds, its average, and what else there is.

    A dict under one of the usual keys (`state_dict`, `model`, ...) is the model; else the tensors of `payload`
    itself and of the dicts in it are, less those of optimizers, schedulers and averages. A lone dict inside gives
    no prefix to its names, several give their keys. Plain values, such as an epoch, are not mentioned.

    Raises CheckpointError where there is no tensor.
    """
    if not isinstance(payload, Mapping):
        raise CheckpointError(path, f"holds a {type(payload).__name__}, not a state dict; save model.state_dict()")
    search = _Search(path)
    if isinstance(payload.get(LIVE_BESIDE_AVERAGE), Mapping):
        payload = {**payload, "state_dict": payload[LIVE_BESIDE_AVERAGE], "ema": payload.get("state_dict")}
        del payload[LIVE_BESIDE_AVERAGE]
    search.found.tensors = search.tensors_of(payload)
    if not search.found.all:
        raise CheckpointError(path, f"holds no tensors of a model (its keys: {listed(payload, 6) or 'none'})")
    return search.found


def step_in(payload: Any) -> int | None:
    """The training step that a checkpoint's payload names under `global_step` or `step`."""
    if not isinstance(payload, Mapping):
        return None
    for key in ("global_step", "step"):
        value = payload.get(key)
        if isinstance(value, np.generic) or (isinstance(value, torch.Tensor) and value.numel() == 1):
            value = value.item()
        if (step := as_step(value)) is not None:
            return step
    return None


class _Search:
    """The way through the dicts of one payload."""

    def __init__(self, path: str | PathLike[str], outer: _Search | None = None) -> None:
        self.found = Payload()
        self._path = path
        self._visits: list[str] = outer._visits if outer else []
        self._holding: dict[int, bool] = outer._holding if outer else {}
        self._averages: set[int] = set()

    def tensors_of(self, payload: Mapping[Any, Any], prefix: str = "", is_inside: bool = False) -> dict[str, Any]:
        """The model's tensors in a dict and in those inside it; averages and what is left out are noted.

        `is_inside` tells that the dict is a model's, whose layers may have any name.
        """
        self._visits.append(prefix)
        if len(self._visits) > MOST_DICTS or prefix.count(".") > DEEPEST:
            raise CheckpointError(self._path, "nests dicts without end; it is no checkpoint that a trainer wrote")
        averages = [key for key, value in payload.items() if _is_average(key, value) and self._holds(value)]
        averages = [] if is_inside else averages
        for key in averages:
            self._note_average(payload[key], f"{prefix}{key}.", f"{average_of(key)}." if len(averages) > 1 else "")
        for key in MODEL_KEYS:
            value = payload.get(key)
            if not isinstance(value, Mapping) or not self._holds(value) or is_inside:
                continue
            if found := self.tensors_of(value, f"{prefix}{key}.", _is_state_dict(value)):
                others = {name: other for name, other in payload.items() if name != key}
                self._leave_out(others, prefix, f"beside the model, which is under {prefix}{key}")
                return found
        inner: dict[str, dict[str, Any]] = {}
        for key, value in payload.items():
            is_inner = isinstance(key, str) and isinstance(value, Mapping) and (is_inside or not _is_beside(key))
            if is_inner and self._holds(value) and (found := self.tensors_of(value, f"{prefix}{key}.", is_inside)):
                inner[key] = found
        mine = {key: value for key, value in payload.items() if _is_of_the_model(key, value, beside_models=bool(inner))}
        others = {key: value for key, value in payload.items() if key not in mine and key not in inner}
        self._leave_out(others, prefix, "not of the model: training state, or under no name")
        if not mine and len(inner) == 1 and not is_inside:
            return next(iter(inner.values()))
        for key, found in inner.items():
            for name, tensor in found.items():
                if mine.setdefault(f"{key}.{name}", tensor) is not tensor:
                    raise CheckpointError(self._path, f"holds two tensors of one name, {prefix}{key}.{name}")
        return mine

    def _note_average(self, payload: Mapping[Any, Any], prefix: str, model: str) -> None:
        """ema-pytorch keeps the average as `ema_model.*`, beside the live model once more.

        `model` tells the averages of several models apart.
        """
        inside = _Search(self._path, self)
        tensors = inside.tensors_of(payload, prefix)
        own = {name: one for name, one in tensors.items() if "." in name and is_average(name.partition(".")[0])}
        tensors = {name.partition(".")[2]: tensor for name, tensor in own.items()} or tensors
        tensors = {name.removeprefix("ema."): one for name, one in inside.found.averages.items()} or tensors
        if tensors:
            self._averages.add(id(payload))
        self.found.averages |= {f"ema.{model}{name}": tensor for name, tensor in tensors.items()}

    def _leave_out(self, payload: Mapping[Any, Any], prefix: str, reason: str) -> None:
        for key, value in payload.items():
            if self._holds(value) and id(value) not in self._averages:
                self.found.left_out[f"{prefix}{key}"] = reason

    def _holds(self, value: Any) -> bool:
        """Whether there is a tensor in it, however deep. Each container is looked into once."""
        if isinstance(value, (torch.Tensor, np.ndarray)):
            return value.ndim > 0
        if not isinstance(value, (Mapping, list, tuple)):
            return False
        if id(value) not in self._holding:
            self._holding[id(value)] = False  # it may hold itself
            values = value.values() if isinstance(value, Mapping) else value
            self._holding[id(value)] = any(map(self._holds, values))
        return self._holding[id(value)]


def _is_of_the_model(key: Any, value: Any, beside_models: bool) -> bool:
    """Whether an entry is a tensor of the model; beside whole models, a number or `rng_state` is none."""
    if not isinstance(key, str) or not isinstance(value, (torch.Tensor, np.ndarray)) or is_moment(key):
        return False
    return not (beside_models and "." not in key and (value.ndim == 0 or _is_beside(key)))


def _is_state_dict(payload: Mapping[Any, Any]) -> bool:
    """Whether a dict is a model's own: no whole model is in it, or not beside training state alone."""
    models = [key for key in MODEL_KEYS if isinstance(payload.get(key), Mapping)]
    layers = [key for key, value in payload.items() if isinstance(value, (Mapping, torch.Tensor)) and key not in models]
    return not models or any(isinstance(key, str) and not _is_beside(key) for key in layers)


def _is_average(key: Any, value: Any) -> bool:
    return isinstance(key, str) and is_average(key) and isinstance(value, Mapping)


def _is_beside(key: str) -> bool:
    """Whether a key is that of training state or of an average."""
    return is_average(key) or is_training_state(key)


def describe_tensor(name: str, tensor: torch.Tensor) -> TensorInfo:
    """What a tensor in memory, or mapped into it, is; views of the same memory have the same `storage`."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    shape = tuple(tensor.shape)
    if tensor.is_meta:
        return TensorInfo(
            name, shape, dtype, problem="a meta tensor: the file holds its shape, not its values", is_meta=True
        )
    if not type(tensor).__module__.startswith(("torch.nn", "torch._tensor")) and type(tensor) is not torch.Tensor:
        problem = f"a {type(tensor).__name__}, not a plain tensor; gather or convert it before it is saved"
        return TensorInfo(name, shape, dtype, problem=problem, kind="refused")
    if tensor.is_quantized:
        problem = "quantised by torch; save tensor.dequantize()"
        return TensorInfo(name, shape, dtype, problem=problem, kind="refused")
    if tensor.layout != torch.strided:
        layout = str(tensor.layout).removeprefix("torch.")
        problem = f"stored as {layout}, which is not read; save tensor.to_dense()"
        return TensorInfo(name, shape, dtype, problem=problem, kind="refused")
    stored = tensor.untyped_storage().nbytes() // tensor.element_size()
    if tensor.numel() > stored:
        problem = f"an expanded view: {stored:,} stored numbers stand for {tensor.numel():,}"
        return TensorInfo(name, shape, dtype, problem=problem)
    view = (tensor.untyped_storage().data_ptr(), tensor.storage_offset(), shape, tensor.stride(), dtype)
    return TensorInfo(name, shape, dtype, storage=view if tensor.numel() else None)


def describe_payload(
    found: Payload, describe: Callable[[str, torch.Tensor], TensorInfo] = describe_tensor
) -> list[TensorInfo]:
    """All that a payload holds: the model's tensors, those of averages, and what is left out, to be listed."""
    model = [describe(name, tensor) for name, tensor in found.tensors.items()]
    averages = [
        replace(describe(name, tensor), kind="average")
        for name, tensor in found.averages.items()
        if name not in found.tensors
    ]
    left_out = [
        TensorInfo(key, (), "-", problem=reason, kind="other")
        for key, reason in found.left_out.items()
        if key not in found.all
    ]
    return model + averages + left_out
