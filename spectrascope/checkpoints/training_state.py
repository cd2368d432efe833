"""What trainers keep beside the weights, known by its name: optimizers, schedulers, random states."""

from __future__ import annotations

import re

NOT_THE_MODEL = re.compile(
    r"(?:^|_)(?:optim\w*|sched\w*|\w*scaler|scaling|rng|loops|callbacks|hparams)(?:_|$)|^lr$|^random(?:_states?)?$",
    re.IGNORECASE,
)
MOMENTS = re.compile(r"(?:^|[./])(?:exp_avg|exp_avg_sq|max_exp_avg_sq|momentum_buffer)(?:[./]|$)")
# What flat names of optimizers begin with; `opt.` alone may be a model.
OPTIMIZER = re.compile(
    r"(?:optimizers?|optim|opt_state|optimizer_states?)(?:_\d+)?[./]|opt[./](?:state|mu|nu|count|param_groups|\d+)[./]"
    r"|(?:mu|nu)/|(?:.*/)?(?:opt_state|param_states)/",
    re.IGNORECASE,
)


def is_training_state(key: str) -> bool:
    """Whether a key beside a model is that of anything but a model."""
    return NOT_THE_MODEL.search(key) is not None


def is_moment(name: str) -> bool:
    """Whether a tensor is an optimizer's, by its own name."""
    return MOMENTS.search(name) is not None


def is_of_an_optimizer(name: str) -> bool:
    """Whether a tensor of a file that has no levels is an optimizer's, by its whole name."""
    return is_moment(name) or OPTIMIZER.match(name) is not None
