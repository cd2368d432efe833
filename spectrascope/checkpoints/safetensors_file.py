"""`.safetensors`: a JSON header and raw tensors, memory-mapped."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from ..errors import CheckpointError
from ..tensors import TensorInfo
from . import container
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
    "BOOL": "bool",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
    "C64": "complex64",
}
# What torch.distributed.checkpoint says of pieces of tensors in a safetensors file.
SHARDING = "DCP_SHARDING_INFO"
CONSOLIDATE = "put them together first, with consolidate_safetensors_files of torch.distributed.checkpoint"


class SafetensorsFile:
    """One `.safetensors` file. The header sorts names, so their order says nothing about the model."""

    ordered = False

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._file: Any = None
        self._handed_out = 0
        require_content(path)

    def tensors(self) -> list[TensorInfo]:
        with self._lock:
            file = self._open()
            self._refuse_a_shard(file.metadata() or {})
            return [self._describe(file, name) for name in file.keys()]  # noqa: SIM118 (not a mapping)

    def load(self, name: str) -> torch.Tensor:
        with self._lock:
            try:
                tensor: torch.Tensor = self._open().get_tensor(name)
            except SafetensorError as error:
                raise CheckpointError(self.path, f"{name} cannot be read ({error})") from error
            self._handed_out += tensor.nbytes
            if self._handed_out > container.REOPEN_AFTER:
                self._file = None
        return tensor

    def step(self) -> int | None:
        return None

    def files(self) -> list[Path]:
        return [self.path]

    def _open(self) -> Any:
        if self._file is None:
            try:
                self._file = safe_open(self.path, framework="pt", device="cpu")
            except (SafetensorError, OSError) as error:
                raise CheckpointError(self.path, _cause(self.path, error)) from error
            self._handed_out = 0
        return self._file

    def _refuse_a_shard(self, metadata: dict[str, str]) -> None:
        """Raises CheckpointError where the tensors are pieces that do not begin at 0, of which others are elsewhere."""
        try:
            offsets = [one["saved_offsets"] for one in json.loads(metadata.get(SHARDING, "{}")).values()]
            is_shard = any(any(one) for one in offsets)
        except (ValueError, TypeError, KeyError, AttributeError):
            is_shard = False
        if is_shard:
            raise CheckpointError(self.path, f"holds the shards of one process; {CONSOLIDATE}")

    @staticmethod
    def _describe(file: Any, name: str) -> TensorInfo:
        view = file.get_slice(name)
        dtype = view.get_dtype()
        return TensorInfo(name, tuple(view.get_shape()), DTYPES.get(dtype, dtype.lower()))


def _cause(path: Path, error: Exception) -> str:
    text = str(error)
    if isinstance(error, OSError):
        return f"cannot be read ({error.strerror or error})"
    if re.search(r"incomplete|not fully covered|too ?small", text, re.IGNORECASE):
        return f"is truncated: its header describes more bytes than the {path.stat().st_size:,} there are"
    return f"is not a valid safetensors file ({text})"
