"""hf://owner/name[@revision], and which revisions of a repository are meant."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from ...errors import RequestError
from ...words import choices

SCHEME = "hf://"
REPOSITORY = re.compile(r"(?:[\w.-]+/)?[\w.-]+$")
REGEX = "re:"


@dataclass(frozen=True)
class Address:
    """A repository of models, and the revision that is asked for, None where none is."""

    repository: str
    revision: str | None = None

    def label(self, revision: str) -> str:
        """How a revision is shown to a person."""
        return f"{SCHEME}{self.repository}@{revision}"


def parse(text: str) -> Address:
    """The repository and revision of `hf://owner/name[@revision]`. Raises RequestError for anything else."""
    repository, at, revision = text.removeprefix(SCHEME).partition("@")
    if not REPOSITORY.match(repository) or (at and not revision):
        raise RequestError(f"{text} is not hf://owner/name or hf://owner/name@revision")
    return Address(repository, revision or None)


def revisions_meant(address: Address, there: Sequence[str], patterns: Sequence[str]) -> list[str]:
    """The revisions that an address and --revisions ask for, among those that are there.

    `main` where neither says one. A pattern is a glob, `step*`, or a regular expression after `re:`.
    Raises RequestError where a pattern fits none, is no regular expression, or the address names a revision as well.
    """
    if address.revision is not None and patterns:
        raise RequestError(f"{SCHEME}{address.repository} is given with @{address.revision} and --revisions: keep one")
    if not patterns:
        return [address.revision or "main"]
    chosen: dict[str, None] = {}
    for pattern in patterns:
        fitting = [name for name in there if _fits(name, pattern)]
        if not fitting:
            raise RequestError(f"no revision of {SCHEME}{address.repository} is {pattern!r}; {choices(pattern, there)}")
        chosen |= dict.fromkeys(fitting)
    return list(chosen)


def _fits(name: str, pattern: str) -> bool:
    if not pattern.startswith(REGEX):
        return fnmatchcase(name, pattern)
    try:
        return re.search(pattern.removeprefix(REGEX), name) is not None
    except re.error as error:
        raise RequestError(f"--revisions {pattern!r} is not a regular expression: {error}") from error
