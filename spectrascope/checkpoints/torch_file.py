"""`.pt`, `.pth`, `.bin`, `.ckpt`: what `torch.save` writes, opened with the safe loader."""

from __future__ import annotations

import argparse
import re
import threading
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..arrays import Array, from_torch
from ..errors import CheckpointError, unreadable
from ..tensors import TensorInfo
from .container import require_content
from .foreign import refuse_foreign_archive
from .mapped import copied
from .payload import Payload, describe_payload, find_state_dict, step_in
from .pickles import globals_in

# A mapping keeps every page it touched in memory, so it is opened anew after this many bytes were handed out.
REOPEN_AFTER = 64 * 2**20
ZIP_START = b"PK\x03\x04"
# What every file of torch.save asks for.
HARMLESS = re.compile(r"torch\.\w+$|torch\._utils\.|torch\.storage\.|collections\.OrderedDict$|numpy\.(_?core\.|dtype)")

# What a refused pickle is, by the names that it asks for, and what to do about it.
SHARDS = (
    "holds the shards of one process",
    "Save the full state dict, or all of it with torch.distributed.checkpoint, which is read here. ",
)
WHOLE_MODEL = ("holds a whole pickled model, not a state dict", "Save model.state_dict() instead. ")
KNOWN_REQUESTS = {
    "torch.distributed.tensor.": SHARDS,
    "torch.distributed._tensor.": SHARDS,
    "torch.distributed._shard.": SHARDS,
    "torch.nn.modules.": WHOLE_MODEL,
}
REFUSED = ("was refused by the safe loader", "")

_scalar = np.float64(0).__reduce__()[0]
# NumPy scalars (a best loss, a step) and the arguments of a script: common, and they run nothing.
SAFE = [
    (_scalar, "numpy.core.multiarray.scalar"),  # both homes of it are named in files
    (_scalar, "numpy._core.multiarray.scalar"),
    np.dtype,
    *{type(np.dtype(code)) for code in "?bhilqBHILQefd"},
    argparse.Namespace,
]
# torch keeps what is safe in one list for the whole process.
_list_of_torch = threading.Lock()


class TorchFile:
    """One file written by `torch.save`: zip files are memory-mapped, legacy pickles are loaded whole."""

    ordered = True

    def __init__(self, path: Path, trust_pickle: bool = False) -> None:
        self.path = path
        self._trust_pickle = trust_pickle
        self._lock = threading.Lock()
        self._payload: Any = None
        self._found: Payload | None = None
        self._handed_out = 0
        require_content(path)
        self._is_zip = _is_zip(path)
        if self._is_zip:
            refuse_foreign_archive(path)
        elif _begins_as_zip(path):
            raise CheckpointError(path, "is truncated: an archive without its end; copy or save it again")

    def tensors(self) -> list[TensorInfo]:
        with self._lock:
            found = self._state_dict()
            return describe_payload(found)

    def load(self, name: str, index: int | None = None) -> Array:
        with self._lock:
            if self._is_zip and self._handed_out > REOPEN_AFTER:
                self._payload = self._found = None
            tensor: torch.Tensor = self._state_dict().all[name]
            tensor = tensor.detach() if index is None else tensor.detach()[index]
            self._handed_out += tensor.nbytes
            try:
                return from_torch(copied(tensor) if self._is_zip else tensor.clone())
            except OSError as error:
                raise CheckpointError(self.path, f"{name} {unreadable(error)}") from error

    def step(self) -> int | None:
        with self._lock:
            return step_in(self._read())

    def files(self) -> list[Path]:
        return [self.path]

    def _state_dict(self) -> Payload:
        payload = self._read()
        if isinstance(payload, torch.nn.Module):  # only where the user trusts the file
            payload = payload.state_dict()
        if self._found is None:
            self._found = find_state_dict(payload, self.path)
        return self._found

    def _read(self) -> Any:
        if self._payload is None:
            self._payload, self._found = self._load_file(), None
            self._handed_out = 0
        return self._payload

    def _load_file(self) -> Any:
        try:
            with _list_of_torch, torch.serialization.safe_globals(SAFE):
                if self._is_zip and _torch_can_map(self.path):
                    return torch.load(self.path, map_location="cpu", weights_only=not self._trust_pickle, mmap=True)
                with self.path.open("rb") as file:
                    return torch.load(file, map_location="cpu", weights_only=not self._trust_pickle)
        except MemoryError:
            raise
        except Exception as error:  # a pickle can fail with any exception; each is a fault of the file
            raise CheckpointError(self.path, _cause(self.path, error)) from error


def _any_begins(names: list[str], start: str) -> bool:
    return any(name.startswith(start) for name in names)


def _is_zip(path: Path) -> bool:
    try:
        return zipfile.is_zipfile(path)
    except Exception:  # a damaged directory of the archive; torch.load will say so
        return False


def _begins_as_zip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(ZIP_START)) == ZIP_START


def _torch_can_map(path: Path) -> bool:
    """torch maps files by names in UTF-8, which some names under another locale are not."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True


def _cause(path: Path, error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"cannot be read ({error.strerror})"
    if asked := [name for name in globals_in(path) if not HARMLESS.match(name)]:
        what, advice = next((one for name, one in KNOWN_REQUESTS.items() if _any_begins(asked, name)), REFUSED)
        return (
            f"{what}: it asks for {', '.join(f'`{name}`' for name in asked[:3])}, which could run any code. "
            f"{advice}If you trust whoever made the file, --trust-pickle loads it all the same"
        )
    text = re.split(r"WeightsUnpickler error:\s*", str(error))[-1].strip()
    first_line = text.splitlines()[0] if text and not isinstance(error, KeyError) else type(error).__name__
    return f"is truncated, damaged or not written by torch.save ({first_line[:200]})"
