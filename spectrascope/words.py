"""Numbers in words, for notes and messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from itertools import islice


def counted(count: int, one: str, many: str | None = None) -> str:
    """1 matrix, 2 matrices."""
    return f"{count} {one if count == 1 else many or one + 's'}"


def coverage_words(matrices: int, coverage: float) -> str:
    """8 matrices hold 99.7% of the parameters."""
    verb = "holds" if matrices == 1 else "hold"
    return f"{counted(matrices, 'matrix', 'matrices')} {verb} {coverage:.1%} of the parameters"


def human_bytes(count: float) -> str:
    """A size in words: 12 MB."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def listed(items: Iterable[object], most: int = 8) -> str:
    """a, b, c, ..."""
    first = list(islice(items, most + 1))
    return ", ".join(map(str, first[:most])) + (", ..." if len(first) > most else "")


def first_of(sentences: Sequence[str], most: int = 20) -> str:
    """So many of several findings, and how many more there are."""
    more = f"; and {len(sentences) - most} more" if len(sentences) > most else ""
    return "; ".join(sentences[:most]) + more


def choices(name: str, names: Sequence[str]) -> str:
    """What to offer for a name that does not exist: those nearest to it, else the first ones."""
    close = get_close_matches(name, names, n=3, cutoff=0.6)
    close += [one for one in names if name and name in one and one not in close][:3]
    return f"did you mean {' or '.join(close[:3])}?" if close else f"there are {listed(names)}"
