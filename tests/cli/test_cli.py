"""The command line as a person and a pipe see it, on the shipped grokking run."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from conftest import GROK, mat
from safetensors.torch import save_file

import spectrascope
from spectrascope import __version__
from spectrascope.report.rows import RANK_COLUMNS

MATRICES = [
    "embed.weight",
    "attn.key.weight",
    "attn.out.weight",
    "attn.query.weight",
    "attn.value.weight",
    "mlp.down.weight",
    "mlp.up.weight",
    "unembed.weight",
]
COMMANDS = ["analyze", "show", "rank", "spectrum", "export"]


@pytest.fixture(scope="module")
def grok(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("grok") / "grok.spectra"
    spectrascope.analyze(GROK, path)
    return path


def test_version(cli: Any) -> None:
    assert cli("--version").out == f"spectrascope {__version__}\n"
    done = subprocess.run([sys.executable, "-m", "spectrascope", "--version"], capture_output=True, text=True)
    assert done.stdout == f"spectrascope {__version__}\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, cli: Any) -> None:
    done = cli(command, "--help")
    assert done.code == 0
    assert f"spectrascope {command}" in done.out
    assert done.err == ""


@pytest.mark.parametrize(
    "arguments",
    [["nope"], ["rank"], ["rank", "x", "--nope"], ["rank", "x", "--format", "xml"], ["analyze", "x", "--top-k", "-1"]],
    ids=" ".join,
)
def test_wrong_usage_is_2_and_one_line(arguments: list[str], cli: Any) -> None:
    done = cli(*arguments)
    assert done.code == 2
    assert done.out == ""
    assert len(done.err.splitlines()) == 1
    assert "--help`" in done.err


def test_analyze_reports_ranks(grok: Path, cli: Any, tmp_path: Path) -> None:
    done = cli("analyze", GROK, "-o", tmp_path / "x.spectra", "--format", "json")
    assert done.code == 0
    assert done.json["command"] == "analyze"
    assert done.json["rows"] == cli("rank", grok, "--format", "json").json["rows"]
    assert "of the parameters (3 tensors skipped" in done.err


def test_rank_json(grok: Path, cli: Any) -> None:
    document = cli("rank", grok, "--format", "json").json
    assert list(document) == ["command", "version", "source", "rows", "warnings", "failures"]
    trajectory = spectrascope.open(grok)
    assert len(document["rows"]) == len(MATRICES) * len(trajectory.steps)
    row = next(r for r in document["rows"] if r["step"] == 0 and r["matrix"] == "mlp.up.weight")
    sigma = trajectory.singular_values("mlp.up.weight", 0)
    assert list(row) == ["step", "matrix", "shape", "dtype", *RANK_COLUMNS, "sparsity", "made_of", "reason"]
    assert row["shape"] == [512, 128]
    assert row["dtype"] == "float32"
    assert row["reason"] is None
    for name in RANK_COLUMNS:
        exact = (
            spectrascope.numerical_rank(sigma, (512, 128), "float32")
            if name == "numerical_rank"
            else getattr(spectrascope, name)(sigma)
        )
        assert row[name] == pytest.approx(float(exact), rel=1e-12), name


def test_the_shipped_run_groks_and_its_rank_falls(grok: Path, cli: Any) -> None:
    """Validation error falls to 0 between steps 1,700 and 2,300, and the rank of the MLP with it (Figure 4.2)."""
    metrics = {int(line["step"]): line for line in csv.DictReader((GROK / "metrics.csv").open())}
    assert float(metrics[400]["train_error"]) == 0
    assert float(metrics[1700]["val_error"]) > 0.45
    assert float(metrics[2300]["val_error"]) == 0
    rank = {
        (row["step"], row["matrix"]): row["norm_effective_rank"]
        for row in cli("rank", grok, "--matrix", "mlp*", "--format", "json").json["rows"]
    }
    for matrix, before, after in (("mlp.up.weight", 0.56, 0.34), ("mlp.down.weight", 0.53, 0.26)):
        assert rank[1440, matrix] == pytest.approx(before, abs=0.03)
        assert rank[1920, matrix] == pytest.approx(before, abs=0.03)
        assert rank[2880, matrix] == pytest.approx(after, abs=0.01)


def test_formats_hold_the_same_rows(grok: Path, cli: Any) -> None:
    rows = cli("rank", grok, "--format", "json").json["rows"]
    assert [json.loads(line) for line in cli("rank", grok, "--format", "jsonl").out.splitlines()] == rows
    lines = list(csv.DictReader(io.StringIO(cli("rank", grok, "--format", "csv").out)))
    assert len(lines) == len(rows)
    for line, row in zip(lines, rows, strict=True):
        assert json.loads(line["shape"]) == row["shape"]
        assert float(line["effective_rank"]) == row["effective_rank"]
        assert line["reason"] == ""


def test_the_summary_has_a_line_per_matrix(grok: Path, cli: Any) -> None:
    done = cli("rank", grok)
    steps = spectrascope.open(grok).steps
    title, header, *lines = done.out.splitlines()
    assert title.startswith(f"effective rank, {len(steps)} steps, 0 to {steps[-1]};")
    assert header.split()[:4] == ["matrix", "shape", "first", "lowest"]
    assert [line.split()[0] for line in lines] == MATRICES
    sigma = spectrascope.open(grok).singular_values("mlp.up.weight")
    cells = next(line.split() for line in lines if line.startswith("mlp.up"))
    ranks = spectrascope.effective_rank(sigma)
    assert cells[1:4] == ["512x128", f"{ranks[0]:.4g}", f"{ranks.min():.4g}"]
    assert cells[4] == str(steps[int(ranks.argmin())])
    assert len(cells[-1]) == len(steps)


def test_the_summary_opens_up(grok: Path, cli: Any) -> None:
    steps = spectrascope.open(grok).steps
    assert len(cli("rank", grok, "--all").out.splitlines()) == 1 + len(steps) * len(MATRICES)
    title, _, *lines = cli("rank", grok, "--step", steps[3]).out.splitlines()
    assert title == f"step {steps[3]}"
    assert [line.split()[0] for line in lines] == MATRICES
    assert len(cli("rank", grok, "--matrix", "mlp*").out.splitlines()) == 1 + 2 * len(steps)


def test_filters_that_fit_nothing(grok: Path, cli: Any) -> None:
    done = cli("rank", grok, "--matrix", "nope")
    assert done.code == 2
    assert "no matrix matches 'nope'; there are embed.weight, attn.key.weight" in done.err
    assert cli("rank", grok, "--step", "7").code == 2
    assert "there is no step 7; there are 0," in cli("rank", grok, "--step", "7").err


def test_paths_on_standard_input(cli: Any, tmp_path: Path) -> None:
    listing = "".join(f"{path}\n" for path in sorted(GROK.glob("*.safetensors")))
    done = cli("analyze", "-", "--steps", "log:3", "-o", "x.spectra", "--format", "jsonl", cwd=tmp_path, stdin=listing)
    assert done.code == 0
    rows = [json.loads(line) for line in done.out.splitlines()]
    steps = sorted({row["step"] for row in rows})
    assert steps[0] == 0
    assert 3 <= len(steps) <= 4
    assert all(0 < row["norm_effective_rank"] <= 1 for row in rows)
    assert cli("analyze", "-", cwd=tmp_path, stdin=listing).code == 2
    assert "no path came on standard input" in cli("analyze", "-", "-o", "y", cwd=tmp_path, stdin="\n").err


def test_the_default_store(cli: Any, tmp_path: Path) -> None:
    (tmp_path / "in" / "run.v2").mkdir(parents=True)
    save_file({"w": mat([1.0], 3, 3)}, tmp_path / "in" / "run.v2" / "step1.safetensors")
    torch.save({"w": mat([1.0], 3, 3)}, tmp_path / "in" / "m.best.pt")
    assert cli("analyze", "in/run.v2/", cwd=tmp_path).code == 0
    assert cli("analyze", "in/m.best.pt", cwd=tmp_path).code == 0
    assert cli("analyze", ".", cwd=tmp_path / "in" / "run.v2").code == 0
    assert sorted(p.name for p in tmp_path.glob("*.spectra")) == ["m.best.spectra", "run.v2.spectra"]
    assert (tmp_path / "in" / "run.v2" / "run.v2.spectra").is_dir()
    again = cli("analyze", ".", cwd=tmp_path / "in" / "run.v2")  # its own store is no checkpoint
    assert (again.code, again.err.count("warning")) == (0, 0)


def test_show(cli: Any) -> None:
    document = cli("show", GROK, "--format", "json").json
    assert [row["matrix"] for row in document["rows"]] == MATRICES
    up = document["rows"][6]
    assert (up["shape"], up["dtype"], up["role"], up["guessed"]) == ([512, 128], "float32", "linear", False)
    assert document["rows"][0]["role"] == "embedding"
    assert [(one["name"], one["reason"]) for one in document["skipped"]] == [
        ("mlp.down.bias", "1-D"),
        ("mlp.up.bias", "1-D"),
        ("position.pe", "position table"),
    ]
    assert 0.99 < document["coverage"] < 1
    text = cli("show", GROK)
    assert "position.pe" in text.out
    assert re.search(r"8 matrices hold 99\.\d% of the parameters", text.err)


def test_spectrum(grok: Path, cli: Any) -> None:
    rows = cli("spectrum", grok, "mlp.up.weight", "--format", "json").json["rows"]
    sigma = spectrascope.open(grok).singular_values("mlp.up.weight")
    np.testing.assert_array_equal([row["singular_values"] for row in rows], sigma)
    table = cli("spectrum", grok, "mlp.up.weight").out
    assert table.startswith("singular values of mlp.up.weight (512x128)\n")
    assert cli("spectrum", grok, "nope").code == 2


def test_export(grok: Path, cli: Any, tmp_path: Path) -> None:
    sigma = spectrascope.open(grok).singular_values("mlp.up.weight")
    for name in ("all.h5", "all.csv", "all.json"):
        done = cli("export", grok, "--to", tmp_path / name)
        assert (done.code, done.out) == (0, "")
    with h5py.File(tmp_path / "all.h5") as file:
        assert [name.decode() for name in file["names"][:]] == MATRICES
        np.testing.assert_array_equal(file["singular_values/6"][:], sigma)
    lines = list(csv.DictReader((tmp_path / "all.csv").open()))
    mine = [float(line["singular_value"]) for line in lines if line["matrix"] == "mlp.up.weight"]
    np.testing.assert_array_equal(mine, sigma.ravel())
    rows = json.loads((tmp_path / "all.json").read_text())["rows"]
    assert len(rows) == len(MATRICES) * len(sigma)
    assert cli("export", grok, "--to", tmp_path / "all.xls").code == 2
    assert cli("export", grok, "--to", tmp_path / "no" / "all.csv").code == 2


@pytest.mark.parametrize("suffix", ["png", "pdf", "svg"])
def test_plots(grok: Path, cli: Any, tmp_path: Path, suffix: str) -> None:
    starts = {"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}
    heat, lines = tmp_path / f"heat.{suffix}", tmp_path / f"lines.{suffix}"
    assert cli("rank", grok, "--plot", heat, "--metrics", GROK / "metrics.csv", "--log-steps").code == 0
    assert cli("spectrum", grok, "mlp.up.weight", "--plot", lines).code == 0
    assert heat.read_bytes().startswith(starts[suffix])
    assert lines.read_bytes().startswith(starts[suffix])


def test_plots_that_cannot_be_drawn(grok: Path, cli: Any, tmp_path: Path) -> None:
    assert "one of .png" in cli("rank", grok, "--plot", tmp_path / "x.docx").err
    assert "there is no directory" in cli("rank", grok, "--plot", tmp_path / "no" / "x.png").err
    assert cli("rank", grok, "--metrics", GROK / "metrics.csv").code == 2
    bad = tmp_path / "bad.csv"
    bad.write_text("loss\n1\n")
    assert "a column `step`" in cli("rank", grok, "--plot", tmp_path / "x.png", "--metrics", bad).err
    assert not list(tmp_path.glob("x.*"))


def test_a_directory_of_other_files_is_no_store(cli: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    save_file({"w": mat([1.0], 3, 3)}, run / "step1.safetensors")
    done = cli("analyze", GROK, "-o", run)
    assert done.code == 2
    assert "holds other files (step1.safetensors); name a directory of its own with -o" in done.err
    assert len(list(run.iterdir())) == 1


def test_a_match_that_fits_nothing_leaves_no_store(cli: Any, tmp_path: Path) -> None:
    done = cli("analyze", GROK, "-o", tmp_path / "x.spectra", "--match", "nope*")
    assert done.code == 2
    assert done.err == ("spectrascope: no matrix is left by nope*; there are " + ", ".join(MATRICES) + "\n")
    assert not (tmp_path / "x.spectra").exists()


def test_near_names_are_offered(grok: Path, cli: Any) -> None:
    assert "did you mean mlp.up.weight" in cli("spectrum", grok, "mlp.up.wieght").err
    assert "did you mean mlp.up.weight" in cli("rank", grok, "-m", "mlp.up").err
    assert f"did you mean {GROK}?" in cli("analyze", f"{GROK}k").err
    assert "make one of checkpoints with `spectrascope analyze`" in cli("rank", GROK).err


def test_a_second_run_says_that_all_is_there(cli: Any, tmp_path: Path) -> None:
    for _ in range(2):
        done = cli("analyze", GROK, "-o", tmp_path / "x.spectra", "--steps", "0,240")
    assert done.err == f"spectrascope: 2 checkpoints, all in {tmp_path}/x.spectra already\n"


def test_skipped_tensors_are_rows_of_csv_too(cli: Any) -> None:
    lines = list(csv.DictReader(io.StringIO(cli("show", GROK, "--format", "csv").out)))
    assert [line["matrix"] for line in lines] == [*MATRICES, "mlp.down.bias", "mlp.up.bias", "position.pe"]
    assert lines[-1]["reason"] == "position table"


def test_quiet_says_nothing(grok: Path, cli: Any, tmp_path: Path) -> None:
    assert cli("analyze", GROK, "--steps", "last", "-o", tmp_path / "x.spectra", "--quiet").err == ""
    assert cli("show", GROK, "--quiet").err == ""


def test_no_arguments_are_a_call_for_help(cli: Any) -> None:
    assert cli().out == cli("--help").out
    assert (cli().code, cli().err) == (0, "")


def test_a_failed_analysis_names_each_cause_once_and_leaves_no_store(cli: Any, tmp_path: Path) -> None:
    (tmp_path / "step1.pt").write_bytes(b"")
    for flags in ([], ["--quiet"]):
        done = cli("analyze", tmp_path, "-o", tmp_path / "x.spectra", *flags)
        assert done.code == 1
        assert done.err == (
            f"spectrascope: {tmp_path}/step1.pt: is empty (0 bytes)\nspectrascope: nothing could be analysed\n"
        )
        assert not (tmp_path / "x.spectra").exists()


def test_debug_shows_the_traceback_and_changes_nothing_else(cli: Any, tmp_path: Path) -> None:
    plain, debug = cli("rank", tmp_path / "nope"), cli("rank", tmp_path / "nope", "--debug")
    assert "Traceback" not in plain.err
    assert "Traceback" in debug.err
    assert debug.err.endswith(plain.err)
    assert (plain.code, debug.code) == (2, 2)


def test_a_selection_of_nothing_is_wrong_usage(grok: Path, cli: Any, tmp_path: Path) -> None:
    for arguments in (["rank", grok], ["spectrum", grok, "mlp.up.weight"], ["analyze", GROK, "-o", tmp_path / "x"]):
        done = cli(*arguments, "--steps", "5-9")
        assert (done.code, done.out) == (2, "")
        assert "no step is in 5-9; there are 0, 240" in done.err


def test_a_matrix_that_is_not_at_the_step(cli: Any, tmp_path: Path) -> None:
    early, late = {"a": mat([1.0], 3, 3)}, {"a": mat([2.0], 3, 3), "late": mat([1.0], 3, 3)}
    spectrascope.analyze([(0, early), (1, late)], tmp_path / "x.spectra")
    for arguments in (["rank", "-m", "late"], ["spectrum", "late"]):
        done = cli(arguments[0], tmp_path / "x.spectra", *arguments[1:], "--steps", "0", "--plot", tmp_path / "x.png")
        assert (done.code, done.out) == (2, "")
        assert "at the steps asked for there is no late" in done.err


def test_a_store_in_which_nothing_can_be_read(cli: Any, tmp_path: Path) -> None:
    spectrascope.analyze([(0, {"a": mat([1.0], 3, 3)})], tmp_path / "x.spectra")
    (tmp_path / "x.spectra" / "step0000000000.h5").write_bytes(b"x" * 1000)
    done = cli("rank", tmp_path / "x.spectra", "--format", "json")
    assert (done.code, done.out) == (1, "")
    assert "no step can be read" in done.err


def test_files_of_a_store_are_never_overwritten(grok: Path, cli: Any) -> None:
    step = sorted(grok.iterdir())[0]
    before = step.read_bytes()
    assert "is inside a store" in cli("export", grok, "--to", step).err
    assert "is inside a store" in cli("rank", grok, "--plot", grok / "x.png").err
    assert step.read_bytes() == before


def test_a_file_that_cannot_be_written_whole_is_left_as_it_was(grok: Path, tmp_path: Path) -> None:
    for name in ("all.csv", "all.json", "all.h5"):
        (tmp_path / name).write_text("precious")
        limited = ["bash", "-c", 'ulimit -f 2; trap "" XFSZ; exec "$@"', "-", sys.executable, "-m", "spectrascope"]
        export = ["export", str(grok), "--to", str(tmp_path / name)]
        done = subprocess.run([*limited, *export], capture_output=True, text=True)
        assert done.returncode == 1, name
        assert "Traceback" not in done.stderr
        assert (tmp_path / name).read_text() == "precious"
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize("closed", ["2>&-", ">&-", "<&-", ">/dev/full"])
def test_streams_that_are_closed_or_full(grok: Path, tmp_path: Path, closed: str) -> None:
    command = f'"{sys.executable}" -m spectrascope rank "{grok}" --format csv --plot q.png {closed}'
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True)
    assert "Traceback" not in done.stderr
    assert "fault of spectrascope" not in done.stderr
    assert done.returncode == (1 if closed == ">/dev/full" else 0)
    if ">" not in closed[:1]:
        assert done.stdout.startswith("step,matrix,")


def test_an_empty_path_is_not_the_current_directory(cli: Any, tmp_path: Path) -> None:
    done = cli("analyze", "", cwd=tmp_path)
    assert done.code == 2
    assert "an empty path" in done.err


def test_one_path_on_standard_input_needs_a_store_too(cli: Any, tmp_path: Path) -> None:
    assert cli("analyze", "-", cwd=tmp_path, stdin=f"{GROK}\n").code == 2


def test_a_fault_of_ours_is_one_line(grok: Path, cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spectrascope.cli.rank.rank_rows", lambda *arguments: 1 / 0)
    done = cli("rank", grok)
    assert done.code == 1
    assert done.err.startswith("spectrascope: ZeroDivisionError")
    assert "--debug" in done.err
    assert len(done.err.splitlines()) == 1


def test_names_are_data(cli: Any, tmp_path: Path) -> None:
    names = ["[bold]x[/bold]", "a\x1b[31mred", "new\nline", "$x^2$", "nul\0", "=1+1"]
    torch.save({name: mat([2.0, 1.0], 4, 3) for name in names}, tmp_path / "m.pt")
    done = cli("analyze", tmp_path / "m.pt", "-o", tmp_path / "x.spectra")
    assert done.code == 0
    assert "[bold]x[/bold]" in done.out
    assert r"a\x1b[31mred" in done.out
    assert r"new\nline" in done.out
    assert "\x1b" not in done.out
    rows = cli("rank", tmp_path / "x.spectra", "--format", "json").json["rows"]
    assert [row["matrix"] for row in rows] == names
    assert cli("rank", tmp_path / "x.spectra", "--plot", tmp_path / "x.png").code == 0
    assert cli("spectrum", tmp_path / "x.spectra", "$x^2$", "--plot", tmp_path / "y.png").code == 0


def test_on_a_terminal_there_is_a_bar_and_a_table_in_colour(tmp_path: Path) -> None:
    """In a pseudo-terminal: the bar goes to stderr, the table to stdout, the exit code is 0."""
    out = bytearray()

    def read(descriptor: int) -> bytes:
        data = os.read(descriptor, 4096)
        out.extend(data)
        return data

    command = [sys.executable, "-m", "spectrascope", "analyze", str(GROK), "-o", str(tmp_path / "x.spectra")]
    assert pty.spawn(command, read) == 0
    text = out.decode()
    assert "analysing" in text
    assert "ETA" in text
    assert "mlp.up.weight" in text
    assert "norm_effective_rank" in text
    # Numbers are whole, whatever the width.
    lines = [line for line in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).splitlines() if "512x128" in line]
    assert len(lines) == 1
    assert "123.7" in lines[0]


def test_values_only_keeps_singular_values_alone(cli: Any, tmp_path: Path) -> None:
    """Kilobytes a checkpoint; the values are those of the default, and vectors come when they are asked for."""
    command = ("analyze", GROK, "--steps", "last", "--format", "json")
    whole = cli(*command, "-o", tmp_path / "whole.spectra")
    alone = cli(*command, "-o", tmp_path / "alone.spectra", "--values-only")
    for one, other in zip(alone.json["rows"], whole.json["rows"], strict=True):
        assert one["matrix"] == other["matrix"]
        assert one["effective_rank"] == pytest.approx(other["effective_rank"], rel=1e-10)
    (file,) = (tmp_path / "alone.spectra").glob("step*.h5")
    (large,) = (tmp_path / "whole.spectra").glob("step*.h5")
    assert file.stat().st_size < 30_000 < large.stat().st_size / 10
    refused = cli("sva", tmp_path / "alone.spectra", "--format", "json")
    assert all("no singular vectors are kept" in row["reason"] for row in refused.json["rows"])
    assert cli(*command, "-o", tmp_path / "alone.spectra").code == 0
    assert (tmp_path / "alone.spectra" / file.name).stat().st_size == large.stat().st_size
