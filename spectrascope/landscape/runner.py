"""The user's model, ready to be given weights and asked for its losses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ..errors import RequestError
from .batch_norm import has_batch_norm, has_statistics, recalibrate
from .task import Task
from .weights import Weights, put, same_memory


@dataclass(frozen=True)
class Runner:
    """A task, and its model on a device. With `recalibrated`, batch norm is estimated anew for all weights it gets."""

    task: Task
    model: torch.nn.Module
    recalibrated: bool = True

    @property
    def order(self) -> list[str]:
        """The model's parameters, whose order decides which matrix is the last."""
        return [name for name, _ in self.model.named_parameters()]

    @property
    def places(self) -> dict[str, int]:
        """The place among the parameters of every name in the state dict that is one; tied names have one place."""
        places = {name: place for place, name in enumerate(self.order)}
        groups = [(names, next((places[name] for name in names if name in places), None)) for names in self.groups]
        return {name: place for names, place in groups if place is not None for name in names}

    @property
    def groups(self) -> list[list[str]]:
        """The names of the state dict, those of tied tensors together."""
        return same_memory(self.model)

    def statistics(self) -> dict[str, torch.Tensor]:
        """The running means and variances that the model has now, by their names; none where they are left alone."""
        layers = {name: layer for name, layer in self.model.named_modules() if has_statistics(layer)}
        return {
            f"{name}.{kind}".lstrip("."): getattr(layer, kind)
            for name, layer in layers.items()
            for kind in ("running_mean", "running_var")
            if self.recalibrated
        }

    @property
    def label(self) -> dict[str, Any]:
        """Whether the statistics of batch norm were estimated anew; None where there are none."""
        return {"recalibrated": self.recalibrated if has_batch_norm(self.model) else None}

    def losses(self, weights: Weights) -> dict[str, float]:
        """The losses of some weights. Raises TaskError."""
        put(weights, self.model)
        if self.recalibrated:
            recalibrate(self.model, self.task)
        return self.task.losses(self.model)


def runner_for(task: Task, device: str, recalibrated: bool) -> Runner:
    """The model of a task on a device. Raises RequestError for a device that is not there, and TaskError."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise RequestError(f"--device {device} is not there; use --device cpu") from error
    return Runner(task, task.model(device), recalibrated)
