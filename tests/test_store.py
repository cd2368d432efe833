"""The store: round trips, damage, locks, versions."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import spectrascope
from spectrascope import store
from spectrascope.errors import RequestError, StoreDamaged, StoreError, StoreLocked

DATA = Path(__file__).parent / "data"


def write(directory: Path, names: list[str], step: int = 5, order: int = 1) -> Path:
    """A step with a 4 x 3 matrix of each name."""
    directory.mkdir(exist_ok=True)
    records = [store.Record(name, (4, 3), "float32", "linear", f"hash {name}", 2) for name in names]
    info = store.StepInfo(
        path=store.step_path(directory, step),
        step=step,
        source={"path": "/x", "stamp": [], "content": "0"},
        settings={"top_k": 2, "filters": [[[], []]]},
        records=records,
        skipped=[],
        coverage=1.0,
    )
    with store.StepWriter(directory, info) as writer:
        for index, record in list(enumerate(records))[::order]:
            left = np.full((2, 4), index, np.float32)
            right = np.full((2, 3), index + 0.5, np.float32)
            writer.add(record, np.array([3.0, 2.0, 1.0]) + index, left, right)
            for given, back in zip((left, right), writer.read_back(record)[1:], strict=True):
                np.testing.assert_array_equal(back, given)
        path = writer.finish()
    with pytest.raises(StoreError):
        writer.read_back(records[0])
    return path


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.text(st.characters(), min_size=1, max_size=40), min_size=1, max_size=6, unique=True))
def test_any_names_come_back(tmp_path: Path, names: list[str]) -> None:
    write(tmp_path / "a.spectra", names)
    trajectory = spectrascope.open(tmp_path / "a.spectra")
    assert trajectory.matrices == names
    for index, name in enumerate(names):
        np.testing.assert_array_equal(trajectory.singular_values(name), [np.array([3.0, 2.0, 1.0]) + index])
        u, v = trajectory.vectors(name, 5)
        assert (u.shape, v.shape) == ((4, 2), (3, 2))
        assert (u == index).all()
        assert (v == index + 0.5).all()


def test_names_of_any_length(tmp_path: Path) -> None:
    names = ["x" * 100_000, "a/b", "a//b", ".", "..", "nul\0nul", "\ud800 lone surrogate", "é"]
    write(tmp_path / "a.spectra", names)
    assert spectrascope.open(tmp_path / "a.spectra").matrices == names


def test_the_order_of_writing_does_not_show(tmp_path: Path) -> None:
    names = [f"l{i}" for i in range(9)]
    one = write(tmp_path / "a.spectra", names).read_bytes()
    assert write(tmp_path / "b.spectra", names, order=-1).read_bytes() == one


def test_first_vectors_alone(tmp_path: Path) -> None:
    write(tmp_path / "a.spectra", ["w", "x"])
    u, v = spectrascope.open(tmp_path / "a.spectra").vectors("x", 5, count=1)
    assert (u.shape, v.shape) == ((4, 1), (3, 1))
    assert (u == 1).all()


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    write(tmp_path / "a.spectra", ["w"])
    trajectory = spectrascope.open(tmp_path / "a.spectra")
    with pytest.raises(RequestError, match="no matrix 'nope'; there are w"):
        trajectory.singular_values("nope")
    with pytest.raises(RequestError, match="no step 6; it has 5"):
        trajectory.vectors("w", 6)
    with pytest.raises(RequestError, match="no such store"):
        spectrascope.open(tmp_path / "b.spectra")
    with pytest.raises(RequestError, match="not a store"):
        spectrascope.open(tmp_path)


def test_shapes_that_change_are_padded(tmp_path: Path) -> None:
    write(tmp_path / "a.spectra", ["w"], step=1)
    write(tmp_path / "a.spectra", ["w", "late"], step=2)
    trajectory = spectrascope.open(tmp_path / "a.spectra")
    assert trajectory.steps == [1, 2]
    assert trajectory.matrices == ["w", "late"]
    np.testing.assert_array_equal(np.isnan(trajectory.singular_values("late")), [[True] * 3, [False] * 3])


@pytest.mark.parametrize("size", [0, 96, 0.5, 0.95])
def test_a_cut_file_is_damaged(tmp_path: Path, size: float) -> None:
    path = write(tmp_path / "a.spectra", ["w"])
    whole = path.read_bytes()
    path.write_bytes(whole[: int(size * len(whole)) if size < 1 else int(size)])
    with pytest.raises(StoreDamaged, match=str(path)):
        store.read_step(path)
    trajectory = spectrascope.open(tmp_path / "a.spectra")
    assert trajectory.steps == []
    assert trajectory.failures[0]["step"] == 5


def test_altered_numbers_are_noticed(tmp_path: Path) -> None:
    path = write(tmp_path / "a.spectra", ["w"])
    with h5py.File(path, "a") as file:
        file["singular_values"][0] = 99.0
    with pytest.raises(StoreDamaged, match="singular_values is not what was written"):
        store.read_step(path)


def test_altered_vectors_are_noticed(tmp_path: Path) -> None:
    path = write(tmp_path / "a.spectra", ["w"])
    with h5py.File(path, "a") as file:
        file["left"][0] = 99.0
    with pytest.raises(StoreDamaged, match="vectors of w"):
        spectrascope.open(tmp_path / "a.spectra").vectors("w", 5)


def test_flipped_bytes_never_pass_unnoticed(tmp_path: Path) -> None:
    """Bytes all over a file flipped, one at a time: an error, or the same content as before."""
    path = write(tmp_path / "a.spectra", ["w"])
    whole = path.read_bytes()
    before, sigma = store.read_step(path)
    vectors = store.read_vectors(before, before.records[0])
    noticed = 0
    for at in range(0, len(whole), 17):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        try:
            info, found = store.read_step(path)
            assert info == before
            np.testing.assert_array_equal(found, sigma)
            for one, other in zip(store.read_vectors(info, info.records[0]), vectors, strict=True):
                np.testing.assert_array_equal(one, other)
        except StoreError:
            noticed += 1
    assert noticed > 50


def test_a_file_under_the_name_of_another_step_is_damaged(tmp_path: Path) -> None:
    path = write(tmp_path / "a.spectra", ["w"])
    path.rename(path.with_name("step0000000006.h5"))
    with pytest.raises(StoreDamaged, match="holds step 5, which its name does not say"):
        store.read_step(path.with_name("step0000000006.h5"))


def test_what_is_handed_out_cannot_change_the_store(tmp_path: Path) -> None:
    write(tmp_path / "a.spectra", ["w"])
    trajectory = spectrascope.open(tmp_path / "a.spectra")
    with pytest.raises(ValueError, match="read-only"):
        trajectory.singular_values("w", 5)[0] = 9


def test_any_hdf5_file_is_not_a_step(tmp_path: Path) -> None:
    path = tmp_path / "step0000000001.h5"
    with h5py.File(path, "w") as file:
        file["x"] = [1]
    with pytest.raises(StoreDamaged, match="not a file of spectra"):
        store.read_step(path)


def test_a_newer_format_says_what_to_do(tmp_path: Path) -> None:
    path = write(tmp_path / "a.spectra", ["w"])
    with h5py.File(path, "a") as file:
        file.attrs["format_version"] = 99
    with pytest.raises(StoreError, match=r"format version 99.*upgrade spectrascope"):
        spectrascope.open(tmp_path / "a.spectra")


def test_a_store_of_version_1_opens() -> None:
    """A store of format version 1, kept as it was written. Later releases must go on opening it."""
    trajectory = spectrascope.open(DATA / "version1.spectra")
    assert trajectory.steps == [0, 500]
    assert trajectory.matrices == ["embed.weight", "mlp.up.weight"]
    expected = json.loads((DATA / "version1.json").read_text())
    for name in trajectory.matrices:
        np.testing.assert_allclose(trajectory.singular_values(name), expected[name], rtol=1e-12)
    assert trajectory.vectors("mlp.up.weight", 500)[0].shape == (6, 4)


def test_a_locked_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spectrascope.store.hdf5.LOCK_PATIENCE", 0.2)
    path = write(tmp_path / "a.spectra", ["w"])
    hold = "import h5py, sys; f = h5py.File(sys.argv[1], 'a'); print('held', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", hold, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout
        holder.stdout.readline()
        with pytest.raises(StoreLocked, match=r"step0000000005\.h5 is locked by another process"):
            spectrascope.open(tmp_path / "a.spectra")
        holder.communicate("\n")
    assert spectrascope.open(tmp_path / "a.spectra").steps == [5]


def test_leftovers_of_killed_runs_are_cleared(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    host, random = socket.gethostname(), "0" * 32
    stale = tmp_path / f".step0000000001.h5.{host}.{dead.pid}.{random}.tmp"
    alive = tmp_path / f".step0000000001.h5.{host}.{os.getppid()}.{random}.tmp"
    elsewhere = tmp_path / f".step0000000001.h5.{host}.cluster.{dead.pid}.{random}.tmp"
    for path in (stale, alive, elsewhere):
        path.touch()
    with store.open_for_writing(tmp_path):
        pass
    assert [path.exists() for path in (stale, alive, elsewhere)] == [False, True, True]


def test_abandoning_leaves_nothing(tmp_path: Path) -> None:
    record = store.Record("w", (4, 3), "float32", "linear", "", 2)
    info = store.StepInfo(tmp_path / "x", 1, {}, {}, [record], [], 1.0)
    with contextlib.suppress(KeyboardInterrupt), store.StepWriter(tmp_path, info):
        assert len(list(tmp_path.iterdir())) == 1
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_setting_aside_never_overwrites(tmp_path: Path) -> None:
    for content in ("a", "b"):
        path = tmp_path / "step0000000001.h5"
        path.write_text(content)
        store.set_aside(path)
    assert sorted(p.read_text() for p in tmp_path.iterdir()) == ["a", "b"]


def test_plain_export(tmp_path: Path) -> None:
    names = ["a/b", "nul\0", "é"]
    write(tmp_path / "a.spectra", names, step=1)
    write(tmp_path / "a.spectra", names[:1], step=7)
    target = tmp_path / "all.h5"
    store.write_plain(spectrascope.open(tmp_path / "a.spectra"), target)
    with h5py.File(target, "r") as file:
        assert file["steps"][:].tolist() == [1, 7]
        assert [json.loads(f'"{name.decode()}"') for name in file["names"][:]] == names
        assert file["singular_values/0"][:].tolist() == [[3, 2, 1], [3, 2, 1]]
        assert np.isnan(file["singular_values/2"][1]).all()
    with pytest.raises(StoreError):
        store.write_plain(spectrascope.open(tmp_path / "a.spectra"), target)
