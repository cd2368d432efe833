"""One checkpoint: a container seen through the model's own names."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Hashable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..arrays import Array, raw_bytes
from ..errors import CheckpointError
from ..matrices import model_order
from ..tensors import TensorInfo
from .averages import choose_weights, mark_averages, names_of
from .container import Container
from .effective import Beside, resolve
from .names import without_wrappers
from .origin import Origin, Stamp
from .placeholders import refuse_without_values
from .training_state import is_of_an_optimizer


class Checkpoint:
    """The weights of one step.

    Attributes
    ----------
    tensors : dict of name -> TensorInfo, wrapper prefixes stripped, effective weights in place, in the model's order
    stored : dict of name -> TensorInfo, what the file holds of the model, parts of effective weights and codes as such
    tied : dict of name -> the earlier name that it shares memory with
    weights : "live" or "averaged", the copy of the model that `tensors` are of
    stamp : list of name, size and modification time (ns) of each file that decides values, when it was opened
    ordered : whether the order of `tensors` is the model's, rather than a guess from sorted names
    path : what to show a person
    config : what config.json beside the files says, None where there is none that can be read

    `weights` as an argument is the copy that is wanted; "auto" is the live one if there is any. `origin` is where the
    checkpoint comes from if it is not on this disk.

    Raises CheckpointError where two tensors come to the same name, or there are names without values; RequestError
    where the copy that is wanted is not there.
    """

    def __init__(self, container: Container, weights: str = "auto", origin: Origin | None = None) -> None:
        self.path: Path | str = container.path if origin is None else origin.label
        self._container = container
        self._origin = origin
        self._files = container.files()
        self._as_opened = stamp(self._files)
        listed = mark_averages({info.name: _without_moments(info) for info in container.tensors()})
        refuse_without_values(self.path, listed.values())
        self.weights = choose_weights(self.path, listed, weights)
        chosen, listed = names_of(listed, self.weights)
        bare = self._unwrap(chosen)
        # What is left out is listed under a name of its own.
        self._stored_name = bare | {
            name if name not in bare else f"{name} (left out)": name for name in listed if name not in chosen
        }
        self.ordered = container.ordered
        order = list(self._stored_name) if container.ordered else model_order(list(self._stored_name))
        stored = {name: replace(listed[self._stored_name[name]], name=name) for name in order}
        folder = self._files[0].parent if self._files else None
        beside = Beside(self.load_stored, folder if origin is None else origin.folder)
        self.tensors, self._effective = resolve(stored, beside)
        self.stored = {name: info for name, info in stored.items() if info.kind in ("parameter", "refused")}
        used = [path for name in beside.used if (path := beside.path(name))]
        self._files += used
        self._as_opened += stamp(used)
        self._used = used
        self.stamp: Stamp = list(self._as_opened) if origin is None else origin.stamp(used)
        self.tied = _tied(self.tensors)
        self.config = _config(beside)

    def load(self, name: str, index: int | None = None) -> Array:
        """The tensor of this name; an effective weight as it acts in the network.

        With `index`, what is at this place of its first axis, such as one expert of a stack.

        Raises CheckpointError, which names the tensor, where it cannot be read or its file has changed.
        """
        effective = self._effective.get(name)
        if effective is None:
            return self.load_stored(name, index)
        tensor = effective.make(*map(self.load_stored, effective.parts))
        if tensor.shape != effective.info.shape:
            raise CheckpointError(self.path, f"{name} comes out as {tensor.shape}, not {effective.info.shape}")
        return tensor if index is None else tensor[index]

    def parts_of(self, name: str) -> tuple[str, ...]:
        """The stored tensors that a tensor is made of: itself, unless it is an effective weight."""
        effective = self._effective.get(name)
        return (name,) if effective is None else effective.parts

    @property
    def files(self) -> list[Path]:
        """The files that decide its values, where they are on this disk."""
        return list(self._files)

    def load_stored(self, name: str, index: int | None = None) -> Array:
        """As `load`, of `stored`."""
        self.require_unchanged()
        try:
            return self._container.load(self._stored_name[name], index)
        except (OSError, RuntimeError, ValueError) as error:
            raise CheckpointError(self.path, f"{name} cannot be read ({error})") from error

    def require_unchanged(self) -> None:
        """Raises CheckpointError where a file is gone, or has another size or time than when it was opened."""
        if stamp(self._files) != self._as_opened:
            raise CheckpointError(self.path, "changed while it was being read; analyse it again")

    def content_hash(self) -> str:
        """sha256 over the weight files, or over the tensors where there is no file; elsewhere, what is said there."""
        if self._origin is not None:
            return self._origin.content(self._used)
        if self._files:
            return hash_files(self._files)
        digest = hashlib.sha256()
        for name, info in self.tensors.items():
            digest.update(repr((name, info.shape, info.dtype)).encode())
            if info.problem is None:
                digest.update(hash_tensor(self.load(name)).encode())
        return digest.hexdigest()

    def _unwrap(self, names: dict[str, str]) -> dict[str, str]:
        """The bare names -> the stored ones, of stored names -> names that may have wrappers before them."""
        stored: dict[str, str] = {}
        bare_name = without_wrappers(names.values())
        for name, wrapped in names.items():
            bare = bare_name[wrapped]
            if bare in stored:
                raise CheckpointError(self.path, f"{stored[bare]!r} and {name!r} are both {bare!r} without wrappers")
            stored[bare] = name
        return stored


def stamp(files: list[Path]) -> list[tuple[str, int, int]]:
    """Name, size and modification time (ns) of each file."""
    stamps = []
    for path in files:
        try:
            status = os.stat(path)
        except OSError as error:
            raise CheckpointError(path, f"cannot be read ({error.strerror})") from error
        stamps.append((path.name, status.st_size, status.st_mtime_ns))
    return stamps


def hash_files(files: list[Path]) -> str:
    """sha256 of a file; of several, the sha256 of their names and sha256s."""
    digests = []
    for path in files:
        try:
            with path.open("rb") as file:
                digests.append((path.name, hashlib.file_digest(file, "sha256").hexdigest()))
        except OSError as error:
            raise CheckpointError(path, f"cannot be read ({error.strerror or error})") from error
    if len(digests) == 1:
        return digests[0][1]
    return hashlib.sha256(repr(digests).encode()).hexdigest()


def hash_tensor(tensor: Array) -> str:
    """sha256 of a tensor's raw bytes in row-major order."""
    return hashlib.sha256(raw_bytes(tensor)).hexdigest()


def _config(beside: Beside) -> dict[str, Any] | None:
    """Facts about the architecture. What decides values is read, and required, by the rules of effective weights."""
    try:
        return beside.json("config.json")
    except CheckpointError:
        return None


def _without_moments(info: TensorInfo) -> TensorInfo:
    if info.kind == "parameter" and is_of_an_optimizer(info.name):
        return replace(info, kind="other", problem="of an optimizer")
    return info


def _tied(tensors: dict[str, TensorInfo]) -> dict[str, str]:
    first: dict[Hashable, str] = {}
    tied = {}
    for name, info in tensors.items():
        if info.storage is None or info.size == 0 or info.kind != "parameter" or info.problem:
            continue
        if info.storage in first:
            tied[name] = first[info.storage]
        else:
            first[info.storage] = name
    return tied
