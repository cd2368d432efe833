"""Arrays and tensors: the same numbers, types and bytes on either side."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

from spectrascope.arrays import as_array, count_zeros, dtype_named, from_torch, raw_bytes, to_torch

BOTH = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.int64, torch.bool]
FLOATS = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64, ml_dtypes.float8_e5m2]
EIGHT_BITS = [torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz]


@pytest.mark.parametrize("dtype", [*BOTH, *EIGHT_BITS, torch.complex64], ids=str)
def test_there_and_back(dtype: torch.dtype) -> None:
    tensor = (torch.arange(12.0).reshape(3, 4) - 3).to(dtype).T
    array = from_torch(tensor)
    assert array.dtype == dtype_named(str(dtype).removeprefix("torch."))
    assert array.shape == (4, 3)
    assert raw_bytes(array) == tensor.contiguous().view(torch.uint8).reshape(-1).numpy().data
    assert to_torch(array).dtype == dtype
    assert raw_bytes(from_torch(to_torch(array))) == raw_bytes(array)
    if dtype not in (torch.bool, torch.complex64):
        assert np.array_equal(array.astype(np.float64), tensor.double().numpy())


def test_no_copy_is_made_and_read_only_memory_is_left_alone() -> None:
    tensor = torch.ones(3, dtype=torch.bfloat16)
    array = from_torch(tensor.requires_grad_())
    array[0] = 7
    assert tensor[0].item() == 7
    array.flags.writeable = False
    to_torch(array)[1] = 9
    assert tensor[1].item() == 1


def test_what_numpy_has_no_type_for_keeps_its_bytes() -> None:
    tensor = torch.tensor([1 + 2j], dtype=torch.complex32)
    assert raw_bytes(from_torch(tensor)) == tensor.view(torch.int32).numpy().data.cast("B")
    assert np.array_equal(from_torch(torch.tensor([1 + 2j]).conj()), [1 - 2j])
    assert dtype_named("unknown") is None
    with pytest.raises(TypeError, match="torch has no float8_e3m4"):
        to_torch(np.ones(2, ml_dtypes.float8_e3m4))
    assert np.array_equal(as_array([[1, 2]]), [[1, 2]])


@pytest.mark.parametrize("dtype", [*FLOATS, np.int16])
def test_zeros_of_either_sign_are_counted(dtype: type) -> None:
    numbers = np.array([[0.0, -0.0, 1.0], [-2.0, 2.0**-14, 0.0]]).astype(dtype)
    zeros = 4 if dtype is np.int16 else 3
    assert count_zeros(numbers) == count_zeros(numbers.T) == count_zeros(numbers[:, ::-1]) == zeros
