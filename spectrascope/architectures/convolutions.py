"""How a convolution, or the Linear after one, reads the channels before it: at the centre of its window (SPEC 3)."""

from __future__ import annotations

from math import isqrt, prod

from .layers import Layer
from .pairs import Pair, Side, Slice, make_pair


def centre(kernel: tuple[int, ...]) -> int:
    """The place of the centre, [h // 2, w // 2], in a window that is laid out row by row."""
    place = 0
    for size in kernel:
        place = place * size + size // 2
    return place


def chain(kind: str, writer: Layer, reader: Layer, guessed: bool = False) -> Pair:
    """U of the writer with V of the reader at the centre; the filters of a depthwise one are in no such pair."""
    one, other = Side(writer.name, "left"), Side(reader.name, "right")
    kernel = reader.kernel or spatial_size(writer, reader)
    if kernel is None:
        reason = f"{reader.name} reads {reader.shape[1]} numbers, {writer.shape[0]} channels of no square image"
        return Pair(kind, one, other, guessed, reason)
    if prod(kernel) > 1:
        other = Side(reader.name, "right", Slice(centre(kernel), None, prod(kernel)))
    return make_pair(kind, (one, writer), (other, reader), guessed)


def spatial_size(writer: Layer, reader: Layer) -> tuple[int, ...] | None:
    """The size of the image that a Linear reads of a convolution, () where it reads each channel once.

    None where that is no square (or, after a 1-D convolution, no length).
    """
    if not writer.kernel or reader.shape[1] % writer.shape[0]:
        return ()  # of different widths, which the pair says
    size = reader.shape[1] // writer.shape[0]
    if size == 1:
        return ()
    dimensions = len(writer.kernel)
    if dimensions == 1:
        return (size,)
    edge = isqrt(size) if dimensions == 2 else round(size ** (1 / 3))
    return (edge,) * dimensions if edge**dimensions == size else None


def fits_chain(writer: Layer, reader: Layer) -> bool:
    """Whether the one can feed the other by their sizes."""
    if reader.kernel:
        return bool(writer.kernel) and reader.width_in == writer.shape[0]
    if writer.kernel:
        return reader.shape[1] % writer.shape[0] == 0
    return reader.shape[1] == writer.shape[0]
