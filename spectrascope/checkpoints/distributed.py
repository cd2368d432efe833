"""Directories of torch.distributed.checkpoint: `.metadata` and the parts `*.distcp`, read in one process."""

from __future__ import annotations

import io
import threading
from pathlib import Path
from typing import Any

import torch

from ..arrays import Array, from_torch
from ..errors import CheckpointError, unreadable
from ..tensors import TensorInfo
from .container import require_content
from .directory import METADATA
from .metadata import Metadata, Place, ShardedTensor, read_metadata
from .payload import Payload, describe_payload, find_state_dict, step_in

STEP_KEYS = ("global_step", "step")


class DistributedDirectory:
    """The tensors of a torch.distributed.checkpoint; chunks of sharded ones are put together when one is loaded."""

    ordered = True

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._metadata: Metadata | None = None
        self._found = Payload()
        require_content(path / METADATA)

    def tensors(self) -> list[TensorInfo]:
        self._read()
        return describe_payload(self._found, _describe)

    def load(self, name: str, index: int | None = None) -> Array:
        stored = self._stored(name)
        whole = torch.empty(stored.shape, dtype=stored.dtype)
        for chunk in stored.chunks:
            piece = self._torch_load(chunk.place)
            is_it = isinstance(piece, torch.Tensor) and tuple(piece.shape) == chunk.sizes
            if not is_it or piece.dtype != stored.dtype:
                raise CheckpointError(
                    self.path / chunk.place.file, f"does not hold the {name} that .metadata describes"
                )
            place = tuple(slice(at, at + size) for at, size in zip(chunk.offsets, chunk.sizes, strict=True))
            whole[place] = piece.detach()
        return from_torch(whole if index is None else whole[index])

    def step(self) -> int | None:
        values = self._read().values
        for wanted in STEP_KEYS:
            for path, place in values.items():
                if path[-1] == wanted and (step := step_in({wanted: self._torch_load(place)})) is not None:
                    return step
        return None

    def files(self) -> list[Path]:
        parts = {chunk.place.file for tensor in self._read().tensors.values() for chunk in tensor.chunks}
        return [self.path / METADATA, *(self.path / name for name in sorted(parts))]

    def _read(self) -> Metadata:
        with self._lock:
            if self._metadata is None:
                metadata = read_metadata(self.path)
                self._found = find_state_dict(metadata.payload, self.path)
                self._metadata = metadata
            return self._metadata

    def _stored(self, name: str) -> ShardedTensor:
        metadata = self._read()
        return metadata.tensors[id(self._found.all[name])]

    def _torch_load(self, place: Place) -> Any:
        part = self.path / place.file
        try:
            with part.open("rb") as file:
                file.seek(place.offset)
                content = file.read(place.length)
            return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        except MemoryError:
            raise
        except Exception as error:  # a pickle can fail with any exception; each is a fault of the file
            raise CheckpointError(part, unreadable(error)) from error


def _describe(name: str, stub: torch.Tensor) -> TensorInfo:
    return TensorInfo(name, tuple(stub.shape), str(stub.dtype).removeprefix("torch."))
