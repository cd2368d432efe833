"""Changes of a checkpoint's tensors that are made as they are read: no second copy of the checkpoint is held."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ..arrays import Array, row_blocks
from ..checkpoints import Checkpoint
from ..matrices import Matrix

Edit = Callable[[Array], Array]


class Edited:
    """A checkpoint of which some tensors are changed.

    Parameters: `edits` are by the names of tensors; one may change the array that it is given, and gives it or another.
    `tied` gives for a name the one whose edit is its own too.
    """

    def __init__(self, checkpoint: Checkpoint, edits: Mapping[str, Edit], tied: Mapping[str, str]) -> None:
        self._checkpoint = checkpoint
        self._edits = edits
        self._tied = tied

    def load(self, name: str) -> Array:
        """The stored tensor of this name, changed where it is to be. Raises CheckpointError."""
        return self.edit(name, self._checkpoint.load_stored(name))

    def edit(self, name: str, array: Array) -> Array:
        """What becomes of a tensor that has been read."""
        edit = self._edits.get(self._tied.get(name, name))
        return array if edit is None else edit(array)


def masked(mask: Array) -> Edit:
    """Zero wherever the mask, of the tensor's shape, is False."""

    def edit(array: Array) -> Array:
        for kept, block in zip(row_blocks(mask, array.itemsize), row_blocks(array, array.itemsize), strict=True):
            np.copyto(block, array.dtype.type(0), where=~kept)
        return array

    return edit


def matrix_by_matrix(matrices: list[Matrix], change: Callable[[Matrix, Array], Array]) -> Edit:
    """Change each of the matrices that are cut from a tensor."""

    def edit(tensor: Array) -> Array:
        for matrix in matrices:
            matrix.put(change(matrix, matrix_in(tensor, matrix)), tensor)
        return tensor

    return edit


def matrix_in(tensor: Array, matrix: Matrix) -> Array:
    """A matrix out of the tensor that it is cut from: (out, in), of a depthwise convolution its filters (c, k)."""
    return matrix.of(matrix.cut(lambda name, index: tensor if index is None else tensor[index]))
