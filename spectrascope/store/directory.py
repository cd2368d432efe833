"""Where the files of a store are, and making, clearing and mending it."""

from __future__ import annotations

import os
import re
import socket
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import RequestError, StoreError
from ..words import listed

TEMPORARY = re.compile(r"\.step(?P<step>\d+)\.h5\.(?P<host>.+)\.(?P<process>\d+)\.[0-9a-f]{32}\.tmp$")
STEP_FILE = re.compile(r"step(\d{10,})\.h5$")


def step_path(store: Path, step: int) -> Path:
    """Where the file of a step is."""
    return store / f"step{step:010d}.h5"


def temporary_path(target: Path) -> Path:
    """Where this process writes a file before it gets its name."""
    return target.with_name(f".{target.name}.{socket.gethostname()}.{os.getpid()}.{uuid.uuid4().hex}.tmp")


def step_files(store: Path) -> dict[int, Path]:
    """The finished files of a store by step, in order."""
    if not store.is_dir():
        return {}
    found = {int(m[1]): path for path in store.iterdir() if (m := STEP_FILE.match(path.name)) and path.is_file()}
    return dict(sorted(found.items()))


@contextmanager
def open_for_writing(store: Path) -> Iterator[None]:
    """A store that can be written to, and that is left without half a file, or not at all where it holds none.

    What killed runs of this machine left is cleared away. Raises RequestError where a file has that name, StoreError
    where the directory cannot be made.
    """
    if store.exists() and not store.is_dir():
        raise RequestError(f"{store} is a file; a store is a directory. Name another with -o; the file is untouched")
    is_new = not store.exists()
    if not is_new and not step_files(store) and (others := _foreign(store)):
        raise RequestError(f"{store} holds other files ({listed(others, 3)}); name a directory of its own with -o")
    try:
        store.mkdir(parents=True, exist_ok=True)
        for path in store.iterdir():
            found = TEMPORARY.match(path.name)
            if found and found["host"] == socket.gethostname() and not _is_alive(int(found["process"])):
                path.unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(f"{store}: the store cannot be made ({error.strerror or error})") from error
    try:
        yield
    finally:
        if is_new:
            with suppress(OSError):
                store.rmdir()  # refused where there is any file


def clear_temporaries(store: Path, steps: Iterable[int]) -> None:
    """Remove what lost workers, on whatever machine, have left of these steps, whose files are there."""
    done = set(steps)
    for path in store.iterdir():
        found = TEMPORARY.match(path.name)
        if found and int(found["step"]) in done:
            path.unlink(missing_ok=True)


def _foreign(store: Path) -> list[str]:
    """What no store holds; hidden files are anybody's."""
    names = sorted(path.name for path in store.iterdir())
    return [name for name in names if not name.startswith(".") and ".h5.damaged" not in name]


def set_aside(path: Path) -> Path:
    """Rename a damaged file so that its place is free; gives its new name."""
    number = 0
    while (target := path.with_name(f"{path.name}.damaged{number or ''}")).exists():
        number += 1
    path.rename(target)
    return target


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
