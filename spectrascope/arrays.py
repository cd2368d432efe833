"""The numbers of a tensor as a NumPy array, whatever its type; torch's tensors are turned into one and back.

NumPy has neither bfloat16 nor floats of 8 bits: ml_dtypes adds them, under the names that torch gives them. So nothing
but a file of torch's own, a GPU or a model needs torch, whose import takes longer than a small checkpoint's analysis.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

Array = NDArray[Any]
# Above 32 MiB the C library asks the system for each block anew, and filling fresh pages takes longer than upcasting.
BLOCK_BYTES = 16 * 2**20


def dtype_named(name: str) -> np.dtype[Any] | None:
    """The type of this name ("bfloat16"), None where there is none."""
    try:
        found = np.dtype(getattr(ml_dtypes, name, name))
    except TypeError:
        return None
    return None if found.hasobject else found


def from_torch(tensor: torch.Tensor) -> Array:
    """A tensor's numbers, of the same memory where it is the CPU's. A type that NumPy lacks comes as raw integers."""
    import torch

    tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
    name = str(tensor.dtype).removeprefix("torch.")
    if hasattr(np, name):
        return np.asarray(tensor.numpy())
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[tensor.element_size()]
    raw = np.asarray(tensor.view(integers).numpy())
    dtype = dtype_named(name)
    return raw if dtype is None else raw.view(dtype)


def to_torch(array: Array) -> torch.Tensor:
    """An array as a tensor on the CPU, of the same memory unless it is read-only. Raises TypeError for other types."""
    import torch

    if not array.flags.writeable:
        array = array.copy()
    if hasattr(np, array.dtype.name):
        return torch.from_numpy(array)
    dtype = getattr(torch, array.dtype.name, None)
    if dtype is None:
        raise TypeError(f"torch has no {array.dtype.name}")
    integers = {1: np.uint8, 2: np.int16}[array.dtype.itemsize]
    return torch.from_numpy(array.view(integers)).view(dtype)


def as_array(numbers: Any) -> Array:
    """An array as it is, a tensor's numbers, or an array of whatever else NumPy understands."""
    return from_torch(numbers) if hasattr(numbers, "untyped_storage") else np.asarray(numbers)


def raw_bytes(array: Array) -> memoryview:
    """An array's bytes in row-major order, copied only where its memory is in another one."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def row_blocks(array: Array, item_bytes: int = 8) -> Iterator[Array]:
    """Views of some rows at a time, from the first on: copies of them of `item_bytes` a number stay small."""
    rows = max(1, BLOCK_BYTES * len(array) // max(1, item_bytes * array.size))
    for start in range(0, len(array), rows):
        yield array[start : start + rows]


def energy(array: Array) -> float:
    """The sum of the squares of all numbers, in float64."""
    return sum(float(np.square(block.astype(np.float64)).sum()) for block in row_blocks(array))


def count_zeros(array: Array) -> int:
    """How many numbers are exactly zero, 0.0 or -0.0."""
    if array.dtype.itemsize == 2 and array.dtype.kind in "fV" and array.flags.c_contiguous:
        # Ten times as fast as comparing halves: all but the bit of the sign.
        return array.size - int(np.count_nonzero(array.view(np.uint16) << 1))
    return array.size - int(np.count_nonzero(array))
