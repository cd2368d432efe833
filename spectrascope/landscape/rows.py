"""The commands' work with a model: checkpoints in, rows out."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch

from ..errors import RequestError
from ..progress import Progress
from .batch_norm import has_batch_norm
from .hull import explore
from .interpolation import curve
from .task import Task, load_task
from .weights import Weights, read_weights, require_alike

Row = dict[str, Any]


def line_between(
    checkpoints: Sequence[str],
    task: str,
    points: int,
    recalibrated: bool,
    device: str,
    trust_pickle: bool,
    progress: Progress,
) -> list[Row]:
    """A row for each metric: its losses between two checkpoints, and their barrier. Raises RequestError, TaskError."""
    found, model = _ready(task, device)
    one, other = (read_weights(source, model, trust_pickle) for source in checkpoints)
    require_alike(list(checkpoints), [one, other])
    losses = curve(
        found, model, one, other, points, recalibrated, lambda done, total: progress.update(done, total, None)
    )
    return [losses.row(metric) | _label(model, recalibrated) for metric in losses.losses]


def hull_of(
    checkpoints: Sequence[str],
    task: str,
    samples: int,
    seed: int,
    recalibrated: bool,
    device: str,
    trust_pickle: bool,
    progress: Progress,
) -> list[Row]:
    """A row for each metric of the hull of several checkpoints. Raises RequestError, TaskError."""
    found, model = _ready(task, device)

    @lru_cache(maxsize=2)
    def read(place: int) -> Weights:
        return read_weights(checkpoints[place], model, trust_pickle)

    for place in range(len(checkpoints)):
        read(place)  # all differences are named before any loss is computed
    result = explore(
        found,
        model,
        read,
        len(checkpoints),
        samples,
        seed,
        recalibrated,
        lambda done, total: progress.update(done, total, None),
    )
    return [result.row(metric) | _label(model, recalibrated) for metric in result.inside]


def _ready(task: str, device: str) -> tuple[Task, torch.nn.Module]:
    """The task and its model on the device. Raises RequestError for a device that is not there."""
    found = load_task(task)
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise RequestError(f"--device {device} is not there; use --device cpu") from error
    return found, found.model(device)


def _label(model: torch.nn.Module, recalibrated: bool) -> Row:
    """Whether the statistics of batch norm were estimated anew; None where there are none."""
    return {"recalibrated": recalibrated if has_batch_norm(model) else None}
