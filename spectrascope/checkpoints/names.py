"""The model's own names: wrappers stripped, and the state dict found inside a training checkpoint."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from os import PathLike
from typing import Any

import numpy as np
import torch

from ..errors import CheckpointError
from ..words import listed
from .steps import LARGEST_STEP

# Names that only a wrapper gives: torch.compile, FSDP, activation checkpointing.
WRAPPERS = frozenset(["_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"])
# torch.optim.swa_utils.AveragedModel keeps its counter beside the wrapped module.
BESIDE_A_WRAPPED_MODULE = frozenset(["n_averaged"])

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
NOT_THE_MODEL = re.compile(
    r"(?:^|_)(?:optim\w*|lr|sched\w*|\w*scaler|scaling|ema|averaged?|rng|random|loops|callbacks|hparams)(?:_|$)",
    re.IGNORECASE,
)
MOMENTS = re.compile(r"(?:^|\.)(?:exp_avg|exp_avg_sq|max_exp_avg_sq|momentum_buffer)$")


def without_wrappers(names: Iterable[str]) -> dict[str, str]:
    """Map each stored name to its name in the bare model.

    `_orig_mod`, `_fsdp_wrapped_module` and `_checkpoint_wrapped_module` are always wrappers. `module` (DataParallel,
    DDP) is one where it is all that its parent holds; a layer called `module_list`, or a `module` that has
    siblings, keeps its name.
    """
    paths = {name: [part for part in name.split(".") if part not in WRAPPERS] for name in names}
    children: defaultdict[tuple[str, ...], set[str]] = defaultdict(set)
    for path in paths.values():
        for depth, part in enumerate(path):
            children[tuple(path[:depth])].add(part)

    def is_wrapper(path: list[str], depth: int) -> bool:
        siblings = children[tuple(path[:depth])] - BESIDE_A_WRAPPED_MODULE
        return path[depth] == "module" and siblings == {"module"} and depth + 1 < len(path)

    return {
        name: ".".join(part for depth, part in enumerate(path) if not is_wrapper(path, depth))
        for name, path in paths.items()
    }


def find_state_dict(payload: Any, path: str | PathLike[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """The tensors of the model in what a checkpoint file holds, and what else there is: its key -> why it is left out.

    A dict under one of the usual keys (`state_dict`, `model`, ...) is the model; else the tensors of `payload`
    itself and of the dicts in it are, less those of optimizers, schedulers and averages. A lone dict inside gives
    no prefix to its names, several give their keys. Plain values, such as an epoch, are not mentioned.

    Raises CheckpointError where there is no tensor.
    """
    if not isinstance(payload, Mapping):
        raise CheckpointError(path, f"holds a {type(payload).__name__}, not a state dict; save model.state_dict()")
    left_out: dict[str, str] = {}
    found = _tensors_of(payload, left_out)
    if not found:
        raise CheckpointError(path, f"holds no tensors of a model (its keys: {listed(payload, 6) or 'none'})")
    return found, left_out


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


def as_step(value: Any) -> int | None:
    """A value as a step, None where it is none: a whole number from 0 to 2^63 - 1."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST_STEP:
        return value
    return None


def _tensors_of(payload: Mapping[Any, Any], left_out: dict[str, str], prefix: str = "") -> dict[str, Any]:
    for key in MODEL_KEYS:
        if isinstance(payload.get(key), Mapping) and (found := _tensors_of(payload[key], left_out, f"{prefix}{key}.")):
            others = {name: value for name, value in payload.items() if name != key}
            left_out |= dict.fromkeys(_with_tensors(others, prefix), f"beside the model, which is under {prefix}{key}")
            return found
    inner: dict[str, dict[str, Any]] = {}
    for key, value in payload.items():
        is_inner = isinstance(key, str) and isinstance(value, Mapping) and not NOT_THE_MODEL.search(key)
        if is_inner and (found := _tensors_of(value, left_out, f"{prefix}{key}.")):
            inner[key] = found
    mine = {key: value for key, value in payload.items() if _is_of_the_model(key, value, beside_models=bool(inner))}
    others = {key: value for key, value in payload.items() if key not in mine and key not in inner}
    left_out |= dict.fromkeys(_with_tensors(others, prefix), "not of the model: training state, or under no name")
    if not mine and len(inner) == 1:
        return next(iter(inner.values()))
    return mine | {f"{key}.{name}": tensor for key, found in inner.items() for name, tensor in found.items()}


def _with_tensors(payload: Mapping[Any, Any], prefix: str) -> list[str]:
    """The keys under which there is a tensor, however deep."""
    return [f"{prefix}{key}" for key, value in payload.items() if _holds_tensor(value)]


def _holds_tensor(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_holds_tensor, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(_holds_tensor, value))
    return isinstance(value, (torch.Tensor, np.ndarray)) and value.ndim > 0


def _is_of_the_model(key: Any, value: Any, beside_models: bool) -> bool:
    """Whether an entry is a tensor of the model; beside whole models, a number or `rng_state` is none."""
    if not isinstance(key, str) or not isinstance(value, (torch.Tensor, np.ndarray)) or MOMENTS.search(key):
        return False
    return not (beside_models and "." not in key and (value.ndim == 0 or NOT_THE_MODEL.search(key)))
