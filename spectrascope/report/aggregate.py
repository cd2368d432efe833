"""Rows of several trajectories, such as the seeds of one experiment, as their mean and standard deviation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .rows import Row

# What says which rows belong together, and has to agree among them.
DIFFERENT = {
    "shape": "its shape is not the same in all stores",
    "baseline": "its width is not the same in all stores",
}
AGREEING = ("shape", "dtype", "kind", "reference", "baseline", "guessed")


def aggregate(stores: Sequence[Sequence[Row]], numbers: Sequence[str], name: str = "matrix") -> list[Row]:
    """One row per step and matrix (or what else is in column `name`), in the order of their first appearance.

    Each of `numbers` is the mean over the stores that have it, NUMBER_std their standard deviation (n - 1; None for
    one), `seeds` how many there are. A diagonal is averaged place by place. A row says in `reason` where a store lacks
    it, or where shapes differ, for which there is no mean.
    """
    groups: dict[tuple[int, str], list[Row]] = {}
    for rows in stores:
        for row in rows:
            groups.setdefault((row["step"], row[name]), []).append(row)
    order = sorted(groups, key=lambda key: key[0])  # stable: matrices stay in the model's order
    return [_together(groups[key], numbers, len(stores), name) for key in order]


def columns_of(numbers: Sequence[str]) -> list[str]:
    """The columns that aggregated numbers come in."""
    return [column for number in numbers for column in (number, f"{number}_std")]


def _together(rows: list[Row], numbers: Sequence[str], stores: int, name: str) -> Row:
    first = rows[0]
    row: Row = {"step": first["step"], name: first[name]}
    present = [one for one in rows if one[numbers[0]] is not None] or rows
    differing = [key for key in AGREEING if any(one.get(key) != present[0].get(key) for one in present)]
    row |= {key: None if key in differing else present[0][key] for key in AGREEING if key in first}
    differ = next((words for key, words in DIFFERENT.items() if key in differing), None)
    usable = [] if differ else [one for one in rows if one[numbers[0]] is not None]
    row["seeds"] = len(usable)
    for number in numbers:
        values = [one[number] for one in usable if one[number] is not None]
        row[number] = float(np.mean(values)) if values else None
        row[f"{number}_std"] = float(np.std(values, ddof=1)) if len(values) > 1 else None
    if any(one.get("diagonal") for one in usable):
        row["diagonal"] = _mean_diagonal([one["diagonal"] for one in usable if one["diagonal"]])
    return row | {"reason": _reason(rows, usable, stores, differ)}


def _reason(rows: list[Row], usable: list[Row], stores: int, differ: str | None) -> str | None:
    if differ:
        return differ
    if len(usable) < stores:
        why = next((one["reason"] for one in rows if one["reason"]), "not there in the others")
        return f"in {len(usable)} of {stores} stores: {why}"
    return next((one["reason"] for one in rows if one["reason"]), None)


def _mean_diagonal(diagonals: list[list[Any]]) -> list[float | None]:
    length = max(map(len, diagonals))
    table = np.array([[*map(_number, one), *[np.nan] * (length - len(one))] for one in diagonals])
    present = ~np.isnan(table)
    sums = np.where(present, table, 0.0).sum(axis=0)
    counts = present.sum(axis=0)
    return [float(total / count) if count else None for total, count in zip(sums, counts, strict=True)]


def _number(value: float | None) -> float:
    return np.nan if value is None else value
