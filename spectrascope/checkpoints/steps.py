"""The step of a checkpoint, from its name."""

from __future__ import annotations

import re
from typing import Any

from ..errors import RequestError

LARGEST_STEP = 2**63 - 1
# In this order: a name with both an epoch and a step means the step.
STEP_WORDS = [
    re.compile(word + r"[-_=. ]?(\d+)", re.IGNORECASE)
    for word in ("steps?", "(?:checkpoint|ckpt)", "iter(?:ation)?", "epoch")
]


def step_in_name(name: str, pattern: re.Pattern[str] | None = None) -> int | None:
    """The step that a file or directory name states, None if it states none.

    With `pattern` (--step-regex): its group `step`, else its first group. A name that is only a number is a step.
    """
    if pattern is not None:
        found = pattern.search(name)
        if not found:
            return None
        text = found.groupdict().get("step") or (found.group(1) if pattern.groups else found.group())
        if not text or not text.isdecimal():
            raise RequestError(
                f"--step-regex finds {text!r} in {name!r}, which is not a number; put it in a group (\\d+)"
            )
        return _step(text)
    for word in STEP_WORDS:
        if numbers := word.findall(name):
            return _step(numbers[-1])
    stem = name.rsplit(".", 1)[0]
    return _step(stem) if stem.isdecimal() else None


def _step(digits: str) -> int | None:
    return int(digits) if int(digits) <= LARGEST_STEP else None


def compile_step_regex(text: str | None) -> re.Pattern[str] | None:
    """Raises RequestError where the regular expression is not one."""
    try:
        return re.compile(text) if text else None
    except re.error as error:
        raise RequestError(f"--step-regex {text!r} is not a regular expression: {error}") from error


def as_step(value: Any) -> int | None:
    """A value as a step, None where it is none: a whole number from 0 to 2^63 - 1."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST_STEP:
        return value
    return None
