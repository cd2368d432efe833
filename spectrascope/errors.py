"""What can go wrong, as a tree.

SpectrascopeError
├── RequestError        what was asked for makes no sense (exit code 2)
├── CheckpointError     one checkpoint cannot be read; the others go on
│   └── Unfetched       it has not come to its end from the Hub; files that came whole are kept
├── HubError            the Hub, or a repository on it, cannot be read
├── ClusterError        a dask scheduler or its workers cannot be used
├── TaskError           the user's model and loss cannot be used
├── NothingAnalysed     no checkpoint or matrix is left to report (exit code 1)
└── StoreError          the store cannot be read or written
    ├── StoreLocked     another process holds a file of the store
    ├── StoreDamaged    a file of the store is not what was written
    └── StoreUnwritable a file of the store cannot be written, as on a full disk

Every message is one sentence or two that say what happened, to which file, step or tensor, and what to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike

Pathish = str | PathLike[str]


class SpectrascopeError(Exception):
    """Anything that a user can cause or cure. Never shown with a traceback."""

    exit_code = 1


class RequestError(SpectrascopeError):
    """The command or call asks for something that is not there or cannot be."""

    exit_code = 2


class CheckpointError(SpectrascopeError):
    """One checkpoint cannot be read.

    Attributes: `path` (the file or directory at fault) and `reason` (what is wrong with it, without the path).
    """

    def __init__(self, path: Pathish, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = str(path)
        self.reason = reason


class Unfetched(CheckpointError):
    """A checkpoint has not come to its end from the Hub; files that came whole are kept for the next run."""


class HubError(SpectrascopeError):
    """The Hub, or a repository on it, cannot be read."""


class ClusterError(SpectrascopeError):
    """A dask scheduler or its workers cannot be used."""


class TaskError(SpectrascopeError):
    """The user's model and loss cannot be used, or did something that they must not do."""


class NothingAnalysed(SpectrascopeError):
    """Nothing is left to report. `causes` says why, one sentence for each checkpoint that could not be read."""

    def __init__(self, message: str, causes: Sequence[str] = ()) -> None:
        super().__init__("; ".join((message, *causes)))
        self.message = message
        self.causes = list(causes)


class StoreError(SpectrascopeError):
    """A store of spectra cannot be read or written."""


class StoreLocked(StoreError):
    """Another process holds a file of the store open for writing."""


class StoreDamaged(StoreError):
    """A file of the store is truncated, altered or not ours."""


class StoreUnwritable(StoreError):
    """A file of the store cannot be written, as on a full disk."""


def unreadable(error: BaseException) -> str:
    """What to say of a file that made a library raise this, in one line."""
    if isinstance(error, OSError) and error.strerror:
        return f"cannot be read ({error.strerror})"
    first_line = (str(error).strip().splitlines() or [""])[0][:200]
    return f"is damaged or cannot be read ({type(error).__name__}{': ' if first_line else ''}{first_line})"
