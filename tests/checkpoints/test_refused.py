"""What is recognised and refused by name, with the way to convert."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import FORMATS, mat, run_cli
from safetensors.torch import save_file

from spectrascope.checkpoints import Checkpoint, find_checkpoints
from spectrascope.errors import CheckpointError


def open_all(source: Path) -> list[Checkpoint]:
    return [Checkpoint(reference.open()[0]) for reference in find_checkpoints([source]).references]


FOREIGN = [
    ("keras3/model.keras", "a Keras or HDF5 file", "keras.models.load_model"),
    ("keras3/model.weights.h5", "a file of Keras weights", "model.load_weights"),
    ("gguf/model.gguf", "a GGUF file", "gguf.GGUFReader"),
    ("onnx/model.onnx", "an ONNX graph", "onnx.load"),
    ("flax_msgpack/flax_model.msgpack", "a Flax file", "safetensors.flax"),
    ("torch_export/model.pt2", "a program of torch.export", "torch.export.load"),
]


@pytest.mark.parametrize(("file", "name", "way_out"), FOREIGN)
def test_formats_of_other_frameworks(tmp_path: Path, file: str, name: str, way_out: str) -> None:
    alone = tmp_path / "alone"
    alone.mkdir()
    shutil.copy(FORMATS / file, alone)
    for source in (FORMATS / file, alone):
        with pytest.raises(CheckpointError, match=f"is {name}.* which is not read here") as caught:
            open_all(source)
        assert way_out in caught.value.reason
    # Beside weights that are read, as on the Hugging Face Hub, they are nobody's business.
    save_file({"fc.weight": mat([1.0], 3, 3)}, alone / "model.safetensors")
    assert len(open_all(alone)) == 1


@pytest.mark.parametrize("file", ["keras3/model.keras", "keras3/model.weights.h5", "gguf/model.gguf"])
def test_formats_of_other_frameworks_under_a_name_of_ours(tmp_path: Path, file: str) -> None:
    shutil.copy(FORMATS / file, tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"is a (Keras or HDF5|GGUF) file"):
        open_all(tmp_path)


@pytest.mark.filterwarnings("ignore")
def test_torchscript(tmp_path: Path) -> None:
    torch.jit.trace(torch.nn.Linear(3, 3), torch.ones(1, 3)).save(str(tmp_path / "m.pt"))
    with pytest.raises(CheckpointError, match=r"is a TorchScript program.*torch\.jit\.load\(FILE\)\.state_dict\(\)"):
        open_all(tmp_path / "m.pt")


@pytest.mark.filterwarnings("ignore")
def test_the_ways_to_convert_work(tmp_path: Path) -> None:
    """Those that need no other framework."""
    program = torch.jit.trace(torch.nn.Linear(3, 3), torch.ones(1, 3))
    program.save(str(tmp_path / "m.ts"))
    torch.save(torch.jit.load(tmp_path / "m.ts").state_dict(), tmp_path / "m.pt")
    assert list(open_all(tmp_path / "m.pt")[0].tensors) == ["weight", "bias"]
    exported = torch.export.load(FORMATS / "torch_export" / "model.pt2")
    torch.save(exported.state_dict, tmp_path / "e.pt")
    assert len(open_all(tmp_path / "e.pt")[0].tensors) > 1


def test_steps_in_a_format_of_another_framework_are_failures(tmp_path: Path) -> None:
    save_file({"fc.weight": mat([1.0], 3, 3)}, tmp_path / "step1.safetensors")
    for name in ("step2.h5", "step3.onnx", "notes.npy"):
        (tmp_path / name).write_bytes(b"x")
    assert [reference.step for reference in find_checkpoints([tmp_path]).references] == [1, 2, 3]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["consolidated.00.pth", "consolidated.01.pth"], "holds 2 slices of one model"),
        (["model.ckpt-1000.index", "model.ckpt-1000.data-00000-of-00001"], "is a TensorFlow file"),
        (["_CHECKPOINT_METADATA", "manifest.ocdbt"], "is a checkpoint of Orbax"),
        (["weights.pkl"], r"is a pickle of Python's own, which is not read here; save the arrays with numpy\.savez"),
        (["weights.npy"], "is a single array"),
    ],
)
def test_directories_of_other_tools(tmp_path: Path, files: list[str], message: str) -> None:
    folder = tmp_path / "step5"
    folder.mkdir()
    for name in files:
        (folder / name).write_bytes(b"x")
    for source in (folder, tmp_path):
        with pytest.raises(CheckpointError, match=message):
            open_all(source)


def test_a_whole_model(tmp_path: Path) -> None:
    torch.save(torch.nn.Linear(3, 3), tmp_path / "m.pt")
    with pytest.raises(CheckpointError, match=r"holds a whole pickled model.*Save model\.state_dict\(\) instead"):
        open_all(tmp_path / "m.pt")


def test_shards_of_one_process(tmp_path: Path) -> None:
    """In a process of its own: torch takes the names in such files for safe once its distributed part is imported."""
    result = run_cli("show", FORMATS / "torchsave_dtensor_shards")
    assert result.code == 1
    assert "holds the shards of one process: it asks for `torch" in result.err
    assert "Save the full state dict" in result.err
    import torch.distributed.tensor

    assert torch.distributed.tensor.DTensor  # what an engineer who trains with FSDP2 has imported
    (checkpoint,) = open_all(FORMATS / "torchsave_dtensor_shards")
    assert "a DTensor, not a plain tensor; gather" in str(checkpoint.tensors["fc.weight"].problem)
    assert checkpoint.tensors["fc.weight"].kind == "refused"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("torchsave_fsdp1_flat_params/pytorch_model_fsdp_rank0.bin", "holds the shards of one process"),
        (
            "torchsave_fsdp1_flat_params/named_parameters_rank0.bin",
            r"FSDP has flattened \(.*_flat_param\)",
        ),
        ("deepspeed_zero3", r"partitioned over 2 files; consolidate .*zero_to_fp32\.py"),
        ("deepspeed_zero3/global_step2", r"partitioned over 2 files; consolidate .*zero_to_fp32\.py"),
        (
            "deepspeed_zero3/global_step2/zero_pp_rank_0_mp_rank_00_model_states.pt",
            r"tensors of size 0 and no weights: with DeepSpeed ZeRO-3 .*zero_to_fp32\.py",
        ),
    ],
)
def test_weights_that_are_elsewhere(name: str, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        open_all(FORMATS / name)


def test_deepspeed_without_partitioned_weights_is_read() -> None:
    (checkpoint,) = open_all(FORMATS / "deepspeed_zero2")
    for name, value in np.load(FORMATS / "deepspeed_zero2.npz").items():
        np.testing.assert_array_equal(checkpoint.load(name), value)


def test_the_states_of_deepspeed_beside_weights_of_a_trainer(tmp_path: Path) -> None:
    for step in (2, 4):
        folder = tmp_path / f"checkpoint-{step}"
        shutil.copytree(FORMATS / "deepspeed_zero3", folder)
        save_file({"fc.weight": mat([float(step)], 3, 3)}, folder / "model.safetensors")
    assert [list(one.tensors) for one in open_all(tmp_path)] == [["fc.weight"]] * 2
    assert [list(one.tensors) for one in open_all(tmp_path / "checkpoint-4")] == [["fc.weight"]]


def test_a_file_called_latest_that_is_none_of_deepspeed(tmp_path: Path) -> None:
    save_file({"fc.weight": mat([1.0], 3, 3)}, tmp_path / "step1.safetensors")
    (tmp_path / "step2").mkdir()
    os.mkfifo(tmp_path / "step2" / "latest")
    (tmp_path / "step3").mkdir()
    (tmp_path / "step3" / "latest").write_bytes(b"\xff\xfe" * 10_000)
    assert len(open_all(tmp_path)) == 1


def test_names_without_values(tmp_path: Path) -> None:
    torch.save({"fc.weight": torch.empty(6, 4, device="meta"), "b": torch.ones(3)}, tmp_path / "m.pt")
    with pytest.raises(CheckpointError, match=r"names and shapes without values: 1 meta tensor, fc\.weight the first"):
        open_all(tmp_path / "m.pt")


def test_an_expanded_view_is_not_analysed(tmp_path: Path) -> None:
    torch.save({"big": torch.ones(1).expand(10**6, 10**6), "w": torch.eye(3)}, tmp_path / "m.pt")
    (checkpoint,) = open_all(tmp_path / "m.pt")
    assert "1 stored numbers stand for 1,000,000,000,000" in str(checkpoint.tensors["big"].problem)


def test_a_payload_without_end(tmp_path: Path) -> None:
    """A pickle of a few kilobytes can nest dicts more often than there is time to follow."""
    inner: dict[str, object] = {"w": torch.eye(3)}
    for _ in range(60):
        inner = {"a": inner, "b": inner}
    torch.save(inner, tmp_path / "m.pt")
    with pytest.raises(CheckpointError, match="nests dicts without end"):
        open_all(tmp_path / "m.pt")
    average: dict[str, object] = {"w": torch.eye(3)}
    for _ in range(60):
        average = {"ema": average, "swa": average}
    torch.save(average, tmp_path / "m.pt")
    with pytest.raises(CheckpointError, match="nests dicts without end"):
        open_all(tmp_path / "m.pt")
    laughs: list[object] = [1]
    for _ in range(60):
        laughs = [laughs, laughs]
    itself: dict[str, object] = {"fc.weight": torch.eye(3), "log": laughs}
    itself["again"] = itself
    torch.save(itself, tmp_path / "m.pt")
    with pytest.raises(CheckpointError, match="nests dicts without end"):
        open_all(tmp_path / "m.pt")
    del itself["again"]
    torch.save(itself, tmp_path / "m.pt")
    assert "fc.weight" in open_all(tmp_path / "m.pt")[0].tensors
