"""The `.metadata` of a torch.distributed.checkpoint: what tensors there are, and where their chunks are.

It is a pickle. It is read by an unpickler of our own that knows the names of its records and stands in for them, so
that nothing in it can run, and no process group and no version of torch is needed.
"""

from __future__ import annotations

import io
import pickle
from dataclasses import dataclass, field
from itertools import pairwise, product
from math import prod
from pathlib import Path
from typing import Any

import torch

from ..errors import CheckpointError, unreadable
from .directory import METADATA

# Chunks that are no grid are compared one with another.
MOST_CHUNKS_OF_NO_GRID = 1000
# The first parts of flat names, in checkpoints that do not say where a name was.
TOP_LEVEL = frozenset(
    ["model", "state_dict", "optim", "optimizer", "ema", "lr_scheduler", "scheduler", "step", "global_step", "epoch"]
)

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


@dataclass(frozen=True)
class Place:
    """Where the bytes of one object are."""

    file: str
    offset: int
    length: int


@dataclass(frozen=True)
class Chunk:
    """A block of a tensor."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    place: Place


@dataclass(frozen=True)
class ShardedTensor:
    """A tensor in chunks that make up its shape."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    chunks: tuple[Chunk, ...]


@dataclass
class Metadata:
    """What a checkpoint holds.

    payload : the dict that was saved, with a tensor on the meta device for each tensor; nothing for other values
    tensors : id of such a tensor -> where its values are
    values : path in the dict -> where any other value is
    """

    payload: dict[Any, Any] = field(default_factory=dict)
    tensors: dict[int, ShardedTensor] = field(default_factory=dict)
    values: dict[tuple[Any, ...], Place] = field(default_factory=dict)


def read_metadata(directory: Path) -> Metadata:
    """The metadata of a checkpoint. Raises CheckpointError where they, or the sizes of the parts, do not hold."""
    path = directory / METADATA
    try:
        # The unpickler in C takes memory for whatever number a damaged file names.
        unpickler = _Unpickler(io.BytesIO(path.read_bytes()))
        return _understood(directory, unpickler.load())
    except (CheckpointError, MemoryError):
        raise
    except Exception as error:  # whatever a pickle that is none makes of itself
        raise CheckpointError(path, unreadable(error)) from error


class _Record:
    """Stands in for a class of torch.distributed.checkpoint: keeps what it is given, and does nothing."""

    values: tuple[Any, ...]
    fields: dict[str, Any]

    def __new__(cls, *values: Any) -> _Record:
        record = super().__new__(cls)
        record.values = values
        record.fields = {}
        return record

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


class _Unpickler(pickle._Unpickler):
    """Knows the records of `.metadata` by name; any other name is refused."""

    def find_class(self, module: str, name: str) -> Any:
        full = f"{module}.{name}"
        if full in RECORDS:
            return _Record
        if full == "torch.Size":
            return torch.Size
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        raise pickle.UnpicklingError(f"it asks for `{full}`, which no such file needs")


def _understood(directory: Path, pickled: Any) -> Metadata:
    paths = pickled["planner_data"] if isinstance(pickled["planner_data"], dict) else {}
    places = _places(directory, pickled["storage_data"])
    found = Metadata()
    is_nested = all(name.partition(".")[0] in TOP_LEVEL for name in pickled["state_dict_metadata"])
    for name, record in pickled["state_dict_metadata"].items():
        path = tuple(paths.get(name) or (name.split(".", 1) if is_nested else (name,)))
        if "size" in record.fields:
            tensor = _tensor(name, record, places)
            stub = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
            found.tensors[id(stub)] = tensor
            _put(found.payload, path, stub)
        elif (name, None) in places:
            found.values[path] = places[name, None]
    return found


def _places(directory: Path, storage: dict[_Record, _Record]) -> dict[tuple[str, tuple[int, ...] | None], Place]:
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
        places[str(index["fqn"]), None if at is None else tuple(at)] = Place(file, offset, length)
    return places


def _tensor(name: str, record: _Record, places: dict[tuple[str, tuple[int, ...] | None], Place]) -> ShardedTensor:
    shape, dtype = tuple(record["size"]), record["properties"].dtype
    chunks = tuple(
        Chunk(tuple(one["offsets"]), tuple(one["sizes"]), places[name, tuple(one["offsets"])])
        for one in record["chunks"]
    )
    if not _tile(shape, chunks) or any(prod(one.sizes) * dtype.itemsize > one.place.length for one in chunks):
        raise ValueError(f"the chunks of {name} do not make up its shape {shape}")
    return ShardedTensor(shape, dtype, chunks)


def _tile(shape: tuple[int, ...], chunks: tuple[Chunk, ...]) -> bool:
    """Whether the chunks lie inside the shape, do not overlap, and fill it."""
    inside = all(
        len(one.offsets) == len(one.sizes) == len(shape)
        and all(at >= 0 and at + size <= total for at, size, total in zip(one.offsets, one.sizes, shape, strict=True))
        for one in chunks
    )
    if not inside or sum(prod(one.sizes) for one in chunks) != prod(shape):
        return False
    full = [one for one in chunks if prod(one.sizes)]
    if _is_grid(shape, full):
        return True
    if len(full) > MOST_CHUNKS_OF_NO_GRID:
        return False
    return not any(_overlap(one, other) for i, one in enumerate(full) for other in full[:i])


def _is_grid(shape: tuple[int, ...], chunks: list[Chunk]) -> bool:
    """Whether the chunks are those that cuts straight through the tensor leave, as all that DTensor shards are."""
    cuts = [sorted({one.offsets[axis] for one in chunks}) for axis in range(len(shape))]
    ends = [dict(pairwise([*starts, total])) for starts, total in zip(cuts, shape, strict=True)]
    fit = all(
        at + size == ends[axis][at]
        for one in chunks
        for axis, (at, size) in enumerate(zip(one.offsets, one.sizes, strict=True))
    )
    return fit and len(chunks) == prod(map(len, cuts)) and {one.offsets for one in chunks} == set(product(*cuts))


def _overlap(one: Chunk, other: Chunk) -> bool:
    return all(
        a < b + length and b < a + size
        for a, size, b, length in zip(one.offsets, one.sizes, other.offsets, other.sizes, strict=True)
    )


def _put(payload: dict[Any, Any], path: tuple[Any, ...], value: Any) -> None:
    *parents, last = path
    for key in parents:
        payload = payload.setdefault(key, {})
        if not isinstance(payload, dict):
            raise ValueError(f"{path} is inside a tensor")
    if last in payload:
        raise ValueError(f"{path} is there twice")
    payload[last] = value
