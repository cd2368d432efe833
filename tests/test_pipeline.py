"""From a trajectory to its store: the API, reuse, resume, and the same bytes however it came about."""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import GROK, ROOT, mat
from safetensors.torch import save_file
from threadpoolctl import threadpool_info, threadpool_limits

import spectrascope
from spectrascope import job, workers
from spectrascope.checkpoints import Checkpoint
from spectrascope.cli import main
from spectrascope.errors import CheckpointError, NothingAnalysed, RequestError, StoreError


def trajectory(steps: int = 3, matrices: int = 4) -> list[tuple[int, dict[str, torch.Tensor]]]:
    return [
        (10 * step, {f"l{i}.weight": mat([3.0 + step, 2.0, 1.0], 8 + i, 6, seed=7 * step + i) for i in range(matrices)})
        for step in range(steps)
    ]


def write(directory: Path, items: list[tuple[int, dict[str, torch.Tensor]]]) -> Path:
    directory.mkdir(exist_ok=True)
    for step, weights in items:
        save_file(weights, directory / f"step{step}.safetensors")
    return directory


def content(store: Path) -> dict[str, bytes]:
    """The files of a store."""
    return {path.name: path.read_bytes() for path in sorted(store.iterdir())}


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of the matrices that were decomposed."""
    shapes: list[tuple[int, ...]] = []
    real = job.decompose

    def decompose(matrix: torch.Tensor, *arguments: Any) -> Any:
        shapes.append(tuple(matrix.shape))
        return real(matrix, *arguments)

    monkeypatch.setattr(job, "decompose", decompose)
    return shapes


def test_state_dicts_from_python(tmp_path: Path) -> None:
    run = spectrascope.analyze(iter(trajectory()), tmp_path / "x.spectra")
    assert run.steps == [0, 10, 20]
    assert run.matrices == ["l0.weight", "l1.weight", "l2.weight", "l3.weight"]
    sigma = run.singular_values("l2.weight")
    assert sigma.shape == (3, 6)
    np.testing.assert_allclose(sigma[:, :3], [[3, 2, 1], [4, 2, 1], [5, 2, 1]], atol=1e-6)
    np.testing.assert_allclose(spectrascope.effective_rank(sigma)[0], 2.7495, atol=1e-4)
    u, v = run.vectors("l2.weight", 20)
    assert (u.shape, v.shape) == ((10, 6), (6, 6))
    assert spectrascope.open(tmp_path / "x.spectra").steps == run.steps


def test_state_dicts_of_numpy_arrays_and_of_modules(tmp_path: Path) -> None:
    module = torch.nn.Linear(4, 3)
    run = spectrascope.analyze([(1, module.state_dict()), (2, {"weight": np.eye(3, 4)})], tmp_path / "x.spectra")
    np.testing.assert_allclose(run.singular_values("weight")[1], 1)


def test_a_generator_of_state_dicts_is_taken_one_at_a_time(tmp_path: Path) -> None:
    """Few checkpoints are held at a time, however long the trajectory is."""
    alive = 0
    most = 0

    class Tracked(dict):
        def __init__(self, weights: dict[str, torch.Tensor]) -> None:
            nonlocal alive, most
            super().__init__(weights)
            alive += 1
            most = max(most, alive)

        def __del__(self) -> None:
            nonlocal alive
            alive -= 1

    def generate() -> Iterator[tuple[int, dict[str, torch.Tensor]]]:
        for step, weights in trajectory(10, 1):
            yield step, Tracked(weights)

    assert len(spectrascope.analyze(generate(), tmp_path / "x.spectra").steps) == 10
    assert most <= 4


def test_a_model_that_trains_in_place(tmp_path: Path) -> None:
    """A generator may yield the live state dict of its model and go on training when it is asked for the next."""
    model = torch.nn.Linear(3, 3, bias=False)

    def train() -> Iterator[tuple[int, dict[str, torch.Tensor]]]:
        for step in range(1, 6):
            torch.nn.init.eye_(model.weight)
            model.weight.data.mul_(step)
            yield step, model.state_dict()

    run = spectrascope.analyze(train(), tmp_path / "x.spectra")
    np.testing.assert_array_equal(run.singular_values("weight"), np.outer(range(1, 6), [1, 1, 1]))


def test_reuse_follows_bytes_not_places(tmp_path: Path) -> None:
    """Step 0 is remade of other bytes; a later step of its old bytes must not get the new spectrum."""
    one = {"w": torch.eye(4)}
    source = write(tmp_path / "run", [(0, one)])
    spectrascope.analyze(source, tmp_path / "x.spectra")
    write(source, [(0, {"w": 2 * torch.eye(4)}), (1, {"w": 5 * torch.eye(4)}), (3, one)])
    run = spectrascope.analyze(source, tmp_path / "x.spectra")
    np.testing.assert_array_equal(run.singular_values("w")[:, 0], [2, 5, 1])


def test_a_file_replaced_between_hash_and_work_is_not_taken_for_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write(tmp_path / "run", [(0, {"w": torch.eye(4)})])
    spectrascope.analyze(source, tmp_path / "x.spectra", top_k=1)
    real = Checkpoint.content_hash

    def content_hash(self: Checkpoint) -> str:
        digest = real(self)
        write(source, [(0, {"w": 2 * torch.eye(4)})])
        return digest

    monkeypatch.setattr(Checkpoint, "content_hash", content_hash)
    with pytest.raises(NothingAnalysed, match="changed while it was being read"):
        spectrascope.analyze(source, tmp_path / "x.spectra", top_k=2)


def test_several_paths(tmp_path: Path) -> None:
    source = write(tmp_path / "run", trajectory())
    paths = sorted(source.iterdir())[:2]
    assert spectrascope.analyze(paths, tmp_path / "x.spectra").steps == [0, 10]
    assert spectrascope.analyze([str(p) for p in paths], tmp_path / "y.spectra").steps == [0, 10]
    assert spectrascope.analyze(source.glob("*.safetensors"), tmp_path / "z.spectra").steps == [0, 10, 20]
    with pytest.raises(RequestError, match="need a store"):
        spectrascope.analyze(paths)
    with pytest.raises(RequestError, match="no checkpoints here"):
        spectrascope.analyze([], tmp_path / "w.spectra")


@pytest.mark.parametrize("steps", [(3, 3), (-1, 2), (0.5, 1)])
def test_steps_of_state_dicts_are_whole_and_distinct(tmp_path: Path, steps: tuple[Any, Any]) -> None:
    with pytest.raises(RequestError, match=r"two state dicts are of step 3|a whole number from 0 on"):
        spectrascope.analyze([(step, {"w": torch.eye(3)}) for step in steps], tmp_path / "x.spectra")
    with pytest.raises(RequestError, match="leave out state dicts yourself"):
        spectrascope.analyze([(1, {"w": torch.eye(3)})], tmp_path / "x.spectra", steps="last")


def test_the_same_bytes_for_any_number_of_workers(tmp_path: Path) -> None:
    for count in (1, 2, 5):
        spectrascope.analyze(GROK, tmp_path / f"{count}.spectra", workers=count, steps="every:4")
    one = content(tmp_path / "1.spectra")
    assert len(one) >= 3
    assert content(tmp_path / "2.spectra") == one
    assert content(tmp_path / "5.spectra") == one


def test_nothing_is_computed_twice(tmp_path: Path, counted: list[Any]) -> None:
    source = write(tmp_path / "run", trajectory())
    spectrascope.analyze(source, tmp_path / "x.spectra")
    assert len(counted) == 12
    before = content(tmp_path / "x.spectra")
    spectrascope.analyze(source, tmp_path / "x.spectra")
    assert len(counted) == 12
    assert content(tmp_path / "x.spectra") == before
    write(source, [(30, trajectory(4)[3][1])])
    run = spectrascope.analyze(source, tmp_path / "x.spectra")
    assert len(counted) == 16
    assert run.steps == [0, 10, 20, 30]


def test_a_changed_checkpoint_is_computed_again_and_only_what_changed_in_it(tmp_path: Path, counted: list[Any]) -> None:
    source = write(tmp_path / "run", trajectory())
    spectrascope.analyze(source, tmp_path / "x.spectra")
    weights = trajectory()[1][1] | {"l3.weight": mat([9.0, 1.0], 11, 6)}
    write(source, [(10, weights)])
    run = spectrascope.analyze(source, tmp_path / "x.spectra")
    assert counted[12:] == [(11, 6)]
    assert run.singular_values("l3.weight", 10)[0] == pytest.approx(9)


def test_trusting_times_reads_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write(tmp_path / "run", trajectory())
    spectrascope.analyze(source, tmp_path / "x.spectra")
    monkeypatch.setattr(Checkpoint, "content_hash", lambda self: pytest.fail("read"))
    spectrascope.analyze(source, tmp_path / "x.spectra", trust_mtime=True)
    os.utime(source / "step10.safetensors", ns=(1, 1))
    with pytest.raises(pytest.fail.Exception):
        spectrascope.analyze(source, tmp_path / "x.spectra", trust_mtime=True)


def test_other_settings_are_another_result(tmp_path: Path, counted: list[Any]) -> None:
    source = write(tmp_path / "run", trajectory(1))
    spectrascope.analyze(source, tmp_path / "x.spectra", top_k=2)
    run = spectrascope.analyze(source, tmp_path / "x.spectra", top_k=3)
    assert len(counted) == 8
    assert run.vectors("l0.weight", 0)[0].shape == (8, 3)
    # More vectors than are asked for are there already; nothing is computed or lost.
    run = spectrascope.analyze(source, tmp_path / "x.spectra", top_k=0)
    assert len(counted) == 8
    assert run.vectors("l0.weight", 0, count=2)[0].shape == (8, 2)


def test_matches_add_up_in_the_store(tmp_path: Path, counted: list[Any]) -> None:
    source = write(tmp_path / "run", trajectory(2))

    def analyze(**options: Any) -> tuple[list[str], int, int]:
        """The matrices of the run, how many decompositions there were so far, and the matrices of the store."""
        run = spectrascope.analyze(source, tmp_path / "x.spectra", **options)
        return run.matrices, len(counted), len(spectrascope.open(tmp_path / "x.spectra").matrices)

    assert analyze(match=["l1*"]) == (["l1.weight"], 2, 1)
    assert analyze(match=["l2*"]) == (["l2.weight"], 4, 2)
    assert analyze(match=["l1*"]) == (["l1.weight"], 4, 2)
    everything = ["l0.weight", "l1.weight", "l2.weight", "l3.weight"]
    assert analyze() == (everything, 8, 4)
    assert analyze(match=["l1*"]) == (["l1.weight"], 8, 4)
    assert analyze(skip=["l1*"]) == (everything[:1] + everything[2:], 8, 4)


def test_nothing_matches(tmp_path: Path) -> None:
    source = write(tmp_path / "run", trajectory(1))
    with pytest.raises(RequestError, match=r"no matrix is left by nope\*; there are l0.weight, l1.weight"):
        spectrascope.analyze(source, tmp_path / "x.spectra", match=["nope*"])


def test_copies_and_frozen_tensors_are_decomposed_once(tmp_path: Path, counted: list[Any]) -> None:
    items = trajectory(3)
    for _, weights in items:
        weights["l0.weight"] = items[0][1]["l0.weight"]
    items.append((30, items[1][1]))
    run = spectrascope.analyze(items, tmp_path / "x.spectra")
    assert len(counted) == 10
    assert "steps 10 and 30 hold identical content" in run.warnings[0]
    assert "l0.weight is frozen" in run.warnings[1]
    np.testing.assert_array_equal(run.singular_values("l3.weight", 10), run.singular_values("l3.weight", 30))
    for one, other in zip(run.vectors("l3.weight", 10), run.vectors("l3.weight", 30), strict=True):
        np.testing.assert_array_equal(one, other)


def test_equal_tensors_of_one_checkpoint_are_decomposed_once(tmp_path: Path, counted: list[Any]) -> None:
    weights = {f"l{i}.weight": mat([3.0, 2.0], 30, 20) for i in range(12)} | {"wide": mat([5.0], 20, 40)}
    run = spectrascope.analyze([(0, weights)], tmp_path / "x.spectra")
    assert sorted(counted) == [(20, 40), (30, 20)]
    for name in list(weights)[:12]:
        np.testing.assert_allclose(run.singular_values(name, 0)[:2], [3, 2], atol=1e-6)
        np.testing.assert_array_equal(run.vectors(name, 0)[0], run.vectors("l0.weight", 0)[0])


def test_another_checkpoint_does_not_take_a_step_silently(tmp_path: Path) -> None:
    spectrascope.analyze(write(tmp_path / "a", trajectory(1)), tmp_path / "x.spectra")
    other = write(tmp_path / "b", [(0, {"l0.weight": mat([9.0], 4, 4)})])
    with pytest.raises(RequestError, match=r"already holds step 0 of another checkpoint, .*a/step0.safetensors"):
        spectrascope.analyze(other, tmp_path / "x.spectra")
    shutil.copytree(tmp_path / "a", tmp_path / "moved")  # the same content elsewhere is the same checkpoint
    assert spectrascope.analyze(tmp_path / "moved", tmp_path / "x.spectra").steps == [0]


def test_one_bad_checkpoint_does_not_stop_the_rest(tmp_path: Path) -> None:
    source = write(tmp_path / "run", trajectory())
    (source / "step10.safetensors").write_bytes(b"")
    run = spectrascope.analyze(source, tmp_path / "x.spectra")
    assert run.steps == [0, 20]
    assert run.failures == [
        {"path": str(source / "step10.safetensors"), "step": 10, "matrix": None, "reason": "is empty (0 bytes)"}
    ]
    assert len(list((tmp_path / "x.spectra").iterdir())) == 2


def test_all_checkpoints_are_bad(tmp_path: Path) -> None:
    (tmp_path / "step1.pt").write_bytes(b"x")
    with pytest.raises(NothingAnalysed, match=r"step1.pt: is truncated, damaged"):
        spectrascope.analyze(tmp_path, tmp_path / "x.spectra")


def test_a_file_that_changes_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write(tmp_path / "run", trajectory(1))
    real = job.decompose

    def decompose(*arguments: Any) -> Any:
        os.utime(source / "step0.safetensors", ns=(1, time.time_ns()))
        return real(*arguments)

    monkeypatch.setattr(job, "decompose", decompose)
    with pytest.raises(NothingAnalysed, match="changed while it was being read"):
        spectrascope.analyze(source, tmp_path / "x.spectra")
    assert not (tmp_path / "x.spectra").exists()


def test_a_read_error_in_the_middle_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write(tmp_path / "run", trajectory(2))
    real = Checkpoint.load

    def load(self: Any, name: str, index: int | None = None) -> Any:
        if name == "l2.weight" and "step0" in str(self.path):
            raise CheckpointError(self.path, "cannot be read (Input/output error)")
        return real(self, name, index)

    monkeypatch.setattr(Checkpoint, "load", load)
    run = spectrascope.analyze(source, tmp_path / "x.spectra")
    assert run.steps == [10]
    assert run.failures[0]["reason"] == "cannot be read (Input/output error)"
    assert len(list((tmp_path / "x.spectra").iterdir())) == 1


def test_a_matrix_that_failed_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write(tmp_path / "run", trajectory(1))

    def fails(*arguments: Any, **options: Any) -> Any:
        raise np.linalg.LinAlgError("did not converge")

    with monkeypatch.context() as patch:
        for home in (np.linalg, torch.linalg):
            patch.setattr(home, "eigh", fails)
            patch.setattr(home, "svd", fails)
        run = spectrascope.analyze(source, tmp_path / "x.spectra")
    assert len(run.failures) == 4
    assert np.isnan(run.singular_values("l0.weight")).all()
    again = spectrascope.analyze(source, tmp_path / "x.spectra")
    assert again.failures == []
    np.testing.assert_allclose(again.singular_values("l0.weight", 0)[:3], [3, 2, 1], atol=1e-6)


def test_a_disk_that_is_too_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type(shutil.disk_usage(tmp_path))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**6, 10**6 - 1000, 1000))
    with pytest.raises(StoreError, match=r"needs about \d+ kB and the disk has 1 kB free; use a smaller --top-k"):
        spectrascope.analyze(iter(trajectory()), tmp_path / "x.spectra")


def test_a_disk_that_fills_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(NothingAnalysed, match="no space is left on the disk"):
        spectrascope.analyze(iter(trajectory()), tmp_path / "x.spectra")
    assert not (tmp_path / "x.spectra").exists()


def test_matrices_too_large_for_one_per_core_run_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spectrascope.analyze(iter(trajectory()), tmp_path / "x.spectra")
    monkeypatch.setattr(job, "needs_all_cores", lambda matrix: matrix.shape[0] > 9)
    run = spectrascope.analyze(iter(trajectory()), tmp_path / "y.spectra")
    for name in run.matrices:
        expected = spectrascope.open(tmp_path / "x.spectra").singular_values(name)
        np.testing.assert_allclose(run.singular_values(name), expected, rtol=1e-12, atol=1e-12)


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(workers, "_may_have_a_gpu", lambda: True)
    assert workers.choose_devices("auto") == (["cpu"], None)
    assert workers.choose_devices("mps")[0] == ["cpu"]
    assert "no float64" in str(workers.choose_devices("mps")[1])
    with pytest.raises(RequestError, match="torch sees 0 CUDA devices here"):
        workers.choose_devices("cuda")
    with pytest.raises(RequestError, match="none of auto, cpu, cuda"):
        workers.choose_devices("tpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert workers.choose_devices("auto")[0] == ["cuda:0", "cuda:1"]
    assert workers.choose_devices("cuda")[0] == ["cuda:0", "cuda:1"]
    assert workers.choose_devices("cuda:1")[0] == ["cuda:1"]


def test_one_blas_thread_a_worker_and_as_they_were_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def threads() -> set[int]:
        return {one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"}

    def during(*arguments: Any) -> Any:
        seen.extend(threads())
        return decompose(*arguments)

    seen: list[int] = []
    decompose = job.decompose
    monkeypatch.setattr(job, "decompose", during)
    with threadpool_limits(2, user_api="blas"):
        before = threads()
        spectrascope.analyze(iter(trajectory(1)), tmp_path / "x.spectra")
        assert threads() == before
    assert set(seen) == {1}


def run_and_kill(arguments: list[str], after: float) -> bool:
    """Run a command line in a forked process and kill it -9 after so many seconds; whether it was still running."""
    process = multiprocessing.get_context("fork").Process(target=main, args=(arguments,))
    process.start()
    process.join(after)
    alive = process.is_alive()
    process.kill()
    process.join()
    return alive


def test_killed_at_any_instant_the_report_is_that_of_a_clean_run(cli: Any, tmp_path: Path) -> None:
    """Twenty kills -9 and reruns: the last report and the store equal a clean run's, byte for byte."""
    arguments = ["analyze", str(GROK), "--format", "json", "-o"]
    started = time.monotonic()
    clean = cli(*arguments, "clean.spectra", cwd=tmp_path)
    whole = time.monotonic() - started
    store = tmp_path / "x.spectra"
    instants = random.Random(0)
    killed, found_finished = 0, set()
    while killed < 20:
        killed += run_and_kill([*arguments, str(store)], instants.uniform(0.05, 1.0) * whole)
        found_finished.add(len(list(store.glob("step*"))))
        if len(list(store.glob("step*"))) == 13:
            shutil.rmtree(store)  # start over, so that later kills hit unfinished work too
    assert len(found_finished) > 4, "the kills hit too few different instants"
    again = cli(*arguments, "x.spectra", cwd=tmp_path)
    assert again.out == clean.out
    assert content(store) == content(tmp_path / "clean.spectra")


def test_interrupted_it_ends_with_130_and_resumes(tmp_path: Path) -> None:
    big = [(step, {f"l{i}": torch.randn(700, 700) for i in range(20)}) for step in range(3)]
    source = write(tmp_path / "run", big)
    command = [sys.executable, "-m", "spectrascope", "analyze", str(source), "-o", str(tmp_path / "x.spectra")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, text=True)
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("x.spectra/step*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert out == ""
    assert "interrupted; what is finished is in" in err
    assert "Traceback" not in err
    assert not list(tmp_path.glob("x.spectra/.*"))
    assert spectrascope.analyze(source, tmp_path / "x.spectra").steps == [0, 1, 2]
