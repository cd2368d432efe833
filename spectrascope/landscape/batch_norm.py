"""The running statistics of batch norm, estimated anew: those of mixed or pruned weights are not mixed statistics."""

from __future__ import annotations

from itertools import chain
from typing import Any

import torch

from .task import Task

BatchNorm = torch.nn.modules.batchnorm._BatchNorm


def has_batch_norm(model: torch.nn.Module) -> bool:
    """Whether a model keeps running statistics. Layer norm and group norm do not."""
    return any(has_statistics(module) for module in model.modules())


def recalibrate(model: torch.nn.Module, task: Task) -> None:
    """Replace running statistics by their cumulative average over all calibration batches; nothing else changes.

    Only batch norm is in training mode meanwhile, so that dropout draws nothing. Does nothing for a model without batch
    norm. Raises TaskError where the task gives no batch, or one that the model does not take.
    """
    layers = [module for module in model.modules() if has_statistics(module)]
    if not layers:
        return
    before = [(layer.momentum, layer.training, layer.num_batches_tracked.clone()) for layer in layers]
    model.eval()
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # the cumulative average
        layer.train()
    try:
        device = next((one.device for one in chain(model.parameters(), model.buffers())), torch.device("cpu"))
        with torch.no_grad():
            task.feed(model, lambda batch: _inputs(batch, device))
    finally:
        for layer, (momentum, training, count) in zip(layers, before, strict=True):
            layer.momentum = momentum
            layer.train(training)
            layer.num_batches_tracked.copy_(count)


def has_statistics(module: torch.nn.Module) -> bool:
    """Whether a layer is batch norm that keeps running statistics."""
    return isinstance(module, BatchNorm) and module.track_running_stats and module.running_mean is not None


def _inputs(batch: Any, device: torch.device) -> Any:
    """The inputs of a batch, which may be (inputs, labels)."""
    inputs = batch[0] if isinstance(batch, (tuple, list)) and batch else batch
    return inputs.to(device) if isinstance(inputs, torch.Tensor) else inputs
