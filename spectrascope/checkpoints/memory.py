"""A state dict that is already in memory, for the Python API."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..arrays import Array, from_torch, to_torch
from ..errors import CheckpointError
from ..tensors import TensorInfo
from .payload import Payload, describe_payload, find_state_dict


class StateDict:
    """A mapping of names to tensors or NumPy arrays, in the model's order.

    Raises CheckpointError for what is no such mapping, or an array of a type that torch does not know.
    """

    ordered = True

    def __init__(self, state_dict: Mapping[str, Any], label: str) -> None:
        self.path = Path(label)
        found = find_state_dict(state_dict, label)
        self._found = Payload(
            {name: self._tensor(name, value) for name, value in found.tensors.items()},
            {name: self._tensor(name, value) for name, value in found.averages.items()},
            found.left_out,
        )

    def tensors(self) -> list[TensorInfo]:
        return describe_payload(self._found)

    def load(self, name: str, index: int | None = None) -> Array:
        tensor: torch.Tensor = self._found.all[name]
        return from_torch(tensor if index is None else tensor[index])

    def step(self) -> int | None:
        return None

    def files(self) -> list[Path]:
        return []

    def _tensor(self, name: str, value: Any) -> torch.Tensor:
        if isinstance(value, torch.Tensor):
            return value.detach()
        try:
            return to_torch(np.ascontiguousarray(value.astype(value.dtype.newbyteorder("="), copy=False)))
        except TypeError as error:
            raise CheckpointError(self.path, f"{name} is an array of {value.dtype}, which is no weight") from error
