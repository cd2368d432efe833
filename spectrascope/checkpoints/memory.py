"""A state dict that is already in memory, for the Python API."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ..matrices import TensorInfo
from .container import describe_tensor
from .names import find_state_dict


class StateDict:
    """A mapping of names to tensors or NumPy arrays, in the model's order."""

    ordered = True

    def __init__(self, state_dict: Mapping[str, Any], label: str) -> None:
        self.path = Path(label)
        self._tensors = {
            name: torch.as_tensor(value).detach() for name, value in find_state_dict(state_dict, label).items()
        }

    def tensors(self) -> list[TensorInfo]:
        return [describe_tensor(name, tensor) for name, tensor in self._tensors.items()]

    def load(self, name: str) -> torch.Tensor:
        return self._tensors[name].cpu()

    def step(self) -> int | None:
        return None

    def files(self) -> list[Path]:
        return []
