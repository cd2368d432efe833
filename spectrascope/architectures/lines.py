"""Whether names say that layers stand in one line: `0, 2, 4`, `layers.0, layers.1`, `fc1, fc2, out`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby, pairwise

NUMBER = re.compile(r"\d+")
# What the first and the last layer of a line may be called beside those that are numbered.
FIRST = re.compile(r"(?:.*\.)?(?:input|in|first|fc_in|in_proj|input_layer|stem)$", re.IGNORECASE)
LAST = re.compile(
    r"(?:.*\.)?(?:out|output|head|fc|classifier|linear|last|final|fc_out|out_proj|logits|output_layer|unembed|lm_head)$",
    re.IGNORECASE,
)
MEMBER = re.compile(r"(?:.*\.)?[a-z_]*\d+(?:\.(?:linear|lin|fc|dense|layer|conv|0))?$", re.IGNORECASE)


def is_member(name: str) -> bool:
    """Whether a name is that of a layer of a line itself, and not of one among others in a numbered block."""
    return any(pattern.match(name) for pattern in (MEMBER, FIRST, LAST))


def in_one_line(names: Sequence[str]) -> bool:
    """Numbered in ascending order under one name, with a first and a last layer of a name of their own.

    A number that is a part of its own, as in nn.Sequential, may leave some out; one at the end of a word may not:
    `fc1, fc21, fc22` are branches.
    """
    names = list(names)
    if len(names) > 1 and FIRST.match(names[0]):
        names = names[1:]
    if len(names) > 1 and LAST.match(names[-1]) and not NUMBER.search(names[-1]):
        names = names[:-1]
    kinds = [kind for kind, _ in groupby(NUMBER.sub("*", name) for name in names)]
    if len(kinds) != 1 or kinds[0].count("*") > 1:
        return False
    if len(names) == 1:
        return True
    numbers = [int(NUMBER.findall(name)[0]) for name in names] if "*" in kinds[0] else []
    is_part = "*" in kinds[0].split(".")
    return bool(numbers) and all(one < other and (is_part or other == one + 1) for one, other in pairwise(numbers))
