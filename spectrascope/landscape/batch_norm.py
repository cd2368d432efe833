"""The running statistics of batch norm, estimated anew: those of mixed or pruned weights are not mixed statistics."""

from __future__ import annotations

from typing import Any

import torch

from .task import Task

BatchNorm = torch.nn.modules.batchnorm._BatchNorm


def has_batch_norm(model: torch.nn.Module) -> bool:
    """Whether a model keeps running statistics. Layer norm and group norm do not."""
    return any(_has_statistics(module) for module in model.modules())


def recalibrate(model: torch.nn.Module, task: Task) -> None:
    """Replace running statistics by their cumulative average over all calibration batches; nothing else changes.

    Only batch norm is in training mode meanwhile, so that dropout draws nothing. Does nothing for a model without batch
    norm. Raises TaskError where the task has no batches.
    """
    layers = [module for module in model.modules() if _has_statistics(module)]
    if not layers:
        return
    before = [(layer.momentum, layer.training, layer.num_batches_tracked.clone()) for layer in layers]
    model.eval()
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # the cumulative average
        layer.train()
    try:
        device = next(model.parameters()).device
        with torch.no_grad():
            for batch in task.batches():
                model(_inputs(batch, device))
    finally:
        for layer, (momentum, training, count) in zip(layers, before, strict=True):
            layer.momentum = momentum
            layer.train(training)
            layer.num_batches_tracked.copy_(count)


def _has_statistics(module: torch.nn.Module) -> bool:
    return isinstance(module, BatchNorm) and module.track_running_stats and module.running_mean is not None


def _inputs(batch: Any, device: torch.device) -> Any:
    """The inputs of a batch, which may be (inputs, labels)."""
    inputs = batch[0] if isinstance(batch, (tuple, list)) else batch
    return inputs.to(device) if isinstance(inputs, torch.Tensor) else inputs
