"""A checkpoint that takes long and is killed goes on inside: what was finished is not computed again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import mat

import spectrascope
from spectrascope import job
from spectrascope.store import parts

# Slow enough to be killed, with a part after every matrix; a line for each matrix that is decomposed.
SLOW = """
import sys, time
from spectrascope import job
from spectrascope.cli import main
from spectrascope.store import parts
parts.SAVE_EVERY = 0.0
decompose = job.decompose
def slowly(matrix, *arguments):
    time.sleep(0.15)
    with open("computed", "a") as file:
        file.write(f"{tuple(matrix.shape)}\\n")
    return decompose(matrix, *arguments)
job.decompose = slowly
main()
"""
COUNT = 12


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    weights = {f"layers.{i}.weight": mat(range(20, 4, -1), 24 + i, 16, seed=i) for i in range(COUNT)}
    torch.save(weights, "step7.pt")
    return Path("step7.pt")


def computed() -> int:
    return len(Path("computed").read_text().splitlines()) if Path("computed").exists() else 0


def start(store: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", SLOW, "analyze", "step7.pt", "-o", store, "--workers", "1", "--format", "json"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def test_a_killed_checkpoint_goes_on_inside(checkpoint: Path) -> None:
    """Killed three times; each matrix is decomposed once, but for those that were in hand at a kill."""
    kills = 3
    for turn in range(kills):
        process = start("k.spectra")
        deadline = time.monotonic() + 60
        while computed() < 3 * (turn + 1) and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert not list(Path("k.spectra").glob("step*.h5"))
    assert computed() < COUNT
    done = start("k.spectra")
    out, _ = done.communicate(timeout=60)
    assert done.returncode == 0
    assert COUNT <= computed() <= COUNT + 2 * kills
    assert sorted(os.listdir("k.spectra")) == ["step0000000007.h5"]
    clean = spectrascope.analyze("step7.pt", "c.spectra")
    assert Path("k.spectra/step0000000007.h5").read_bytes() == Path("c.spectra/step0000000007.h5").read_bytes()
    assert [row["matrix"] for row in json.loads(out)["rows"]] == clean.matrices


def test_a_damaged_part_is_not_used(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "SAVE_EVERY", 0.0)
    finished: list[str] = []

    def interrupting(self: Any, record: Any, writer: Any, add: Any = parts.Parts.add) -> None:
        add(self, record, writer)
        finished.append(record.name)
        if len(finished) == 5:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(parts.Parts, "add", interrupting)
        with pytest.raises(KeyboardInterrupt):
            spectrascope.analyze("step7.pt", "d.spectra", workers=1)
    left = parts.part_files(Path("d.spectra"))
    assert len(left) == 5
    content = bytearray(left[0].read_bytes())
    content[len(content) // 2] ^= 1
    left[0].write_bytes(content)
    calls: list[int] = []
    monkeypatch.setattr(job, "decompose", lambda *arguments, f=job.decompose: (calls.append(1), f(*arguments))[1])
    spectrascope.analyze("step7.pt", "d.spectra", workers=1)
    assert COUNT - 5 <= len(calls) <= COUNT - 4
    spectrascope.analyze("step7.pt", "c.spectra")
    assert Path("d.spectra/step0000000007.h5").read_bytes() == Path("c.spectra/step0000000007.h5").read_bytes()


def test_a_quick_checkpoint_leaves_no_parts(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Path] = []
    monkeypatch.setattr(parts.Parts, "_save", lambda self, writer: made.append(self._store))
    spectrascope.analyze("step7.pt", "q.spectra")
    assert not made
    assert os.listdir("q.spectra") == ["step0000000007.h5"]
