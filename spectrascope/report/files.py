"""Writing a file that a person named: whole or not at all, and never over a store."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ..errors import RequestError, SpectrascopeError


def require_writable(option: str, path: Path, suffixes: tuple[str, ...]) -> None:
    """Raises RequestError, before any work, where a file cannot or must not be written."""
    if path.suffix.lower() not in suffixes:
        raise RequestError(f"{option} {path}: the suffix names the format, one of {', '.join(suffixes)}")
    parent = path.resolve().parent
    if not parent.is_dir():
        raise RequestError(f"{option} {path}: there is no directory {path.parent}")
    if path.is_dir():
        raise RequestError(f"{option} {path}: is a directory")
    if parent.suffix == ".spectra" or any(parent.glob("step*.h5")):
        raise RequestError(f"{option} {path}: is inside a store of spectra; write it elsewhere")


def write_whole(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a temporary file beside `path`, or what it links to, then put it in its place.

    Raises SpectrascopeError.
    """
    path = Path(os.path.realpath(path))
    temporary = path.with_name(f".{uuid.uuid4().hex}{path.suffix}")
    try:
        write(temporary)
        os.replace(temporary, path)
    except OSError as error:
        raise SpectrascopeError(f"{path}: cannot be written ({error.strerror or error})") from error
    finally:
        with suppress(OSError):
            temporary.unlink()
