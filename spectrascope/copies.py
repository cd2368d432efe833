"""Tensors that are the same bytes at several steps: defects of published trajectories, or frozen on purpose."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping


def describe_copies(hashes: Mapping[int, Mapping[str, str]], contents: Mapping[int, str] | None = None) -> list[str]:
    """One sentence for each set of checkpoints, and each tensor, that are copies of each other.

    Parameters
    ----------
    hashes : step -> matrix name -> hash of its bytes
    contents : step -> hash of its files

    Checkpoints whose matrices are all equal are named as a whole, and called copies where their files are. A matrix
    that did not change between some steps while others did is named with them; one that never changes is called
    frozen. One step alone says nothing.
    """
    if len(hashes) < 2:
        return []
    wholes = _steps_by_content({step: tuple(sorted(found.items())) for step, found in hashes.items() if found})
    sentences = [_describe_twins(steps, contents or {}) for steps in wholes if len(steps) > 1]
    # Of identical checkpoints, the first stands for all: what they share says nothing about single tensors.
    distinct = {steps[0]: hashes[steps[0]] for steps in wholes}
    return sentences + _describe_tensors(distinct)


def _describe_twins(steps: list[int], contents: Mapping[int, str]) -> str:
    if len({contents.get(step) for step in steps} - {None}) == 1:
        return f"steps {_listed(steps)} hold identical content: they are copies of one checkpoint"
    return f"steps {_listed(steps)} hold identical matrices: every one that was analysed is the same"


def _describe_tensors(hashes: Mapping[int, Mapping[str, str]]) -> list[str]:
    names = dict.fromkeys(name for found in hashes.values() for name in found)
    frozen, stale = [], []
    for name in names:
        present = {step: found[name] for step, found in hashes.items() if name in found}
        for steps in _steps_by_content(present):
            if len(steps) == len(hashes) > 1:
                frozen.append(f"{name} is frozen: the same at every step")
            elif len(steps) > 1:
                stale.append(f"{name} is the same at steps {_listed(steps)} while other matrices changed")
    return stale + frozen


def _steps_by_content(content: Mapping[int, object]) -> list[list[int]]:
    groups: defaultdict[object, list[int]] = defaultdict(list)
    for step, value in content.items():
        groups[value].append(step)
    return list(groups.values())


def _listed(steps: list[int]) -> str:
    return ", ".join(map(str, steps[:-1])) + f" and {steps[-1]}"
