"""What a rule of effective weights is given, and what it finds."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...arrays import Array
from ...errors import CheckpointError
from ...tensors import TensorInfo

Tensors = Mapping[str, TensorInfo]


@dataclass(frozen=True)
class Effective:
    """A weight that is made of stored tensors.

    `make` is called with the tensors named by `parts`, in their order; `also` names others that belong to them.
    """

    info: TensorInfo
    parts: tuple[str, ...]
    make: Callable[..., Array]
    also: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All stored tensors that it concerns."""
        return (*self.parts, *self.also)


@dataclass(frozen=True)
class Refused:
    """A weight in a code that is not read as numbers, and why; `packed` parameters are in each of its numbers."""

    name: str
    reason: str
    also: tuple[str, ...] = ()
    packed: int = 1

    @property
    def names(self) -> tuple[str, ...]:
        """All stored tensors that it concerns."""
        return (self.name, *self.also)


@dataclass
class Beside:
    """What stands beside the tensors: a small one to read (`load`), and the JSON files of their directory.

    `used` names those files that decide values; they are part of the checkpoint's content.
    """

    load: Callable[[str], Array]
    directory: Path | None = None
    used: dict[str, None] = field(default_factory=dict)
    _read: dict[str, dict[str, Any] | None] = field(default_factory=dict)

    def json(self, name: str) -> dict[str, Any] | None:
        """The object in a JSON file of the checkpoint's directory, None where there is no such file.

        Raises CheckpointError where it holds anything else.
        """
        if name not in self._read:
            self._read[name] = self._read_json(name)
        return self._read[name]

    def _read_json(self, name: str) -> dict[str, Any] | None:
        path = self.path(name)
        if path is None:
            return None
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise CheckpointError(path, f"is not JSON that can be read ({type(error).__name__})") from error
        if not isinstance(content, dict):
            raise CheckpointError(path, "is not a JSON object")
        return content

    def path(self, name: str) -> Path | None:
        """The path of a file of the checkpoint's directory, None where there is none of this name."""
        path = None if self.directory is None else self.directory / name
        return path if path is not None and path.is_file() else None


Rule = Callable[[Tensors, Beside], Iterator[Effective | Refused]]


def beside_name(name: str, suffix: str) -> str:
    """The name of a sibling: `fc.weight`, `SCB` -> `fc.SCB`."""
    return f"{name.rpartition('.')[0]}.{suffix}".lstrip(".")
