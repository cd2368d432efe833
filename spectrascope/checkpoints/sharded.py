"""Several files that are one checkpoint: Hugging Face's shards with their index.json, or without."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from ..arrays import Array
from ..errors import CheckpointError
from ..tensors import TensorInfo
from .container import Container

SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<suffix>\.\w+)$")


class ShardedFiles:
    """The shards of one checkpoint as one container. The order of names is not the model's: indices sort them."""

    ordered = False

    def __init__(self, path: Path, shards: Mapping[str, Container]) -> None:
        self.path = path
        self._shards = dict(sorted(shards.items()))
        self._home: dict[str, Container] = {}

    def tensors(self) -> list[TensorInfo]:
        found: list[TensorInfo] = []
        home: dict[str, Container] = {}
        for shard in self._shards.values():
            for info in shard.tensors():
                if info.name in home:
                    raise CheckpointError(
                        self.path,
                        f"{info.name} is in two shards, {home[info.name].path.name} and {shard.path.name}",
                    )
                home[info.name] = shard
                found.append(info)
        self._home = home
        return found

    def load(self, name: str, index: int | None = None) -> Array:
        if not self._home:
            self.tensors()
        return self._home[name].load(name, index)

    def step(self) -> int | None:
        return None

    def files(self) -> list[Path]:
        return [path for shard in self._shards.values() for path in shard.files()]


class IndexedFiles(ShardedFiles):
    """Shards named by an index. Every tensor that the index names must be in the shard that it names."""

    def __init__(self, path: Path, shards: Mapping[str, Container], weight_map: Mapping[str, str]) -> None:
        super().__init__(path, shards)
        self._weight_map = weight_map

    def tensors(self) -> list[TensorInfo]:
        found = super().tensors()
        absent = [name for name in self._weight_map if name not in self._home]
        if absent:
            shard = self._weight_map[absent[0]]
            raise CheckpointError(self.path, f"the index places {absent[0]} in {shard}, which does not hold it")
        return found


def read_index(path: Path) -> dict[str, str]:
    """The weight map of an index file: tensor name -> file name. Raises CheckpointError."""
    try:
        weight_map = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(path, f"is not an index of shards ({type(error).__name__}: {error})") from error
    named = weight_map if isinstance(weight_map, dict) else {}
    if not named or not all(isinstance(file, str) and Path(file).name == file for file in named.values()):
        raise CheckpointError(path, "is not an index of shards: weight_map must map names to files beside it")
    return named


def full_shard_sets(names: list[str]) -> dict[str, list[str]]:
    """Complete sets of shards among file names, by the name that one whole file would have."""
    sets: dict[tuple[str, int], dict[int, str]] = {}
    for name in names:
        if found := SHARD.match(name):
            key = (found["stem"] + found["suffix"], int(found["count"]))
            sets.setdefault(key, {})[int(found["number"])] = name
    return {
        whole: [parts[number] for number in sorted(parts)]
        for (whole, count), parts in sets.items()
        if set(parts) == set(range(1, count + 1))
    }


def open_shards(directory: Path, label: str, files: list[str], open_file: Callable[[Path], Container]) -> ShardedFiles:
    """A complete set of shards without an index."""
    return ShardedFiles(directory / label, {name: open_file(directory / name) for name in files})


def open_index(index: Path, open_file: Callable[[Path], Container], are_here: bool = True) -> IndexedFiles:
    """The shards that an index names, which lie beside it if they `are_here`.

    Raises CheckpointError that lists the absent ones.
    """
    weight_map = read_index(index)
    files = sorted(set(weight_map.values()))
    absent = [name for name in files if are_here and not (index.parent / name).exists()]
    if absent:
        raise CheckpointError(index, f"names shards that are not there: {', '.join(absent)}; fetch them again")
    return IndexedFiles(index, {name: open_file(index.parent / name) for name in files}, weight_map)
