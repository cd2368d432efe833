"""How a projection that holds queries, keys and values in one tensor lays them out along its rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .facts import Facts

NO_HEADS = "the number of heads is not known: no config.json tells it; analyse with --heads N"


@dataclass(frozen=True)
class Rows:
    """Of each of `groups` equal groups of rows, those from `start` to `stop`; (1, a, b) are the rows from a to b."""

    groups: int
    start: int
    stop: int

    @property
    def count(self) -> int:
        """How many rows that is."""
        return self.groups * (self.stop - self.start)


class LayoutUnknown(Exception):
    """The rows of queries, keys and values cannot be told, and why."""


Parts = dict[str, Rows]
# From the rows of the fused matrix, the columns of the output projection (None where there is none) and the facts.
# Raises LayoutUnknown.
Layout = Callable[[int, int | None, Facts], Parts]


def concatenated(rows: int, output: int | None, facts: Facts) -> Parts:
    """All queries, then all keys, then all values. The output projection reads as many numbers as there are queries."""
    if output is not None:
        queries = output
    elif facts.heads and facts.kv_heads:
        queries = rows * facts.heads // (facts.heads + 2 * facts.kv_heads)
    else:
        queries = rows // 3
    keys = (rows - queries) // 2
    if keys < 1 or queries + 2 * keys != rows:
        raise LayoutUnknown(f"{rows} rows are not {queries} queries and as many keys as values")
    return {"q": Rows(1, 0, queries), "k": Rows(1, queries, queries + keys), "v": Rows(1, queries + keys, rows)}


def thirds(rows: int, output: int | None, facts: Facts) -> Parts:
    """Queries, keys and values one after the other, as many of each."""
    if rows % 3 or output not in (None, rows // 3):
        raise LayoutUnknown(f"{rows} rows are not as many queries as keys and values")
    third = rows // 3
    return {"q": Rows(1, 0, third), "k": Rows(1, third, 2 * third), "v": Rows(1, 2 * third, rows)}


def one_key(rows: int, output: int | None, facts: Facts) -> Parts:
    """The queries of all heads, then one key and one value that they share (multi-query attention)."""
    heads = _require_heads(facts)
    size = rows // (heads + 2)
    if size < 1 or size * (heads + 2) != rows:
        raise LayoutUnknown(f"{heads} heads with one key and value do not divide {rows} rows")
    ends = [0, heads * size, (heads + 1) * size, rows]
    return {part: Rows(1, ends[i], ends[i + 1]) for i, part in enumerate("qkv")}


def interleaved(rows: int, output: int | None, facts: Facts) -> Parts:
    """Head by head, the queries, keys and values of each: (heads, 3, head_dim, d)."""
    return _in_groups(rows, _require_heads(facts), 1)


def grouped(rows: int, output: int | None, facts: Facts) -> Parts:
    """Group by group, the queries of its heads, then the keys and the values that they share (Falcon)."""
    heads = _require_heads(facts)
    groups = facts.kv_heads or heads
    if heads % groups:
        raise LayoutUnknown(f"{heads} heads are not in {groups} groups")
    return _in_groups(rows, groups, heads // groups)


def _in_groups(rows: int, groups: int, queries: int) -> Parts:
    size = rows // (groups * (queries + 2))
    if size < 1 or size * groups * (queries + 2) != rows:
        raise LayoutUnknown(f"{groups * queries} heads with {groups} keys and values do not divide {rows} rows")
    ends = [0, queries * size, (queries + 1) * size, (queries + 2) * size]
    return {part: Rows(groups, ends[i], ends[i + 1]) for i, part in enumerate("qkv")}


def _require_heads(facts: Facts) -> int:
    if facts.heads is None:
        raise LayoutUnknown(NO_HEADS)
    return facts.heads
