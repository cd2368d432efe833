"""Directories of torch.distributed.checkpoint: `.metadata` and the parts `*.distcp`, read in one process.

`.metadata` is a pickle. It is read by an unpickler of our own that knows the names of its records and stands in for
them, so that nothing in it can run, and no process group or version of torch is needed.
"""

from __future__ import annotations

import io
import pickle
import threading
from collections import ChainMap, OrderedDict
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import torch

from ..errors import CheckpointError, unreadable
from ..tensors import TensorInfo
from .container import describe_left_out, require_content
from .payload import Payload, find_state_dict, step_in

METADATA = ".metadata"
UNFINISHED = "holds parts of a torch.distributed.checkpoint and no .metadata: it was not saved to its end"
STEP_KEYS = ("global_step", "step")


def is_distributed(path: Path) -> bool:
    """Whether a directory is a torch.distributed.checkpoint."""
    return (path / METADATA).is_file()


class DistributedDirectory:
    """The tensors of a torch.distributed.checkpoint; chunks of sharded ones are put together when one is loaded."""

    ordered = True

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry] = {}
        self._found: Payload | None = None
        require_content(path / METADATA)

    def tensors(self) -> list[TensorInfo]:
        found = self._read()
        infos = [
            TensorInfo(name, tuple(stub.shape), str(stub.dtype).removeprefix("torch."))
            for name, stub in found.all.items()
        ]
        return infos + describe_left_out(found.left_out, found.all)

    def load(self, name: str) -> torch.Tensor:
        entry = self._entry_of(self._read().all[name])
        whole = torch.empty(entry.shape, dtype=entry.dtype)
        for chunk in entry.chunks:
            piece = self._torch_load(chunk.place)
            if not isinstance(piece, torch.Tensor) or tuple(piece.shape) != chunk.sizes or piece.dtype != entry.dtype:
                raise CheckpointError(self.path, f"{name}: {chunk.place.file} does not hold what .metadata says")
            place = tuple(slice(at, at + size) for at, size in zip(chunk.offsets, chunk.sizes, strict=True))
            whole[place] = piece.detach()
        return whole

    def step(self) -> int | None:
        self._read()
        for key in STEP_KEYS:
            for entry in self._entries.values():
                if entry.path[-1] == key and entry.value is not None:
                    step = step_in({key: self._torch_load(entry.value)})
                    if step is not None:
                        return step
        return None

    def files(self) -> list[Path]:
        self._read()
        parts = {chunk.place.file for entry in self._entries.values() for chunk in entry.chunks}
        return [self.path / METADATA, *(self.path / name for name in sorted(parts))]

    def _read(self) -> Payload:
        with self._lock:
            if self._found is None:
                self._entries = _read_metadata(self.path)
                self._found = find_state_dict(_nested(self._entries), self.path)
            return self._found

    def _entry_of(self, stub: torch.Tensor) -> _Entry:
        return next(entry for entry in self._entries.values() if entry.stub is stub)

    def _torch_load(self, place: _Place) -> Any:
        part = self.path / place.file
        try:
            with part.open("rb") as file:
                file.seek(place.offset)
                content = file.read(place.length)
            return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        except MemoryError:
            raise
        except Exception as error:
            raise CheckpointError(part, unreadable(error)) from error


@dataclass(frozen=True)
class _Place:
    """Where the bytes of one object are."""

    file: str
    offset: int
    length: int


@dataclass(frozen=True)
class _Chunk:
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    place: _Place


@dataclass
class _Entry:
    """A tensor in chunks, or the place of another value. `path` is where it was in the dict that was saved."""

    path: tuple[Any, ...]
    stub: torch.Tensor | None = None
    chunks: tuple[_Chunk, ...] = ()
    value: _Place | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        assert self.stub is not None
        return tuple(self.stub.shape)

    @property
    def dtype(self) -> torch.dtype:
        assert self.stub is not None
        return self.stub.dtype


class _Record:
    """Stands in for a class of torch.distributed.checkpoint: keeps what it is given, and does nothing."""

    def __new__(cls, *values: Any) -> _Record:
        record = super().__new__(cls)
        record.values = values
        record.fields = {}
        return record

    values: tuple[Any, ...]
    fields: dict[str, Any]

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            self.fields = state
        elif isinstance(state, tuple):
            self.values = state

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype among the properties of a tensor, whatever version of torch wrote them."""
        return next(one for one in (*self.fields.values(), *self.values) if isinstance(one, torch.dtype))


# What `_Record` stands in for.
RECORDS = frozenset(
    [
        "torch.distributed.checkpoint.metadata.Metadata",
        "torch.distributed.checkpoint.metadata.TensorStorageMetadata",
        "torch.distributed.checkpoint.metadata.BytesStorageMetadata",
        "torch.distributed.checkpoint.metadata.ChunkStorageMetadata",
        "torch.distributed.checkpoint.metadata.TensorProperties",
        "torch.distributed.checkpoint.metadata.MetadataIndex",
        "torch.distributed.checkpoint.metadata.StorageMeta",
        "torch.distributed.checkpoint.metadata._MEM_FORMAT_ENCODING",
        "torch.distributed.checkpoint.filesystem._StorageInfo",
        "torch.distributed._shard.sharded_tensor.metadata.TensorProperties",
        "torch.distributed._shard.sharded_tensor.metadata.MEM_FORMAT_ENCODING",
        "torch.serialization._get_layout",
        "pathlib.PosixPath",
        "pathlib.WindowsPath",
        "pathlib.PurePosixPath",
        "pathlib._local.PosixPath",
        "pathlib._local.WindowsPath",
    ]
)
# What a pickle may make besides.
PLAIN = {"collections.OrderedDict": OrderedDict, "collections.ChainMap": ChainMap, "torch.Size": torch.Size}


class _Unpickler(pickle.Unpickler):
    """Knows the records of `.metadata` by name; any other name is refused."""

    def find_class(self, module: str, name: str) -> Any:
        full = f"{module}.{name}"
        if full in RECORDS:
            return _Record
        if full in PLAIN:
            return PLAIN[full]
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        raise pickle.UnpicklingError(f"it asks for `{full}`, which no such file needs")


def _read_metadata(directory: Path) -> dict[str, _Entry]:
    """The entries of a checkpoint by their flat names."""
    path = directory / METADATA
    try:
        with path.open("rb") as file:
            metadata = _Unpickler(file).load()
        planned = metadata["planner_data"]
        paths = planned if isinstance(planned, (dict, ChainMap)) else {}
        places = _places(directory, metadata["storage_data"])
        return {
            name: _entry(name, record, tuple(paths.get(name) or _path(name)), places)
            for name, record in metadata["state_dict_metadata"].items()
        }
    except CheckpointError:
        raise
    except MemoryError:
        raise
    except Exception as error:  # whatever a pickle that is none makes of itself
        raise CheckpointError(path, unreadable(error)) from error


def _places(directory: Path, storage: dict[_Record, _Record]) -> dict[tuple[str, tuple[int, ...] | None], _Place]:
    """Where every chunk and value is: (flat name, offsets of the chunk or None) -> place."""
    sizes: dict[str, int] = {}
    places = {}
    for index, info in storage.items():
        file, offset, length = str(info["relative_path"]), int(info["offset"]), int(info["length"])
        if Path(file).name != file:
            raise CheckpointError(directory / METADATA, f"names a part outside its directory ({file!r})")
        if info.fields.get("transform_descriptors"):
            raise CheckpointError(directory / METADATA, "its parts are compressed, which is not read here")
        if file not in sizes:
            part = directory / file
            if not part.is_file():
                raise CheckpointError(directory, f"its part {file} is not there; fetch it again")
            sizes[file] = part.stat().st_size
        if offset < 0 or length < 0 or offset + length > sizes[file]:
            raise CheckpointError(directory / file, "is truncated: .metadata places more in it than it holds")
        at = index.fields.get("offset")
        places[str(index["fqn"]), None if at is None else tuple(at)] = _Place(file, offset, length)
    return places


def _entry(
    name: str, record: _Record, path: tuple[Any, ...], places: dict[tuple[str, tuple[int, ...] | None], _Place]
) -> _Entry:
    if "size" not in record.fields:
        return _Entry(path, value=places.get((name, None)))
    shape, dtype = tuple(record["size"]), record["properties"].dtype
    chunks = tuple(
        _Chunk(offsets, tuple(one["sizes"]), places[name, offsets])
        for one in record["chunks"]
        for offsets in [tuple(one["offsets"])]
    )
    if not _tile(shape, chunks) or any(prod(one.sizes) * dtype.itemsize > one.place.length for one in chunks):
        raise ValueError(f"the chunks of {name} do not make up its shape {shape}")
    return _Entry(path, torch.empty(shape, dtype=dtype, device="meta"), chunks)


def _tile(shape: tuple[int, ...], chunks: tuple[_Chunk, ...]) -> bool:
    """Whether the chunks lie inside the shape, do not overlap, and fill it."""
    inside = all(
        len(one.offsets) == len(one.sizes) == len(shape)
        and all(at >= 0 and at + size <= total for at, size, total in zip(one.offsets, one.sizes, shape, strict=True))
        for one in chunks
    )
    if not inside or sum(prod(one.sizes) for one in chunks) != prod(shape):
        return False
    full = [one for one in chunks if prod(one.sizes)]
    cut = [axis for axis, total in enumerate(shape) if any(one.sizes[axis] != total for one in full)]
    if len(cut) == 1:  # the usual case, of as many chunks as there are ranks
        full.sort(key=lambda one: one.offsets[cut[0]])
        return all(a.offsets[cut[0]] + a.sizes[cut[0]] == b.offsets[cut[0]] for a, b in pairwise(full))
    return not any(_overlap(one, other) for i, one in enumerate(full) for other in full[:i])


def _overlap(one: _Chunk, other: _Chunk) -> bool:
    return all(
        a < b + length and b < a + size
        for a, size, b, length in zip(one.offsets, one.sizes, other.offsets, other.sizes, strict=True)
    )


def _path(name: str) -> tuple[str, ...]:
    """Where a name was, for checkpoints that do not say: optimizers and models are told by the first part."""
    first, _, rest = name.partition(".")
    return (first, rest) if rest and first in ("model", "optim", "optimizer", "state_dict", "ema") else (name,)


def _nested(entries: dict[str, _Entry]) -> dict[Any, Any]:
    """The dict that was saved, with tensors that have a shape and no values."""
    payload: dict[Any, Any] = {}
    for entry in entries.values():
        *parents, last = entry.path
        inside = payload
        for key in parents:
            inside = inside.setdefault(key, {})
        if entry.stub is not None:
            inside[last] = entry.stub
    return payload
