"""What many tests share: matrices of chosen spectra, and the command line in process and out of it."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

for _library in ("OMP", "OPENBLAS", "MKL"):
    os.environ.setdefault(f"{_library}_NUM_THREADS", "1")

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from spectrascope.arrays import to_torch
from spectrascope.cli import main

torch.set_num_threads(1)
ROOT = Path(__file__).parent.parent
GROK = ROOT / "fixtures" / "grok"
FORMATS = ROOT / "tests" / "data" / "formats"
# Where the fixture `analyze` puts what it decomposes.
STORE = Path("store.spectra")


def mat(singular_values: Any, m: int, n: int, seed: int = 0, dtype: Any = np.float32) -> torch.Tensor:
    """An m x n matrix whose singular values are exactly those given: built in float64, then cast."""
    random = np.random.default_rng(seed)
    k = len(singular_values)
    u = np.linalg.qr(random.standard_normal((m, k)))[0]
    v = np.linalg.qr(random.standard_normal((n, k)))[0]
    return torch.tensor(((u * np.asarray(singular_values, float)) @ v.T).astype(dtype))


def equal(found: NDArray[Any], expected: torch.Tensor) -> bool:
    """Whether an array has the type, the shape and all numbers of a tensor."""
    return torch.equal(to_torch(found), expected)


@dataclass
class Result:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Strict JSON: a bare NaN or Infinity is an error."""
        return json.loads(self.out, parse_constant=lambda token: pytest.fail(f"{token} is not JSON"))


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run the command line in this process: `cli("rank", store, "--format", "json").json["rows"]`."""

    def run(*arguments: object, cwd: Path | None = None, stdin: str | None = None) -> Result:
        capsys.readouterr()
        with monkeypatch.context() as patch:
            if cwd is not None:
                patch.chdir(cwd)
            patch.setattr(sys, "stdin", io.StringIO(stdin or ""))
            with pytest.raises(SystemExit) as exit_:
                main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Result(int(exit_.value.code or 0), captured.out, captured.err)

    return run


def run_cli(
    *arguments: object, env: dict[str, str] | None = None, cwd: Path | None = None, timeout: float = 60, **more: Any
) -> Result:
    """Run the command line in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "spectrascope", *map(str, arguments)],
        capture_output=True,
        env={**os.environ, **(env or {})},
        cwd=cwd,
        timeout=timeout,
        **more,
    )
    return Result(done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace"))


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory for the recipe, in the current directory; the store is beside it."""
    monkeypatch.chdir(tmp_path)
    Path("case").mkdir()
    return Path("case")


@pytest.fixture
def analyze(cli: Any) -> Any:
    def run(source: Path, *options: object) -> Result:
        result: Result = cli("analyze", source, "-o", STORE, "--format", "json", *options)
        assert_plain(result)
        return result

    return run


@pytest.fixture
def spectra(cli: Any) -> Any:
    """The singular values that the store holds of a matrix, by step."""

    def run(matrix: str) -> dict[int, list[float]]:
        rows = cli("spectrum", STORE, matrix, "--format", "json").json["rows"]
        return {row["step"]: row["singular_values"] for row in rows}

    return run


def assert_plain(result: Result) -> None:
    """No traceback, no control codes, and every line on stderr is one of ours."""
    assert not re.search("[\x1b\r]", result.out + result.err)
    assert "Traceback" not in result.err
    assert all(line.startswith("spectrascope: ") for line in result.err.splitlines())


def row_of(result: Result, matrix: str) -> dict[str, Any]:
    (row,) = [row for row in result.json["rows"] if row["matrix"] == matrix]
    return row
