"""Where a checkpoint is that is not on this disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from .container import Container

# Name, size, and modification time (ns) or hash of each file that decides values.
Stamp = list[tuple[str, int, int | str]]
# Told what is being fetched, and how many of how many bytes have come.
Report = Callable[[str, int, int], None]


def unseen(label: str, done: int, size: int) -> None:
    """Tells nobody."""


@dataclass(frozen=True)
class HubRequest:
    """What is asked of the Hub: `revisions` by globs; to `keep` what is fetched; to read single tensors `in_place`.

    `store` is what is made of it, None where that is nothing that stays.
    """

    revisions: tuple[str, ...] = ()
    keep: bool = False
    in_place: bool = False
    store: Path | None = None


class Origin(Protocol):
    """A checkpoint elsewhere, as a revision on the Hub is: what it is is known before it is fetched.

    `label` is how it is shown to a person, `commit` an identity that never changes its meaning, `folder` where the
    JSON files beside the weights are once it is open.
    """

    label: str
    commit: str
    folder: Path | None

    def open(self, report: Report) -> tuple[Container, list[str]]:
        """Its container and warnings, after what is needed was fetched. Raises CheckpointError."""
        ...

    def sizes(self) -> tuple[dict[str, int], int]:
        """The bytes of each file that holds weights, and how many of all are to be fetched. Raises CheckpointError."""
        ...

    def require_in_place(self) -> None:
        """Raises CheckpointError where it would have to be fetched whole before its tensors are known."""
        ...

    def release(self) -> None:
        """Take away what was fetched for the while."""
        ...

    def stamp(self, used: Sequence[Path]) -> Stamp:
        """What tells whether its files have changed; `used` are those beside the weights that decide values."""
        ...

    def content(self, used: Sequence[Path]) -> str:
        """The hash of its content. Raises CheckpointError where what was fetched is not what was published."""
        ...
