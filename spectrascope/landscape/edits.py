"""Changes of a checkpoint's tensors that are made as they are read: no second copy of the checkpoint is held."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ..arrays import Array
from ..checkpoints import Checkpoint
from ..matrices import Matrix

Edit = Callable[[Array], Array]


class Edited:
    """A checkpoint of which some tensors are changed.

    Parameters: `edits` are by the names of tensors; one gives a new array and leaves what it is given as it is. Tied
    tensors are changed alike.
    """

    def __init__(self, checkpoint: Checkpoint, edits: Mapping[str, Edit]) -> None:
        self._checkpoint = checkpoint
        self._edits = edits

    def load(self, name: str) -> Array:
        """The tensor of this name, changed where it is to be. Raises CheckpointError."""
        edit = self._edits.get(self._checkpoint.tied.get(name, name))
        array = self._checkpoint.load(name)
        return array if edit is None else edit(array)


def masked(mask: Array) -> Edit:
    """Zero wherever the mask, of the tensor's shape, is False."""
    return lambda array: np.where(mask, array, array.dtype.type(0))


def matrix_by_matrix(matrices: list[Matrix], change: Callable[[Matrix, Array], Array]) -> Edit:
    """Change each of the matrices that are cut from a tensor."""

    def edit(tensor: Array) -> Array:
        changed = tensor.copy()
        for matrix in matrices:
            matrix.put(change(matrix, matrix_in(tensor, matrix)), changed)
        return changed

    return edit


def matrix_in(tensor: Array, matrix: Matrix) -> Array:
    """A matrix out of the tensor that it is cut from: (out, in), of a depthwise convolution its filters (c, k)."""
    return matrix.of(matrix.cut(lambda name, index: tensor if index is None else tensor[index]))
