"""What a checkpoint says of a tensor before anything of it is read."""

from __future__ import annotations

import re
from collections.abc import Hashable
from dataclasses import dataclass
from math import prod
from typing import Literal

FLOATS = ("float16", "bfloat16", "float32", "float64")
FLOATS_OF_8_BITS = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
# What an effective weight can be made of.
CODES = (*FLOATS_OF_8_BITS, "int8")

# parameter: of the model. part: kept beside others, and one effective tensor is made of them. average: an averaged copy
# (EMA) of a parameter. refused: codes of parameters that are not read as numbers. other: no tensor of the model.
Kind = Literal["parameter", "part", "average", "refused", "other"]


@dataclass(frozen=True)
class TensorInfo:
    """A tensor as the checkpoint lists it, before anything is read.

    `dtype` is torch's name without "torch."; `storage` is equal for tensors that share memory, None where the
    format cannot tell; `problem` says why the values cannot be had as they are (meta, sparse), else None; `made_of`
    says how an effective weight comes of what is stored, None for one that is stored as it is; `packed` is how many
    parameters one stored number holds, as codes of few bits do.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    storage: Hashable = None
    problem: str | None = None
    kind: Kind = "parameter"
    made_of: str | None = None
    packed: int = 1
    is_meta: bool = False

    @property
    def size(self) -> int:
        """How many numbers it holds."""
        return prod(self.shape)

    @property
    def holds_weights(self) -> bool:
        """Whether its numbers count as parameters: floats, and the 8-bit integers that quantised weights are."""
        if self.kind == "refused" or self.made_of is not None:
            return True
        is_number = self.dtype in (*FLOATS, *CODES, "uint8") or self.dtype.startswith("complex")
        return self.kind == "parameter" and is_number


def natural_key(text: str) -> list[tuple[int, int, str]]:
    """A key that sorts layer 10 after layer 9."""
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", text) if part]
