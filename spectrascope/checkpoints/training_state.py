"""What trainers keep beside the weights, known by its name: optimizers, schedulers, random states."""

from __future__ import annotations

import re

NOT_THE_MODEL = re.compile(
    r"(?:^|_)(?:optim\w*|lr|sched\w*|\w*scaler|scaling|rng|random|loops|callbacks|hparams)(?:_|$)",
    re.IGNORECASE,
)
MOMENTS = re.compile(r"(?:^|[./])(?:exp_avg|exp_avg_sq|max_exp_avg_sq|momentum_buffer)(?:[./]|$)")
# The first part of a flat name.
OPTIMIZER = re.compile(r"(?:optimizers?|optim|opt|opt_state|optimizer_states?)(?:_\d+)?[./]", re.IGNORECASE)


def is_training_state(key: str) -> bool:
    """Whether a key beside a model is that of anything but a model."""
    return NOT_THE_MODEL.search(key) is not None


def is_moment(name: str) -> bool:
    """Whether a tensor is an optimizer's, by its own name."""
    return MOMENTS.search(name) is not None or OPTIMIZER.match(name) is not None
