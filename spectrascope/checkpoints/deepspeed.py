"""Directories of DeepSpeed: recognised; read where a whole copy of the weights is there, else refused."""

from __future__ import annotations

from pathlib import Path

from ..errors import CheckpointError
from ..words import counted

LATEST = "latest"
LONGEST_NAME = 1000
STATES = "_model_states.pt"
# Without ZeRO-3 and model parallelism this file holds all weights, in the precision of training.
WHOLE = "mp_rank_00_model_states.pt"


def deepspeed_directory(path: Path) -> Path | None:
    """The directory of states that a directory of DeepSpeed is, or names in its file `latest`; None if it is none."""
    if any(path.glob(f"*{STATES}")):
        return path
    try:
        latest = path / LATEST
        if not latest.is_file():
            return None
        with latest.open(encoding="utf-8") as file:
            named = path / file.read(LONGEST_NAME).strip()
        return named if named.parent == path and named != path and any(named.glob(f"*{STATES}")) else None
    except (OSError, ValueError):
        return None


def whole_weights(states: Path) -> Path:
    """The file of a DeepSpeed directory that holds all weights. Raises CheckpointError where they are partitioned."""
    files = sorted(file.name for file in states.glob(f"*{STATES}"))
    if files == [WHOLE]:
        return states / WHOLE
    count = counted(len(files), "file")
    home = states.parent if (states.parent / LATEST).exists() else states
    raise CheckpointError(
        states,
        f"is a DeepSpeed checkpoint whose weights are partitioned over {count}; {consolidate(home)}",
    )


def consolidate(home: Path | str) -> str:
    """What to do with partitioned weights."""
    return (
        f"consolidate them first (`python {home}/zero_to_fp32.py {home} OUT`, a script that DeepSpeed puts there) and "
        "analyse OUT"
    )
