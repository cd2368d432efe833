"""Which of the available steps a selection such as `log:20` means. Used for checkpoints and for stores."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from .errors import RequestError
from .words import listed

MOST_TARGETS = 10_000  # closer together than the steps of any trajectory


def select_steps(available: Sequence[int], wanted: str) -> list[int]:
    """The steps that `wanted` selects from those available, in order.

    `all`; `last`; `every:10` (each tenth available, from the first); `log:20` (the available steps nearest to a
    geometric sequence of 20 from the first positive to the last, and step 0); or a list of steps and ranges,
    `0,100,500-2000`.

    Raises RequestError for anything else, for a step that is not available, and where nothing is selected.
    """
    steps = sorted(available)
    if not steps or wanted == "all":
        return steps
    kind, colon, number = wanted.partition(":")
    if colon and kind in ("every", "log") and re.fullmatch(r"0*[1-9]\d{0,17}", number):
        return steps[:: int(number)] if kind == "every" else _logarithmic(steps, int(number))
    chosen: set[int] = set()
    for item in wanted.split(","):
        chosen.update(_item(steps, item.strip(), wanted))
    if not chosen:
        raise RequestError(f"no step is in {wanted}; there are {listed(steps, 12)}")
    return sorted(chosen)


def _item(steps: list[int], item: str, wanted: str) -> list[int]:
    if item == "last":
        return steps[-1:]
    if re.fullmatch(r"\d{1,19}", item):
        if int(item) not in steps:
            raise RequestError(f"there is no step {item}; there are {listed(steps, 12)}")
        return [int(item)]
    if found := re.fullmatch(r"(\d{1,19})[-:](\d{1,19})", item):
        return [step for step in steps if int(found[1]) <= step <= int(found[2])]
    raise RequestError(
        f"--steps {wanted!r} is none of: all, last, every:N, log:N, or steps and ranges such as 0,100,500-2000"
    )


def _logarithmic(steps: list[int], count: int) -> list[int]:
    positive = np.array([step for step in steps if step > 0], dtype=float)
    zero = {step for step in steps if step == 0}
    if positive.size == 0:
        return sorted(zero)
    count = min(count, MOST_TARGETS)
    targets = np.geomspace(positive[0], positive[-1], count) if count > 1 else positive[-1:]
    nearest = {int(positive[np.argmin(abs(positive - target))]) for target in targets}
    return sorted(nearest | zero)
