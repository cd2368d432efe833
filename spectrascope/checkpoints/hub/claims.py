"""Who uses a place for what is fetched for the while: one process at a time."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

# The places of this process: what was asked for -> where it is, and the lock that keeps others away.
_claimed: dict[Path, tuple[Path, FileLock | None]] = {}


def claim(place: Path) -> Path:
    """The place, for this process until it gives it up or ends; one beside it where another process has it.

    So that a run that was killed goes on with what it had fetched, and two that run at once take nothing from each
    other.
    """
    if place not in _claimed:
        _claimed[place] = _claim(place)
    return _claimed[place][0]


def _claim(place: Path) -> tuple[Path, FileLock | None]:
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(_lock_of(place))
        lock.acquire(blocking=False)
    except Timeout:
        return place.with_name(f"{place.name}-{os.getpid()}"), None
    except OSError:  # that nothing can be kept there is said when something is fetched
        return place, None
    return place, lock


def give_up(place: Path) -> None:
    """Let others have the place, which holds nothing any more."""
    _, lock = _claimed.pop(place, (place, None))
    if lock is not None:
        with suppress(OSError):
            _lock_of(place).unlink()
        lock.release()


def _lock_of(place: Path) -> Path:
    return place.with_name(f"{place.name}.lock")
