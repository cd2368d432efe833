"""`.safetensors`: a JSON header and raw tensors."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from ..arrays import Array, dtype_named
from ..errors import CheckpointError, Pathish, unreadable
from ..tensors import TensorInfo
from .container import require_content

DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "U16": "uint16",
    "U32": "uint32",
    "U64": "uint64",
    "BOOL": "bool",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
    "C64": "complex64",
}
# A model of 100,000 tensors has a header of 10 MB.
LONGEST_HEADER = 16 * 10**6
# What torch.distributed.checkpoint says of pieces of tensors in a safetensors file.
SHARDING = "DCP_SHARDING_INFO"
PUT_TOGETHER = "put them together first, with consolidate_safetensors_files of torch.distributed.checkpoint"


class SafetensorsFile:
    """One `.safetensors` file. The header sorts names, so their order says nothing about the model.

    Values are read, not mapped: a mapped file that another process makes shorter ends this one.
    """

    ordered = False

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._entries: dict[str, dict[str, Any]] | None = None
        self._data_start = 0
        require_content(path)

    def tensors(self) -> list[TensorInfo]:
        return describe_entries(self._header())

    def load(self, name: str, index: int | None = None) -> Array:
        dtype, shape, begin, end = piece_of(self.path, name, self._header()[name], index)
        content = np.empty(end - begin, np.uint8)
        try:
            with self.path.open("rb") as file:
                file.seek(self._data_start + begin)
                count = file.readinto(content.data)
        except OSError as error:
            raise CheckpointError(self.path, f"{name} {unreadable(error)}") from error
        if count != end - begin:
            raise CheckpointError(self.path, f"is truncated: {name} ends past the end of the file")
        return content.view(dtype).reshape(shape)

    def step(self) -> int | None:
        return None

    def files(self) -> list[Path]:
        return [self.path]

    def _header(self) -> dict[str, dict[str, Any]]:
        """What the header says of every tensor, once the library has found it sound."""
        with self._lock:
            if self._entries is None:
                try:
                    self._refuse_an_endless_header()
                    with safe_open(self.path, framework="numpy") as file:
                        self._refuse_a_shard(file.metadata() or {})
                    with self.path.open("rb") as raw:
                        length = int.from_bytes(raw.read(8), "little")
                        entries = json.loads(raw.read(length))
                except (SafetensorError, OSError, ValueError) as error:
                    raise CheckpointError(self.path, _cause(self.path, error)) from error
                entries.pop("__metadata__", None)
                self._entries, self._data_start = dict(sorted(entries.items())), 8 + length
            return self._entries

    def _refuse_an_endless_header(self) -> None:
        """Raises CheckpointError before a header is read that would take more memory than any model's does."""
        with self.path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
        if LONGEST_HEADER < length <= self.path.stat().st_size:
            raise CheckpointError(
                self.path, f"is not a safetensors file of a model: its header is {length / 1e6:,.0f} MB long"
            )

    def _refuse_a_shard(self, metadata: dict[str, str]) -> None:
        """Raises CheckpointError where the tensors are pieces that do not begin at 0, of which others are elsewhere."""
        try:
            offsets = [one["saved_offsets"] for one in json.loads(metadata.get(SHARDING, "{}")).values()]
            is_shard = any(any(one) for one in offsets)
        except (ValueError, TypeError, KeyError, AttributeError):
            is_shard = False
        if is_shard:
            raise CheckpointError(self.path, f"holds the shards of one process; {PUT_TOGETHER}")


def describe_entries(entries: dict[str, dict[str, Any]]) -> list[TensorInfo]:
    """The tensors that a header lists."""
    return [
        TensorInfo(name, tuple(entry["shape"]), DTYPES.get(entry["dtype"], entry["dtype"].lower()))
        for name, entry in entries.items()
    ]


def piece_of(
    path: Pathish, name: str, entry: dict[str, Any], index: int | None
) -> tuple[np.dtype[Any], list[int], int, int]:
    """Type and shape of a tensor, or of what is at `index` of its first axis, and where among the data its bytes are.

    Raises CheckpointError for a type that no array can have.
    """
    dtype = dtype_named(DTYPES.get(entry["dtype"], "unknown"))
    if dtype is None:
        raise CheckpointError(path, f"{name} is of a type that is not read here ({entry['dtype']})")
    begin, end = entry["data_offsets"]
    shape = entry["shape"]
    if index is not None:
        shape, size = shape[1:], (end - begin) // shape[0]
        begin, end = begin + index * size, begin + (index + 1) * size
    return dtype, shape, begin, end


def _cause(path: Path, error: Exception) -> str:
    text = str(error)
    if isinstance(error, OSError):
        return f"cannot be read ({error.strerror or error})"
    if re.search(r"incomplete|not fully covered|too ?small", text, re.IGNORECASE):
        return f"is truncated: its header describes more bytes than the {path.stat().st_size:,} there are"
    return f"is not a valid safetensors file ({text})"
