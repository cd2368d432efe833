"""Many machines: a scheduler and two workers on the loopback interface, one of which is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import assert_plain, run_cli
from hub_server import Hub, environment, write_revisions

import spectrascope

STEPS = range(0, 160, 10)


@dataclass
class Machines:
    """A scheduler and its workers, each a process of its own."""

    address: str
    env: dict[str, str]
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    scheduler: subprocess.Popen[bytes] | None = None

    def add_worker(self) -> subprocess.Popen[bytes]:
        options = ["--nthreads", "1", "--no-nanny", "--no-dashboard", "--host", "127.0.0.1"]
        # In a directory of its own: paths must not depend on where a worker runs.
        worker = _dask("worker", self.address, *options, env=self.env, cwd="/")
        self.workers.append(worker)
        return worker


def _dask(*arguments: str, env: dict[str, str], cwd: str | Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "dask", *arguments]
    return subprocess.Popen(command, env=env, cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    env = {**os.environ, "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "3", "HF_HOME": str(tmp_path / "home")}
    yield from _machines(tmp_path, env)


def _machines(tmp_path: Path, env: dict[str, str]) -> Iterator[Machines]:
    file = tmp_path / "scheduler.json"
    options = ["--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(file)]
    scheduler = _dask("scheduler", *options, env=env, cwd=tmp_path)
    found = Machines("", env, scheduler=scheduler)
    try:
        found.address = _address(file)
        found.add_worker()
        found.add_worker()
        _wait_for_workers(found.address, 2)
        yield found
    finally:
        for process in (*found.workers, scheduler):
            process.kill()
            process.wait()


def _address(file: Path) -> str:
    import json

    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            return str(json.loads(file.read_text())["address"])
        except (OSError, ValueError):
            time.sleep(0.05)
    raise TimeoutError("the scheduler did not start")


def _wait_for_workers(address: str, count: int) -> None:
    from distributed import Client

    with Client(address, timeout=60, set_as_default=False) as client:
        client.wait_for_workers(count, timeout=60)


@pytest.fixture
def trajectory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    folder = Path("run")
    folder.mkdir()
    frozen = torch.tensor(random.standard_normal((40, 30)), dtype=torch.float32)
    for step in STEPS:
        weight = torch.tensor(random.standard_normal((300, 200)), dtype=torch.float32)
        torch.save(
            {"a.weight": weight, "b.weight": weight.T.contiguous() * 2, "frozen.weight": frozen},
            folder / f"step{step}.pt",
        )
    return folder


def finished() -> list[Path]:
    store = Path("far.spectra")
    return list(store.glob("step*.h5")) if store.exists() else []


def same_bytes(one: Path, other: Path) -> None:
    assert sorted(os.listdir(one)) == sorted(os.listdir(other))
    for path in one.iterdir():
        assert path.read_bytes() == (other / path.name).read_bytes(), path.name


def test_a_worker_is_killed_and_the_bytes_are_the_same(machines: Machines, trajectory: Path) -> None:
    def kill_one() -> None:
        while len(finished()) < 3:
            time.sleep(0.005)
        machines.workers[0].send_signal(signal.SIGKILL)

    killer = threading.Thread(target=kill_one, daemon=True)
    killer.start()
    found = run_cli(
        "analyze", trajectory, "-o", "far.spectra", "--dask", machines.address, "--format", "json", timeout=120
    )
    killer.join(5)
    assert_plain(found)
    assert (found.code, found.json["failures"]) == (0, [])
    assert machines.workers[0].poll() is not None
    assert f"{len(STEPS)} checkpoints on 2 workers of {machines.address}" in found.err
    near = spectrascope.analyze(trajectory, "near.spectra")
    assert near.steps == list(STEPS)
    same_bytes(Path("far.spectra"), Path("near.spectra"))
    assert any("frozen.weight is frozen" in line for line in found.json["warnings"])
    again = run_cli("analyze", trajectory, "-o", "far.spectra", "--dask", machines.address, "--format", "json")
    assert again.json["rows"] == found.json["rows"]


def test_the_client_is_killed_and_nothing_finished_is_lost(machines: Machines, trajectory: Path) -> None:
    command = ["analyze", str(trajectory), "-o", "far.spectra", "--dask", machines.address, "--format", "json"]
    program = [sys.executable, "-m", "spectrascope", *command]
    client = subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while len(finished()) < 3 and client.poll() is None:
        time.sleep(0.005)
    client.send_signal(signal.SIGKILL)
    client.wait()
    before = {path.name: path.stat().st_mtime_ns for path in finished()}
    assert spectrascope.open("far.spectra").failures == []
    found = run_cli(
        "analyze", trajectory, "-o", "far.spectra", "--dask", machines.address, "--format", "json", timeout=120
    )
    assert found.code == 0
    after = {path.name: path.stat().st_mtime_ns for path in finished()}
    assert len(after) == len(STEPS)
    assert before.items() <= after.items()
    spectrascope.analyze(trajectory, "near.spectra")
    same_bytes(Path("far.spectra"), Path("near.spectra"))


def test_failures_are_those_of_a_local_run(machines: Machines, trajectory: Path) -> None:
    (trajectory / "step20.pt").write_bytes((trajectory / "step20.pt").read_bytes()[:5000])
    far, near = (
        run_cli("analyze", trajectory, "-o", f"{name}.spectra", *options, "--format", "json", "--steps", "0-40")
        for name, options in (("far", ["--dask", machines.address]), ("near", []))
    )
    assert far.code == near.code == 3
    assert far.json["rows"] == near.json["rows"]
    assert [one["reason"] for one in far.json["failures"]] == [one["reason"] for one in near.json["failures"]]
    nothing = run_cli("analyze", trajectory, "-o", "n.spectra", "--dask", machines.address, "--match", "nope")
    assert nothing.code == 2
    assert "no matrix is left by nope; there are a.weight" in nothing.err
    averaged = run_cli(
        "analyze", trajectory, "-o", "far.spectra", "--dask", machines.address, "--weights", "averaged", "--steps", "0"
    )
    assert averaged.code in (1, 2)
    assert "failed on its worker" not in averaged.err


def test_the_scheduler_is_lost(machines: Machines, trajectory: Path) -> None:
    command = ["analyze", str(trajectory), "-o", "far.spectra", "--dask", machines.address]
    program = [sys.executable, "-m", "spectrascope", *command]
    client = subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while len(finished()) < 2 and client.poll() is None:
        time.sleep(0.005)
    assert machines.scheduler is not None
    machines.scheduler.kill()
    _, said = client.communicate(timeout=120)
    assert client.returncode == 1, said
    assert "the scheduler is gone; what is finished is in the store" in said
    assert spectrascope.open("far.spectra").failures == []


def test_revisions_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each worker fetches its own, and leaves nothing."""
    monkeypatch.chdir(tmp_path)
    with Hub() as hub:
        for name, files in write_revisions(tmp_path / "r", [0, 1, 2, 4]).items():
            hub.add("org/tiny", name, files)
        env = environment(hub, tmp_path / "home") | {"OMP_NUM_THREADS": "1"}
        machines = _machines(tmp_path, env)
        address = next(machines).address
        arguments = ["analyze", "hf://org/tiny", "--revisions", "step*", "--format", "json"]
        far = run_cli(*arguments, "-o", "far.spectra", "--dask", address, env=env, timeout=120)
        near = run_cli(*arguments, "-o", "near.spectra", env=env, timeout=120)
        machines.close()
    assert (far.code, far.json["rows"]) == (0, near.json["rows"])
    same_bytes(Path("far.spectra"), Path("near.spectra"))
    assert not list((tmp_path / "home").rglob("*.safetensors"))


def test_no_scheduler(trajectory: Path, monkeypatch: pytest.MonkeyPatch, cli: Any) -> None:
    from spectrascope import cluster

    monkeypatch.setattr(cluster, "PATIENCE", 0.5)
    found = cli("analyze", trajectory, "-o", "n.spectra", "--dask", "tcp://127.0.0.1:9")
    assert_plain(found)
    assert found.code == 1
    assert "no scheduler answers there; start one with `dask scheduler`" in found.err
    wrong = cli("analyze", trajectory, "-o", "n.spectra", "--dask", "nonsense://x")
    assert (wrong.code, "is not an address" in wrong.err) == (2, True), wrong.err
    monkeypatch.setitem(sys.modules, "distributed", None)
    absent = cli("analyze", trajectory, "-o", "n.spectra", "--dask", "tcp://127.0.0.1:9")
    assert (absent.code, "pip install 'spectrascope[dask]'" in absent.err) == (2, True)
