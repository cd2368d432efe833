"""What a pickle would import, read off its opcodes without running any of them."""

from __future__ import annotations

import contextlib
import pickletools
import zipfile
from pathlib import Path
from typing import IO

# The legacy format is a row of pickles: magic number, protocol, machine, the object itself.
PICKLES_IN_A_LEGACY_FILE = 4


def globals_in(path: Path) -> list[str]:
    """The names, such as `os.system`, that the pickle in a file asks for; none where it is no pickle."""
    try:
        if not zipfile.is_zipfile(path):
            with path.open("rb") as file:
                return _globals(file)
        with zipfile.ZipFile(path) as archive:
            member = next((name for name in archive.namelist() if name.endswith("data.pkl")), None)
            if member is None:
                return []
            with archive.open(member) as inner:
                return _globals(inner)
    except Exception:  # a damaged archive asks for nothing
        return []


def _globals(file: IO[bytes]) -> list[str]:
    found: dict[str, None] = {}
    strings: list[str] = []
    # pickletools raises whatever a malformed stream makes it raise
    with contextlib.suppress(Exception):
        for _ in range(PICKLES_IN_A_LEGACY_FILE):
            for opcode, argument, _position in pickletools.genops(file):
                if opcode.name in ("GLOBAL", "INST"):
                    found[str(argument).replace(" ", ".")] = None
                elif opcode.name == "STACK_GLOBAL" and len(strings) > 1:
                    found[".".join(strings[-2:])] = None
                elif isinstance(argument, str):
                    strings.append(argument)
    return list(found)
