"""Names without values: what DeepSpeed, FSDP and meta tensors leave in a file in place of weights."""

from __future__ import annotations

import re
from collections.abc import Iterable
from os import PathLike

from ..errors import CheckpointError
from ..tensors import FLOATS, TensorInfo
from ..words import counted
from .deepspeed import consolidate

FLAT = re.compile(r"(?:^|\.)_?flat_param(?:_\d+)?$")
GATHER_FSDP = (
    "save it with StateDictType.FULL_STATE_DICT, or sharded through torch.distributed.checkpoint, which is read here"
)


def refuse_without_values(path: str | PathLike[str], tensors: Iterable[TensorInfo]) -> None:
    """Raises CheckpointError for a checkpoint whose weights are elsewhere; some empty tensors among others are none."""
    floats = [info for info in tensors if info.dtype in FLOATS and info.kind in ("parameter", "average")]
    flat = [info.name for info in floats if FLAT.search(info.name)]
    if flat:
        raise CheckpointError(
            path, f"holds parameters that FSDP has flattened ({flat[0]}), without their shapes; {GATHER_FSDP}"
        )
    if any(len(info.shape) > 1 and info.size and info.problem is None for info in floats):
        return
    meta = [info for info in floats if info.is_meta]
    if meta:
        raise CheckpointError(
            path,
            f"holds names and shapes without values: {counted(len(meta), 'meta tensor')}, {meta[0].name} the first; "
            "load the model's weights before it is saved",
        )
    empty = [info for info in floats if info.size == 0]
    if empty and len(empty) >= len(floats) - len(empty):
        raise CheckpointError(
            path,
            f"holds {counted(len(empty), 'tensor')} of size 0 and no weights: with DeepSpeed ZeRO-3 the weights are "
            f"partitioned over other files; {consolidate('CHECKPOINT_DIRECTORY')}",
        )
