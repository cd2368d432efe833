"""Which names are asked for: globs as a user writes them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

from .errors import RequestError
from .words import choices

BRACKETS = re.compile(r"(?<!\[)\[(?![!\[\]])([^\]-]*)\]")


def selected(name: str, match: Sequence[str], skip: Sequence[str]) -> bool:
    """Whether any glob of `match` (all names, if there is none) and none of `skip` fits a name, or is the name."""
    return (not match or any(fits_glob(name, glob) for glob in match)) and not any(
        fits_glob(name, glob) for glob in skip
    )


def fits_glob(name: str, glob: str) -> bool:
    """Whether a glob fits a name, or is it.

    Brackets belong to names such as `w[0]`; around a range or a negation, `[0-4]` or `[!x]`, they are a glob's.
    """
    return name == glob or fnmatchcase(name, BRACKETS.sub(r"[[]\1]", glob))


def require_match(names: Sequence[str], match: Sequence[str], skip: Sequence[str] = ()) -> list[str]:
    """The names that are asked for. Raises RequestError where none is."""
    found = [name for name in names if selected(name, match, skip)]
    if names and not found:
        asked = ", ".join(repr(glob) for glob in (*match, *skip))
        raise RequestError(f"no matrix matches {asked}; {choices((*match, *skip)[0], names)}")
    return found
