"""Checkpoints and masks as `.safetensors`, written tensor by tensor: no second copy of them is held.

The format is a length, a JSON header and the raw tensors (https://huggingface.co/docs/safetensors); the library's own
writers want all tensors at once.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path

from ..arrays import Array, dtype_named, raw_bytes
from ..checkpoints import Checkpoint, find_checkpoints
from ..checkpoints.safetensors_file import DTYPES
from ..errors import RequestError, SpectrascopeError
from ..report.files import require_writable, write_whole
from ..tensors import TensorInfo
from .weights import is_stored, opened

SUFFIX = ".safetensors"
CODES = {dtype: code for code, dtype in DTYPES.items()}
# Data begins at a multiple of so many bytes.
ALIGNMENT = 8


def require_savable(option: str, path: Path) -> None:
    """Raises RequestError, before any work, where no such file can be written."""
    require_writable(option, path, (SUFFIX,))


def save_checkpoint(path: Path, checkpoint: Checkpoint, load: Callable[[str], Array]) -> None:
    """All tensors of a checkpoint's model as `load` gives them, parts of effective weights as they are stored.

    Raises SpectrascopeError where the file cannot be written, or a tensor is of a type that the format does not have.
    """
    infos = {name: info for name, info in checkpoint.tensors.items() if is_stored(info) or info.kind == "refused"}
    save(path, infos, load)


def save(path: Path, infos: Mapping[str, TensorInfo], load: Callable[[str], Array]) -> None:
    """A file of these tensors, whole or not at all. Raises SpectrascopeError as `save_checkpoint`."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, info in infos.items():
        dtype = dtype_named(info.dtype)
        if info.dtype not in CODES or dtype is None:
            raise SpectrascopeError(f"{path}: {name} is {info.dtype}, which no safetensors file holds")
        start, end = end, end + prod(info.shape) * dtype.itemsize
        header[name] = {"dtype": CODES[info.dtype], "shape": list(info.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for name in infos:
                file.write(raw_bytes(load(name)))
            file.flush()
            os.fsync(file.fileno())

    write_whole(path, write)


def read_masks(path: Path, trust_pickle: bool = False) -> dict[str, Array]:
    """Masks by the names of their tensors. Raises RequestError where the file does not hold booleans alone."""
    (reference,) = find_checkpoints([path], trust_pickle=trust_pickle).references
    with opened(reference) as checkpoint:
        others = [name for name, info in checkpoint.tensors.items() if info.dtype != "bool" and info.problem is None]
        if others or not checkpoint.tensors:
            raise RequestError(f"{path}: masks are boolean tensors, and {others[0] if others else 'none'} is there")
        return {name: checkpoint.load(name) for name in checkpoint.tensors}
