"""The registry: which reader opens which suffix."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ..errors import CheckpointError
from .container import Container
from .foreign import foreign_by_name
from .npz_file import NpzFile
from .safetensors_file import SafetensorsFile


def _torch_file(path: Path, trust_pickle: bool) -> Container:
    from .torch_file import TorchFile  # torch is imported for the files that it wrote alone

    return TorchFile(path, trust_pickle)


# suffix -> (path, trust_pickle) -> container
FORMATS: dict[str, Callable[[Path, bool], Container]] = {
    ".safetensors": lambda path, trust_pickle: SafetensorsFile(path),
    ".pt": _torch_file,
    ".pth": _torch_file,
    ".bin": _torch_file,
    ".ckpt": _torch_file,
    ".pth.tar": _torch_file,  # what PyTorch's own examples call a checkpoint; not a tar archive
    ".pt.tar": _torch_file,
    ".npz": lambda path, trust_pickle: NpzFile(path),
}


def open_file(path: Path, trust_pickle: bool = False) -> Container:
    """The container of one weight file, by its suffix. Raises CheckpointError."""
    suffix = format_of(path)
    foreign = foreign_by_name(path) if suffix is None else None
    if foreign is not None:
        raise foreign.refusal(path)
    if suffix is None:
        raise CheckpointError(path, f"is not a checkpoint format that is read here ({', '.join(FORMATS)})")
    return FORMATS[suffix](path, trust_pickle)


def format_of(path: Path) -> str | None:
    """The suffix in FORMATS that a name ends in, None if there is none."""
    return next((suffix for suffix in FORMATS if path.name.lower().endswith(suffix)), None)
