"""Every format, on files that their own libraries wrote: names, values, order, laziness, and what goes wrong."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import equal, mat
from safetensors.torch import save_file

from spectrascope.checkpoints import Checkpoint, find_checkpoints
from spectrascope.checkpoints.formats import open_file
from spectrascope.errors import CheckpointError, RequestError

WEIGHTS = {"b.weight": mat([2.0, 1.0], 5, 4), "a.weight": mat([3.0], 6, 5), "a.bias": torch.zeros(6)}
LEGACY = {"_use_new_zipfile_serialization": False}


def write(path: Path, weights: dict[str, torch.Tensor] = WEIGHTS) -> Path:
    if path.suffix == ".safetensors":
        save_file(weights, path)
    elif path.suffix == ".npz":
        np.savez(path, **{name: tensor.numpy() for name, tensor in weights.items()})
    else:
        torch.save(weights, path)
    return path


def only(source: Path, **options: Any) -> Checkpoint:
    (reference,) = find_checkpoints([source], **options).references
    return Checkpoint(reference.open()[0])


@pytest.mark.parametrize("suffix", [".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".pth.tar", ".PT", ".npz"])
def test_formats(tmp_path: Path, suffix: str) -> None:
    checkpoint = only(write(tmp_path / f"step3{suffix}"))
    ordered = ["a.bias", "a.weight", "b.weight"] if suffix == ".safetensors" else list(WEIGHTS)
    assert list(checkpoint.tensors) == ordered
    for name, tensor in WEIGHTS.items():
        assert checkpoint.tensors[name].shape == tuple(tensor.shape)
        assert checkpoint.tensors[name].dtype == "float32"
        assert equal(checkpoint.load(name), tensor)


def test_legacy_pickles(tmp_path: Path) -> None:
    torch.save(WEIGHTS, tmp_path / "m.pt", **LEGACY)
    checkpoint = only(tmp_path / "m.pt")
    assert list(checkpoint.tensors) == list(WEIGHTS)
    assert equal(checkpoint.load("a.weight"), WEIGHTS["a.weight"])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_dtypes(tmp_path: Path, suffix: str, dtype: torch.dtype) -> None:
    weights = {"w": WEIGHTS["b.weight"].to(dtype)}
    checkpoint = only(write(tmp_path / f"m{suffix}", weights))
    assert checkpoint.tensors["w"].dtype == str(dtype).removeprefix("torch.")
    assert equal(checkpoint.load("w"), weights["w"])


def test_tied_tensors(tmp_path: Path) -> None:
    embedding = mat([4.0, 2.0], 9, 4)
    torch.save({"embed.weight": embedding, "view": embedding[:3], "lm_head.weight": embedding}, tmp_path / "m.pt")
    assert only(tmp_path / "m.pt").tied == {"lm_head.weight": "embed.weight"}


def test_names_that_come_to_the_same(tmp_path: Path) -> None:
    write(tmp_path / "m.pt", {"fc.weight": mat([1.0], 3, 3), "_orig_mod.fc.weight": mat([1.0], 3, 3)})
    with pytest.raises(CheckpointError, match=r"'fc.weight' and '_orig_mod.fc.weight' are both 'fc.weight'"):
        only(tmp_path / "m.pt")


def test_sparse_and_meta_tensors_say_so(tmp_path: Path) -> None:
    torch.save(
        {"s": torch.eye(3).to_sparse(), "m": torch.empty(3, 3, device="meta"), "w": torch.eye(3)}, tmp_path / "m.pt"
    )
    tensors = only(tmp_path / "m.pt").tensors
    assert tensors["s"].problem == "stored as sparse_coo, which is not read; save tensor.to_dense()"
    assert str(tensors["m"].problem).startswith("a meta tensor")
    assert tensors["w"].problem is None


def test_many_bytes_are_read_through_fresh_mappings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spectrascope.checkpoints.torch_file.REOPEN_AFTER", 10)
    checkpoint = only(write(tmp_path / "m.pt"))
    first = checkpoint.load("a.weight")
    for _ in range(3):
        assert equal(checkpoint.load("b.weight"), WEIGHTS["b.weight"])
    assert equal(first, WEIGHTS["a.weight"])


def shards(directory: Path, suffix: str = ".safetensors", count: int = 2) -> dict[str, str]:
    """The weights split over shards; gives the weight map."""
    directory.mkdir(exist_ok=True)
    stem = "model" if suffix == ".safetensors" else "pytorch_model"
    names = [f"{stem}-{i + 1:05d}-of-{count:05d}{suffix}" for i in range(count)]
    home = {name: names[i % count] for i, name in enumerate(WEIGHTS)}
    for file in names:
        write(directory / file, {name: WEIGHTS[name] for name in WEIGHTS if home[name] == file})
    return home


def index(directory: Path, weight_map: dict[str, str], name: str = "model.safetensors.index.json") -> None:
    (directory / name).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


@pytest.mark.parametrize("suffix", [".safetensors", ".bin"])
@pytest.mark.parametrize("indexed", [True, False])
def test_shards(tmp_path: Path, suffix: str, indexed: bool) -> None:
    weight_map = shards(tmp_path, suffix)
    if indexed:
        index(tmp_path, weight_map, f"{'model' if suffix == '.safetensors' else 'pytorch_model'}{suffix}.index.json")
    checkpoint = only(tmp_path)
    assert list(checkpoint.tensors) == ["a.bias", "a.weight", "b.weight"]
    assert equal(checkpoint.load("b.weight"), WEIGHTS["b.weight"])
    assert len(checkpoint.stamp) == 2


def test_an_index_that_does_not_fit_its_shards(tmp_path: Path) -> None:
    weight_map = shards(tmp_path)
    index(tmp_path, weight_map | {"c.weight": weight_map["a.bias"]})
    with pytest.raises(CheckpointError, match=r"places c\.weight in .* which does not hold it"):
        only(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": 3}', '{"weight_map": {"a": "../x"}}', "[" * 100_000])
def test_an_index_that_is_none(tmp_path: Path, text: str) -> None:
    shards(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(CheckpointError, match="is not an index of shards"):
        only(tmp_path)


def test_a_shard_without_its_siblings(tmp_path: Path) -> None:
    weight_map = shards(tmp_path)
    os.remove(tmp_path / weight_map["b.weight"])
    with pytest.raises(CheckpointError, match="one of 2 shards"):
        only(tmp_path)


def test_two_formats_side_by_side(tmp_path: Path) -> None:
    write(tmp_path / "model.safetensors")
    write(tmp_path / "pytorch_model.bin")
    (reference,) = find_checkpoints([tmp_path]).references
    assert reference.open()[1] == []  # the same weights twice are no matter
    write(tmp_path / "pytorch_model.bin", WEIGHTS | {"a.weight": 2 * WEIGHTS["a.weight"]})
    container, warnings = reference.open()
    assert "model.safetensors and pytorch_model.bin, whose weights differ" in warnings[0]
    assert equal(container.load("a.weight"), WEIGHTS["a.weight"])


def test_a_trainer_leaves_other_files(tmp_path: Path) -> None:
    for step in (500, 1000):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        write(folder / "pytorch_model.bin")
        for name in ("optimizer.pt", "scheduler.pt", "training_args.bin", "rng_state.pth"):
            torch.save({"x": torch.ones(2, 2)}, folder / name)
        (folder / "trainer_state.json").write_text("{}")
    write(tmp_path / "model.safetensors")  # the final model, of no stated step
    found = find_checkpoints([tmp_path])
    assert [reference.step for reference in found.references] == [500, 1000]
    assert found.warnings == ["left out, as they hold no weights or their names state no step: model.safetensors"]


def test_a_checkpoint_directory_with_a_file_of_any_name(tmp_path: Path) -> None:
    for step in (1, 2):
        (tmp_path / f"step{step}").mkdir()
        write(tmp_path / f"step{step}" / "weights.pt")
    assert [r.step for r in find_checkpoints([tmp_path]).references] == [1, 2]
    assert list(Checkpoint(find_checkpoints([tmp_path]).references[0].open()[0]).tensors) == list(WEIGHTS)


def test_steps_from_the_parents_of_files(tmp_path: Path) -> None:
    for step in (10, 9):
        (tmp_path / f"checkpoint-{step}").mkdir()
        write(tmp_path / f"checkpoint-{step}" / "model.safetensors")
    found = find_checkpoints([tmp_path / f"checkpoint-{step}" / "model.safetensors" for step in (10, 9)])
    assert [reference.step for reference in found.references] == [9, 10]


def test_steps_from_contents(tmp_path: Path) -> None:
    torch.save({"model": WEIGHTS, "global_step": 30}, tmp_path / "a.pt")
    torch.save({"model": WEIGHTS, "step": torch.tensor(20)}, tmp_path / "b.pt")
    np.savez(tmp_path / "c.npz", w=np.eye(3), step=25)
    assert [r.step for r in find_checkpoints([tmp_path]).references] == [20, 25, 30]


def test_positions_where_nothing_tells_the_step(tmp_path: Path) -> None:
    for name in ("net10.pt", "net9.pt"):
        write(tmp_path / name)
    found = find_checkpoints([tmp_path])
    assert [(r.step, r.path.name) for r in found.references] == [(0, "net9.pt"), (1, "net10.pt")]
    assert "steps are positions (net9.pt, net10.pt)" in found.warnings[0]
    assert [r.step for r in find_checkpoints([tmp_path], step_regex=r"net(\d+)").references] == [9, 10]


def test_two_checkpoints_of_one_step(tmp_path: Path) -> None:
    for name in ("step_5.pt", "step-05.safetensors"):
        write(tmp_path / name)
    with pytest.raises(RequestError, match=r"step-05\.safetensors and .*step_5\.pt are both step 5"):
        find_checkpoints([tmp_path])


def test_a_directory_one_too_high(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "ckpts").mkdir()
    write(tmp_path / "ckpts" / "a.pt")
    write(tmp_path / "ckpts" / "b.pt")
    with pytest.raises(RequestError, match=r"no checkpoints here.*did you mean .*ckpts"):
        find_checkpoints([tmp_path])


def test_links_in_a_circle(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "step1.pt").symlink_to(tmp_path / "step1.pt")
    write(tmp_path / "step2.pt")
    assert [r.step for r in find_checkpoints([tmp_path]).references] == [2]


class Payload:
    """Creates a file when it is unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.target),)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("how", ["zip", "legacy", "bare"])
def test_a_hostile_pickle_creates_nothing(tmp_path: Path, how: str) -> None:
    path, target = tmp_path / "m.pt", tmp_path / "created"
    content = {"w": torch.eye(3), "bomb": Payload(target)}
    if how == "bare":
        path.write_bytes(pickle.dumps(content))
    else:
        torch.save(content, path, **(LEGACY if how == "legacy" else {}))
    with pytest.raises(CheckpointError, match=r"refused by the safe loader: it asks for `\w+\.mkdir`"):
        open_file(path).tensors()
    assert not target.exists()


def test_a_whole_model_is_refused_by_name(tmp_path: Path) -> None:
    torch.save(torch.nn.Linear(3, 3), tmp_path / "m.pt")
    with pytest.raises(CheckpointError, match=r"asks for `torch\.nn\.modules\.linear\.Linear`"):
        open_file(tmp_path / "m.pt").tensors()


def test_trust_is_explicit(tmp_path: Path) -> None:
    torch.save({"model": {"w": torch.eye(3)}, "bomb": Payload(tmp_path / "created")}, tmp_path / "m.pt")
    assert open_file(tmp_path / "m.pt", trust_pickle=True).tensors()[0].name == "w"
    assert (tmp_path / "created").exists()


def test_a_trusted_whole_model_is_read(tmp_path: Path) -> None:
    torch.save(torch.nn.Linear(3, 4), tmp_path / "m.pt")
    assert [info.name for info in open_file(tmp_path / "m.pt", trust_pickle=True).tensors()] == ["weight", "bias"]


def test_a_hostile_npz_creates_nothing(tmp_path: Path) -> None:
    array = np.empty(1, dtype=object)
    array[0] = Payload(tmp_path / "created")
    np.savez(tmp_path / "m.npz", bomb=array, w=np.eye(3))
    tensors = only(tmp_path / "m.npz").tensors
    assert tensors["bomb"].problem == "an array of Python objects, which is a pickle"
    with pytest.raises(CheckpointError):
        open_file(tmp_path / "m.npz").load("bomb")
    assert not (tmp_path / "created").exists()


@pytest.mark.parametrize("suffix", [".safetensors", ".pt", ".npz"])
@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (b"", "is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "Git LFS pointer"),
        (b"not a checkpoint", "is "),
        (b"\x00" * 1000, "is "),
        (b"\xff" * 1000, "is "),
    ],
)
def test_files_that_are_none(tmp_path: Path, suffix: str, content: bytes, cause: str) -> None:
    path = tmp_path / f"m{suffix}"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=cause) as caught:
        open_file(path).tensors()
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("suffix", [".safetensors", ".pt", ".npz"])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_truncated_files(tmp_path: Path, suffix: str, share: float) -> None:
    path = write(tmp_path / f"m{suffix}", {"w": torch.randn(60, 50)})
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(CheckpointError, match=r"is truncated|is not a valid .npz"):
        open_file(path).tensors()


def test_a_file_that_is_gone(tmp_path: Path) -> None:
    path = write(tmp_path / "m.safetensors")
    container = open_file(path)
    path.unlink()
    with pytest.raises(CheckpointError, match="cannot be read"):
        container.load("a.weight")


def test_moments_in_files_of_one_level(tmp_path: Path) -> None:
    weights = {"fc.weight": mat([1.0], 3, 3)}
    weights |= {name: torch.ones(3, 3) for name in ("fc.weight.exp_avg", "exp_avg_sq.fc.weight")}
    save_file({**weights, "optimizer.state.fc.weight": torch.ones(3, 3)}, tmp_path / "m.safetensors")
    np.savez(tmp_path / "m.npz", **{"opt_state/0/mu/fc/kernel": np.ones((3, 3)), "fc.weight": np.eye(3)})
    for name in ("m.safetensors", "m.npz"):
        tensors = only(tmp_path / name).tensors
        assert [key for key, info in tensors.items() if info.problem is None] == ["fc.weight"]
        assert {info.problem for info in tensors.values()} == {None, "of an optimizer"}


def test_npz_names_and_byte_orders(tmp_path: Path) -> None:
    np.savez(tmp_path / "m.npz", **{"x": np.eye(3), "x.npy": 7 * np.eye(3), "big": np.eye(3, dtype=">f4")})
    checkpoint = only(tmp_path / "m.npz")
    assert [info.dtype for info in checkpoint.tensors.values()] == ["float64", "float64", "float32"]
    assert [float(checkpoint.load(name)[0, 0]) for name in ("x", "x.npy", "big")] == [1, 7, 1]


def test_damage_of_any_kind_is_a_checkpoint_error(tmp_path: Path) -> None:
    """Bytes overwritten all over files of each format: no fault is any other exception."""
    random = np.random.default_rng(0)
    weights = {"w": torch.randn(30, 20), "v": torch.randn(5, 4)}
    faults = 0
    for suffix in (".safetensors", ".pt", ".npz"):
        whole = write(tmp_path / f"m{suffix}", weights).read_bytes()
        np.savez_compressed(tmp_path / "m.npz", **{k: v.numpy() for k, v in weights.items()})
        for _ in range(150):
            at = int(random.integers(0, len(whole)))
            path = tmp_path / f"damaged{suffix}"
            path.write_bytes(whole[:at] + random.bytes(int(random.integers(1, 9))) + whole[at + 4 :])
            try:
                checkpoint = only(path)
                for name, info in checkpoint.tensors.items():
                    if info.problem is None:
                        checkpoint.load(name)
            except CheckpointError:
                faults += 1
    assert faults > 50


def test_what_is_no_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "step1.pt")
    with pytest.raises(CheckpointError, match="not a regular file"):
        open_file(tmp_path / "step1.pt")
    (tmp_path / "step2.pt").symlink_to("/dev/zero")
    with pytest.raises(CheckpointError, match="not a regular file"):
        open_file(tmp_path / "step2.pt")


def test_names_that_only_look_like_trainer_files(tmp_path: Path) -> None:
    for name in ("optimal_step_10.pt", "autoscaler_step_20.pt", "optimizer_step.pt", "optimizer.pt", "._step_10.pt"):
        write(tmp_path / name)
    for name in ("optimizer_state.pt", "opt010000.pt", "optim_states_0.pt", "scheduler.pt"):
        write(tmp_path / name)
    found = find_checkpoints([tmp_path])
    assert [r.step for r in found.references] == [10, 20]


def test_a_directory_of_a_step_without_weights_is_a_failure_not_noise(tmp_path: Path) -> None:
    for step in (100, 200):
        (tmp_path / f"checkpoint-{step}").mkdir()
    write(tmp_path / "checkpoint-100" / "pytorch_model.bin")
    (tmp_path / "samples-step-100").mkdir()  # pictures, say: not a checkpoint, though its name states a step
    found = find_checkpoints([tmp_path])
    assert [r.step for r in found.references] == [100, 200]
    assert "samples-step-100" in found.warnings[0]
    with pytest.raises(CheckpointError, match="holds no weights"):
        found.references[1].open()
