"""Checkpoints of runs that were split from common trunks, in groups (thesis 4.9.3; Figures 4.8, 4.14 and 4.15)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from glob import glob
from os.path import exists

from ..errors import RequestError
from ..tensors import natural_key

# The part of a path that says when a run was split from its trunk.
GROUP = r"split-[^/]*"


@dataclass
class Group:
    """Checkpoints that are compared with each other, in the order of their names."""

    name: str
    paths: list[str] = field(default_factory=list)


def group_branches(patterns: Sequence[str], group: str = GROUP) -> tuple[list[Group], list[str]]:
    """The files and directories that fit a glob, by what a regular expression finds in their paths.

    Groups are in natural order of their names, which are what was found: its groups, where the expression has some.
    Beside them come the checkpoints that are alone in theirs, and left out. Raises RequestError where nothing fits, a
    path has no group, or there is no pair.
    """
    try:
        expression = re.compile(group)
    except re.error as error:
        raise RequestError(f"--group {group!r} is no regular expression ({error})") from error
    found = {path for pattern in patterns for path in ([pattern] if exists(pattern) else glob(pattern, recursive=True))}
    paths = sorted(sorted(found), key=natural_key)
    if not paths:
        raise RequestError(
            f"--branches {' '.join(patterns)}: nothing fits; quote it, so that the shell leaves it alone"
        )
    groups: dict[str, Group] = {}
    for path in paths:
        match = expression.search(path)
        if match is None:
            raise RequestError(f"--group {group!r} finds nothing in {path}")
        name = " ".join(filter(None, match.groups())) or match[0]
        groups.setdefault(name, Group(name)).paths.append(path)
    alone = [one.paths[0] for one in groups.values() if len(one.paths) < 2]
    pairs = [one for one in groups.values() if len(one.paths) > 1]
    if not pairs:
        raise RequestError(f"--group {group!r} finds something else in each of {len(paths)} paths: there is no pair")
    return sorted(pairs, key=lambda one: natural_key(one.name)), alone
