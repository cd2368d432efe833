"""Weights stored as codes: 8 bits with a scale are dequantised, fewer are refused by name."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, prod

import numpy as np

from ...arrays import Array
from ...tensors import FLOATS, FLOATS_OF_8_BITS, TensorInfo
from .rules import Beside, Effective, Refused, Tensors, beside_name

WAY_OUT = "analyse the model that was quantised, or dequantise it (`model.dequantize()` in transformers) and save it"
CONFIG = "config.json"
SCALE = re.compile(r"(?:^|[._])scales?(?:_\w+)?$")
# Blocks of DeepSeek's and Qwen's float8 weights (`weight_scale_inv`), where config.json does not say.
USUAL_BLOCK = 128


@dataclass(frozen=True)
class Scheme:
    """A way to pack codes of few bits: the tensor of codes, what must stand beside it, and all that belongs to it."""

    name: str
    codes: re.Pattern[str]
    requires: tuple[str, ...]
    parts: tuple[str, ...]
    packed: int


BITSANDBYTES = re.compile(r"(.+?)\.(?:quant_state\..+|(?:nested_)?(?:absmax|quant_map))$")
SCHEMES = [
    Scheme("GPTQ", re.compile(r"(.*\.)?qweight$"), ("{0}g_idx",), ("{0}scales", "{0}g_idx", "{0}qzeros"), 8),
    Scheme("AWQ", re.compile(r"(.*\.)?qweight$"), ("{0}scales",), ("{0}scales", "{0}qzeros"), 8),
    Scheme("compressed-tensors", re.compile(r"(.*)_packed$"), (), ("{0}_scale", "{0}_shape", "{0}_zero_point"), 8),
    Scheme("MXFP4", re.compile(r"(.*)_blocks$"), ("{0}_scales",), ("{0}_scales",), 2),
    Scheme("HQQ", re.compile(r"(.*\.)?W_q$"), (), ("{0}scale", "{0}zero", "{0}meta"), 2),
    Scheme("Marlin", re.compile(r"(.*\.)?B$"), ("{0}s",), ("{0}s", "{0}workspace"), 8),
    Scheme(
        "EXL2", re.compile(r"(.*\.)?q_weight$"), ("{0}q_scale",), ("{0}q_scale", "{0}q_scale_max", "{0}q_groups"), 8
    ),
    Scheme("AQLM", re.compile(r"(.*\.)?codes$"), ("{0}codebooks",), ("{0}codebooks", "{0}scales"), 1),
    Scheme("torchao", re.compile(r"(.*)_qdata$"), (), ("{0}_scale", "{0}_zero_point"), 1),
    Scheme("quanto", re.compile(r"(.*)\._data$"), ("{0}._scale",), ("{0}._scale", "{0}._shift"), 1),
]


def four_bit_codes(tensors: Tensors, beside: Beside) -> Iterator[Effective | Refused]:
    """GPTQ, AWQ, bitsandbytes 4-bit and others of their kind: recognised by their names, never read as numbers."""
    seen: set[str] = set()
    of_bitsandbytes: defaultdict[str, list[str]] = defaultdict(list)
    for name in tensors:
        if found := BITSANDBYTES.match(name):
            of_bitsandbytes[found[1]].append(name)
    for name, info in tensors.items():
        if any(".quant_state." in part for part in of_bitsandbytes.get(name, ())):
            reason = f"bitsandbytes codes of 4 bits; {WAY_OUT}"
            yield Refused(name, reason, tuple(of_bitsandbytes[name]), packed=2)
            continue
        for scheme in SCHEMES:
            found = scheme.codes.match(name)
            if found is None or name in seen or info.dtype in FLOATS:
                continue
            stem = found[1] or ""
            if all(one.format(stem) in tensors for one in scheme.requires):
                seen.add(name)
                parts = tuple(part for one in scheme.parts if (part := one.format(stem)) in tensors)
                packed = 1 if info.dtype == "int8" else scheme.packed
                yield Refused(name, f"{scheme.name} codes; {WAY_OUT}", parts, packed)


def scaled_codes(tensors: Tensors, beside: Beside) -> Iterator[Effective | Refused]:
    """int8 of bitsandbytes, codes * SCB / 127 per row; float8 and int8 times a scale: one, one a row, or one a block.

    float8 is a number as it is: without a scale it is read as stored, and marked.
    """
    for name, info in tensors.items():
        is_float8 = info.dtype in FLOATS_OF_8_BITS and not SCALE.search(name)
        if len(info.shape) < 2 or not (is_float8 or (info.dtype in ("int8", "uint8") and name.endswith("weight"))):
            continue
        row_sizes = tensors.get(beside_name(name, "SCB"))
        scale = _scale_of(name, tensors)
        if row_sizes is not None and info.dtype == "int8":
            yield _of_bitsandbytes(info, row_sizes, tensors, beside)
        elif scale is not None:
            yield _scaled(info, scale, tensors, beside)
        elif is_float8:
            made_of = f"{info.dtype}, no scale in the file"
            yield Effective(replace(info, made_of=made_of), (name,), _as_float32)
        else:
            yield Refused(name, f"{info.dtype} codes, and no scale (SCB, weight_scale) in the file; {WAY_OUT}")


def _of_bitsandbytes(info: TensorInfo, scb: TensorInfo, tensors: Tensors, beside: Beside) -> Effective | Refused:
    layout = beside_name(info.name, "weight_format")
    also = (layout,) if layout in tensors else ()
    if also and tensors[layout].size == 1 and int(beside.load(layout).item()) != 0:
        reason = f"int8 codes in the order of a GPU's tiles, not of rows; {WAY_OUT}"
        return Refused(info.name, reason, (scb.name, *also))
    if scb.size != info.shape[0]:
        return Refused(info.name, f"int8 codes of {info.shape[0]} rows with {scb.size} scales (SCB)", (scb.name, *also))
    effective = replace(info, storage=None, made_of="int8 * SCB / 127")
    return Effective(effective, (info.name, scb.name), _times_row_sizes, also)


def _scale_of(name: str, tensors: Tensors) -> TensorInfo | None:
    names = (f"{name}_scale", f"{name}_scale_inv", beside_name(name, "scale_weight"))
    return next((tensors[one] for one in names if one in tensors), None)


def _scaled(info: TensorInfo, scale: TensorInfo, tensors: Tensors, beside: Beside) -> Effective | Refused:
    zero = f"{info.name}_zero_point"
    second = f"{info.name}_scale_2"
    names = (zero, second, beside_name(info.name, "input_scale"), beside_name(info.name, "scale_input"))
    also = tuple(name for name in names if name in tensors)
    block = _block(info, scale, beside)
    shape = _scale_shape(info.shape, scale.shape, block)
    if info.dtype == "uint8":
        reason = f"uint8 codes, of which the file does not tell the kind; {WAY_OUT}"
        return Refused(info.name, reason, (scale.name, *also))
    if shape is None or scale.dtype not in (*FLOATS, "float8_e8m0fnu") or second in also:
        sizes = "x".join(map(str, scale.shape))
        return Refused(info.name, f"{info.dtype} codes with a scale of {sizes} that does not fit", (scale.name, *also))
    if zero in also:
        return Refused(info.name, f"{info.dtype} codes with a zero point; {WAY_OUT}", (scale.name, *also))
    made_of = f"{info.dtype} * {scale.name.rpartition('.')[2]}"
    make = partial(_times_scale, scale_shape=shape, block=block)
    return Effective(replace(info, storage=None, made_of=made_of), (info.name, scale.name), make, also)


def _block(info: TensorInfo, scale: TensorInfo, beside: Beside) -> tuple[int, ...]:
    """How many rows and columns share a scale where there is one a block; 1 and 1 where that is not known."""
    quantisation = (beside.json(CONFIG) or {}).get("quantization_config")
    stated = quantisation.get("weight_block_size") if isinstance(quantisation, dict) else None
    sizes = stated if isinstance(stated, list) and all(isinstance(one, int) and one > 0 for one in stated) else []
    if sizes:
        beside.used[CONFIG] = None
    usual = USUAL_BLOCK if scale.name.endswith("_scale_inv") else 1
    return (1,) * (len(info.shape) - 2) + tuple(sizes[:2] if len(sizes) == 2 else (usual, usual))


def _scale_shape(shape: tuple[int, ...], scale: tuple[int, ...], block: tuple[int, ...]) -> tuple[int, ...] | None:
    """The scale's shape with an axis for each of the weight's, None where it does not fit."""
    if prod(scale) == 1:
        return (1,) * len(shape)
    full = scale + (1,) * (len(shape) - len(scale))  # one a row, or one a matrix of a stack
    fits = len(full) == len(shape) and all(
        count in (1, size, ceil(size / each)) for count, size, each in zip(full, shape, block, strict=True)
    )
    return full if fits else None


def _as_float32(codes: Array) -> Array:
    return codes.astype(np.float32)


def _times_row_sizes(codes: Array, scb: Array) -> Array:
    weight = codes.astype(np.float64)
    weight *= scb.astype(np.float64).ravel()[:, None] / 127
    return weight


def _times_scale(codes: Array, scale: Array, scale_shape: tuple[int, ...], block: tuple[int, ...]) -> Array:
    """The codes in float64, scaled in place: rows of blocks at a time, so that no scale of full size is made."""
    weight = codes.astype(np.float64)
    scale = scale.astype(np.float64).reshape(scale_shape)
    columns, size = scale_shape[-1], weight.shape[-1]
    if columns not in (1, size):
        scale = scale.repeat(block[-1], axis=-1)[..., :size]
    rows, height = scale_shape[-2], block[-2]
    if rows in (1, weight.shape[-2]):
        weight *= scale
        return weight
    for row in range(rows):
        weight[..., row * height : (row + 1) * height, :] *= scale[..., row : row + 1, :]
    return weight
