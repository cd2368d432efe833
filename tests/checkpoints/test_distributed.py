"""Directories of torch.distributed.checkpoint are read in one process; a hostile `.metadata` runs nothing."""

from __future__ import annotations

import collections
import os
import pickle
import resource
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from conftest import FORMATS, equal, mat

from spectrascope.checkpoints import Checkpoint, find_checkpoints
from spectrascope.checkpoints.metadata import Chunk, Place, _tile
from spectrascope.errors import CheckpointError

pytestmark = pytest.mark.filterwarnings("ignore")


def only(source: Path) -> Checkpoint:
    (reference,) = find_checkpoints([source]).references
    return Checkpoint(reference.open()[0])


def written(directory: Path, state: dict[str, Any]) -> Path:
    dcp.save(state, checkpoint_id=str(directory), no_dist=True)
    return directory


MODEL = {"fc.weight": mat([3.0, 1.0], 6, 4), "fc.bias": torch.zeros(6), "half.weight": mat([2.0], 5, 3).bfloat16()}


@pytest.mark.parametrize("name", ["dcp_fsdp2", "dcp_dtensor_colshard", "accelerate_fsdp2"])
def test_shards_of_two_processes(name: str) -> None:
    checkpoint = only(FORMATS / name)
    expected = np.load(FORMATS / f"{name}.npz")
    for key in expected:
        np.testing.assert_array_equal(checkpoint.load(key), expected[key])
    assert {info.kind for key, info in checkpoint.tensors.items() if key not in expected} <= {"other", "parameter"}


def test_the_model_is_found_and_the_step(tmp_path: Path) -> None:
    source = written(tmp_path / "last", {"model": MODEL, "optim": {"exp_avg": torch.randn(6, 4)}, "step": 20})
    (reference,) = find_checkpoints([source]).references
    assert reference.step == 20
    checkpoint = Checkpoint(reference.open()[0])
    assert {name for name, info in checkpoint.tensors.items() if info.kind == "parameter"} == set(MODEL)
    for name, tensor in MODEL.items():
        assert equal(checkpoint.load(name), tensor)
    assert checkpoint.tensors["optim"].problem == "beside the model, which is under model"
    assert [name for name, _, _ in checkpoint.stamp] == [".metadata", "__0_0.distcp"]


def test_a_flat_state_dict(tmp_path: Path) -> None:
    assert set(only(written(tmp_path / "x", dict(MODEL))).tensors) == set(MODEL)


def test_names_that_were_never_nested(tmp_path: Path) -> None:
    weights = {name: mat([1.0], 3, 3) for name in ("model.embed.weight", "model.layers.0.fc.weight", "lm_head.weight")}
    planner = dcp.DefaultSavePlanner(flatten_state_dict=False)
    dcp.save(dict(weights), storage_writer=dcp.FileSystemWriter(tmp_path / "a"), planner=planner, no_dist=True)
    assert list(only(tmp_path / "a").tensors) == list(weights)
    state = {"model.fc.weight": mat([1.0], 3, 3), "optim.fc.weight.exp_avg": torch.ones(3, 3)}
    planner = dcp.DefaultSavePlanner(flatten_state_dict=False)
    dcp.save(dict(state), storage_writer=dcp.FileSystemWriter(tmp_path / "b"), planner=planner, no_dist=True)
    found = only(tmp_path / "b").tensors
    assert [name for name, info in found.items() if info.kind == "parameter"] == ["fc.weight"]


def test_the_directory_of_a_trainer_named_by_itself() -> None:
    (reference,) = find_checkpoints([FORMATS / "accelerate_fsdp2" / "checkpoint-5"]).references
    assert reference.step == 5


def test_what_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"FSDP has flattened \(_flat_param\), without their shapes; save it with"
    ):
        only(FORMATS / "dcp_fsdp1_local")
    with pytest.raises(CheckpointError, match="parts are compressed"):
        only(FORMATS / "dcp_zstd")
    with pytest.raises(CheckpointError, match="holds the shards of several processes; put them together first"):
        only(FORMATS / "dcp_hf_sharded_2ranks")
    source = written(tmp_path / "step-1", {"model": MODEL})
    with pytest.raises(CheckpointError, match=r"one part of a torch\.distributed\.checkpoint.* name the directory"):
        only(source / "__0_0.distcp")
    (source / ".metadata").unlink()
    written(tmp_path / "step-2", {"model": MODEL})
    references = find_checkpoints([tmp_path]).references
    assert [reference.step for reference in references] == [1, 2]
    with pytest.raises(CheckpointError, match="was not saved to its end"):
        references[0].open()


def test_parts_that_are_gone_or_cut(tmp_path: Path) -> None:
    source = written(tmp_path / "step-1", {"model": MODEL})
    part = source / "__0_0.distcp"
    whole = part.read_bytes()
    part.write_bytes(whole[:-200])
    with pytest.raises(CheckpointError, match=r"__0_0\.distcp: is truncated"):
        only(source)
    part.write_bytes(b"\x00" * len(whole))
    with pytest.raises(CheckpointError, match=r"__0_0\.distcp"):
        only(source).load("fc.weight")
    part.unlink()
    with pytest.raises(CheckpointError, match=r"part __0_0\.distcp is not there"):
        only(source)


class Payload:
    """Creates a directory when it is unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.target),)


@pytest.mark.parametrize("where", ["instead", "inside", "in a part"])
def test_a_hostile_checkpoint_creates_nothing(tmp_path: Path, where: str) -> None:
    source, target = written(tmp_path / "step-1", {"model": MODEL, "step": 3}), tmp_path / "created"
    metadata = source / ".metadata"
    if where == "instead":
        metadata.write_bytes(pickle.dumps(Payload(target)))
    elif where == "inside":
        content = pickle.loads(metadata.read_bytes())
        content.planner_data["bomb"] = Payload(target)
        metadata.write_bytes(pickle.dumps(content))
    else:
        shutil.copy(metadata, tmp_path / "kept")
        written(source, {"model": MODEL, "step": Payload(target)})
    if where == "in a part":
        (reference,) = find_checkpoints([source]).references
        with pytest.raises(CheckpointError):
            reference.open()[0].step()
    else:
        with pytest.raises(CheckpointError, match=r"\.metadata: .*asks for `\w+\.mkdir`"):
            only(source)
    assert not target.exists()


MEMO_WITHOUT_END = b"\x80\x02Nr\x00\x00\x00\x7f."


@pytest.mark.parametrize("name", [b"collections\nOrderedDict", b"collections\nChainMap", b"torch\nSize"])
def test_a_hostile_metadata_patches_no_class(tmp_path: Path, name: bytes) -> None:
    source = written(tmp_path / "step-1", {"model": MODEL})
    pickled = b"\x80\x02c" + name + b"\nN}X\x03\x00\x00\x00getK\x05s\x86b."
    (source / ".metadata").write_bytes(pickled)
    with pytest.raises(CheckpointError):
        only(source)
    assert collections.OrderedDict.get is dict.get
    assert callable(collections.ChainMap.get)
    assert not hasattr(torch.Size, "get")


def test_a_metadata_that_asks_for_memory(tmp_path: Path) -> None:
    source = written(tmp_path / "step-1", {"model": MODEL})
    (source / ".metadata").write_bytes(MEMO_WITHOUT_END)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CheckpointError):
        only(source)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 * 1024


@pytest.mark.parametrize("paths", [{"a": ("x",), "b": ("x", "y")}, {"a": ("x",), "b": ("x",)}, {"a": ([],)}])
def test_places_that_cannot_be(tmp_path: Path, paths: dict[str, Any]) -> None:
    source = written(tmp_path / "step-1", {"a": torch.eye(3), "b": torch.eye(3)})
    metadata = pickle.loads((source / ".metadata").read_bytes())
    metadata.planner_data = paths
    (source / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(CheckpointError, match=r"\.metadata: is damaged"):
        only(source)


def test_a_mesh_of_many_processes(tmp_path: Path) -> None:
    """1024 chunks of a 32 x 32 mesh are a grid, and are not compared one with another."""
    chunks = [Chunk((i, j), (1, 1), Place("x", 0, 8)) for i in range(32) for j in range(32)]
    start = time.monotonic()
    for _ in range(20):
        assert _tile((32, 32), tuple(chunks))
    assert time.monotonic() - start < 2
    assert not _tile((32, 32), tuple(chunks[:-1]))
    assert not _tile((32, 32), (*chunks[:-1], chunks[0]))
    brick = [Chunk((0, 0), (2, 1), Place("x", 0, 8)), Chunk((0, 1), (1, 1), Place("x", 0, 8))]
    assert _tile((2, 2), (*brick, Chunk((1, 1), (1, 1), Place("x", 0, 8))))
    assert not _tile((2, 2), (*brick, Chunk((0, 1), (1, 1), Place("x", 0, 8))))


@pytest.mark.parametrize("change", ["outside", "sizes", "huge", "overlap"])
def test_metadata_that_lies(tmp_path: Path, change: str) -> None:
    source = written(tmp_path / "step-1", {"model": MODEL})
    metadata = pickle.loads((source / ".metadata").read_bytes())
    record = metadata.state_dict_metadata["model.fc.weight"]
    if change == "outside":
        for info in metadata.storage_data.values():
            info.relative_path = "../../etc/passwd"
    elif change == "sizes":
        record.chunks[0].sizes = torch.Size([6, 3])
    elif change == "huge":
        record.size = record.chunks[0].sizes = torch.Size([2**40, 2**20])
    else:
        record.chunks.append(record.chunks[0])
        record.size = torch.Size([12, 4])
    (source / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(CheckpointError, match=r"\.metadata: (names a part outside|.*do not make up its shape)"):
        only(source)
