"""Broken checkpoints cost their own step: one line on stderr, the others go on, exit code 3, and nothing hangs."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import STORE, Result, assert_plain, mat, run_cli
from safetensors.torch import save_file

W = mat([2.0, 1.0], 6, 4)


def header(content: bytes, length: int | None = None, data: bytes = b"") -> bytes:
    """The bytes of a safetensors file with this header, right or wrong."""
    return struct.pack("<Q", len(content) if length is None else length) + content + data


def tensor(begin: int, end: int, shape: object = (6, 4), dtype: str = "F32") -> bytes:
    return json.dumps({"fc.weight": {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}}).encode()


def saved(path: Path, value: object = None) -> bytes:
    torch.save({"fc.weight": W} if value is None else value, path)
    return path.read_bytes()


SAFETENSORS = {
    "empty": (b"", "is empty"),
    "LFS pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "Git LFS pointer"),
    "seven bytes": (b"\0" * 7, "safetensors"),
    "garbage": (b"not a checkpoint at all", "safetensors"),
    "JSON garbage": (header(b"{not json", data=b"\0" * 96), "safetensors"),
    "JSON of another kind": (header(b"[1, 2, 3]", data=b"\0" * 96), "safetensors"),
    "not UTF-8": (header(b'{"\xff\xfe": 3}', data=b"\0" * 96), "safetensors"),
    "deep JSON": (header(b"[" * 100_000, data=b"\0" * 96), "safetensors"),
    "offsets past the end": (header(tensor(0, 960), data=b"\0" * 96), "is truncated|safetensors"),
    "offsets that overlap": (header(tensor(96, 0), data=b"\0" * 96), "safetensors"),
    "shape and offsets that differ": (header(tensor(0, 96, (60, 40)), data=b"\0" * 96), "safetensors"),
    "shape without end": (header(tensor(0, 96, (2**62, 2**62)), data=b"\0" * 96), "safetensors"),
    "an unknown dtype": (header(tensor(0, 96, dtype="F31"), data=b"\0" * 96), "safetensors"),
    "a header longer than the file": (header(tensor(0, 96), length=2**40, data=b"\0" * 96), "safetensors"),
    "a negative length": (header(tensor(0, 96), length=2**64 - 1, data=b"\0" * 96), "safetensors"),
    "a header of 100 MB": (header(b'{"a": "' + b"x" * 10**8 + b'"}'), "is 100 MB long"),
    "a header longer than any model's": (header(tensor(0, 96) + b" " * 17 * 10**6, data=b"\0" * 96), "is 17 MB long"),
    "truncated": (header(tensor(0, 96), data=b"\0" * 50), "is truncated"),
}


@pytest.fixture
def run(case: Path, cli: Any) -> Callable[..., Result]:
    """Analyse a trajectory of three steps, of which the middle one is broken."""
    for step in (1, 3):
        save_file({"fc.weight": step * W}, case / f"step{step}.safetensors")

    def analyze() -> Result:
        result: Result = cli("analyze", case, "-o", STORE, "--format", "json")
        assert_plain(result)
        return result

    return analyze


def assert_only_step_2_failed(result: Result, cause: str, path: str = "step2") -> None:
    assert result.code == 3, result.err
    assert [row["step"] for row in result.json["rows"]] == [1, 3]
    (failure,) = result.json["failures"]
    assert failure["step"] == 2
    assert path in failure["path"]
    lines = [line for line in result.err.splitlines() if f"{path}" in line and "warning" not in line]
    assert len(lines) == 1, result.err
    assert any(one in lines[0] for one in cause.split("|")), lines[0]
    assert sorted(path.name for path in STORE.iterdir()) == ["step0000000001.h5", "step0000000003.h5"]


@pytest.mark.parametrize("what", SAFETENSORS)
def test_safetensors(case: Path, run: Any, what: str) -> None:
    content, cause = SAFETENSORS[what]
    (case / "step2.safetensors").write_bytes(content)
    assert_only_step_2_failed(run(), cause)


@pytest.mark.parametrize(
    "what", ["truncated", "half", "garbage inside", "a bare pickle", "empty", "no tensors", "text"]
)
@pytest.mark.parametrize("suffix", [".pt", ".npz"])
def test_pickles_and_archives(case: Path, run: Any, tmp_path: Path, suffix: str, what: str) -> None:
    path = case / f"step2{suffix}"
    if suffix == ".pt":
        whole = saved(tmp_path / "whole.pt")
    else:
        np.savez_compressed(tmp_path / "whole.npz", w=np.random.default_rng(0).standard_normal((60, 40)))
        whole = (tmp_path / "whole.npz").read_bytes()
    content = {
        "truncated": whole[:-30],
        "half": whole[: len(whole) // 2],
        "garbage inside": whole[:60] + bytes(200) + whole[260:],
        "a bare pickle": b"\x80\x02}q\x00.",
        "empty": b"",
        "no tensors": saved(tmp_path / "none.pt", {"epoch": 3}) if suffix == ".pt" else b"PK\5\6" + bytes(18),
        "text": b"hello\n" * 100,
    }[what]
    path.write_bytes(content)
    result = run()
    if what == "no tensors" and suffix == ".npz":  # an archive of nothing is an empty checkpoint, not a damaged one
        assert [row["step"] for row in result.json["rows"]] == [1, 3]
        return
    assert_only_step_2_failed(result, "is |holds ")


def test_a_flipped_bit_in_a_compressed_archive_is_found(case: Path, run: Any) -> None:
    path = case / "step2.npz"
    np.savez_compressed(path, **{"fc.weight": np.random.default_rng(0).standard_normal((60, 40))})
    whole = bytearray(path.read_bytes())
    whole[len(whole) // 2] ^= 16
    path.write_bytes(whole)
    assert_only_step_2_failed(run(), "fc.weight is damaged")


NAMES = {
    "slashes": "a/b/../c/weight",
    "newlines": "a\nb\r\nspectrascope: error: c.weight",
    "control characters": "a\x1b[31mred\x07\x08.weight",
    "NULs": "a\0b.weight",
    "10,000 characters": "layer." * 1666 + "weight",
    "marks of the right-to-left": "a\u202eb.weight",
    "10,000 underscores": "_" * 10_000,
    "5,000 dots": "a." * 5_000 + "weight",
    "5,000 experts": "experts." * 1_200 + "weight",
    "nothing": "",
    "blanks": "  ",
    "a surrogate": "a\ud800.weight",
}


@pytest.mark.parametrize("what", NAMES)
def test_odd_names(case: Path, cli: Any, what: str) -> None:
    name = NAMES[what]
    if what == "a surrogate":
        torch.save({"fc.weight": W, name: 3 * W}, case / "step1.pt")
    else:
        save_file({"fc.weight": W.clone(), name: 3 * W}, case / "step1.safetensors")
    for command in (["analyze", case, "-o", STORE], ["show", case], ["rank", STORE], ["rank", STORE, "--all"]):
        result = cli(*command)
        assert_plain(result)
        assert result.code == 0, result.err
        as_json = cli(*command[:-1], command[-1], "--format", "json") if command[-1] != "--all" else None
        if as_json is not None:
            assert name in [row["matrix"] for row in as_json.json["rows"]]
    assert sorted(path.name for path in Path().iterdir()) == ["case", "store.spectra"]


def test_links_in_a_circle(case: Path, run: Any) -> None:
    (case / "step2").symlink_to(case.absolute())
    (case / "loop").symlink_to("loop")
    (case / "step4.safetensors").symlink_to("step4.safetensors")
    result = run()
    assert [row["step"] for row in result.json["rows"]] == [1, 3]


def test_a_file_without_permission(case: Path, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = case / "step2.safetensors"
    save_file({"fc.weight": W}, path)
    if os.geteuid() == 0:  # root reads what nobody may
        opened = Path.open

        def refuse(self: Path, *arguments: Any, **options: Any) -> Any:
            if self.name == path.name:
                raise PermissionError(13, "Permission denied", str(self))
            return opened(self, *arguments, **options)

        monkeypatch.setattr(Path, "open", refuse)
    else:
        path.chmod(0)
    assert_only_step_2_failed(run(), "Permission denied")


@pytest.mark.parametrize("what", ["vanishes", "grows", "shrinks", "is replaced"])
@pytest.mark.parametrize("suffix", [".safetensors", ".pt", ".npz"])
def test_a_file_that_changes_while_it_is_read(
    case: Path, run: Any, monkeypatch: pytest.MonkeyPatch, what: str, suffix: str
) -> None:
    from spectrascope.checkpoints import checkpoint

    path = case / f"step2{suffix}"
    weights = {f"l{i}.weight": mat([1.0 + i], 30, 20, seed=i) for i in range(5)}
    if suffix == ".safetensors":
        save_file(weights, path)
    elif suffix == ".pt":
        torch.save(weights, path)
    else:
        np.savez(path, **{name: one.numpy() for name, one in weights.items()})
    hashed, done = checkpoint.hash_tensor, []

    def hash_and_change(one: Any) -> str:
        digest = hashed(one)
        if one.shape == (30, 20) and not done:
            done.append(True)
            whole = path.read_bytes()
            if what == "vanishes":
                path.unlink()
            elif what == "grows":
                path.write_bytes(whole + b"more")
            elif what == "shrinks":
                os.truncate(path, 10)
            else:
                path.unlink()
                path.write_bytes(bytes(len(whole)))
        return digest

    monkeypatch.setattr("spectrascope.job.hash_tensor", hash_and_change)
    assert_only_step_2_failed(run(), "cannot be read|changed while it was being read|is truncated|is damaged")


def test_a_directory_that_vanishes(case: Path, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from spectrascope.checkpoints import find

    folder = case / "step2"
    folder.mkdir()
    save_file({"fc.weight": W}, folder / "model.safetensors")
    found = find.find_checkpoints

    def find_and_remove(*arguments: Any, **options: Any) -> Any:
        result = found(*arguments, **options)
        shutil.rmtree(folder)
        return result

    monkeypatch.setattr("spectrascope.pipeline.find_checkpoints", find_and_remove)
    assert_only_step_2_failed(run(), "No such file")


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
from spectrascope.cli import main
main(sys.argv[1:])
"""


def test_a_disk_that_is_full(case: Path) -> None:
    """No file may grow beyond a limit, as on a full disk: the step that is too large fails, the small ones do not."""
    for step, size in ((1, 6), (2, 600), (3, 6)):
        save_file({"fc.weight": mat([float(step)], size, 40)}, case / f"step{step}.safetensors")
    program = LIMITED.format(limit=100_000)
    command = [sys.executable, "-c", program, "analyze", str(case), "-o", str(STORE), "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    result = Result(done.returncode, done.stdout, done.stderr)
    assert_plain(result)
    assert_only_step_2_failed(result, "cannot be written to")
    assert not [path.name for path in STORE.iterdir() if path.name.endswith(".tmp")]
    # With room the rest is made.
    assert run_cli("analyze", case, "-o", STORE).code == 0


def test_a_disk_that_is_full_from_the_start(case: Path) -> None:
    save_file({"fc.weight": mat([1.0], 600, 40)}, case / "step1.safetensors")
    command = [sys.executable, "-c", LIMITED.format(limit=1000), "analyze", str(case), "-o", str(STORE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "step1.safetensors: " in done.stderr
    assert "cannot be written to" in done.stderr
    assert "Traceback" not in done.stderr
    assert not STORE.exists()


def test_a_hostile_pickle_array_and_metadata_create_nothing(case: Path, run: Any) -> None:
    class Payload:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(case / "created"),)

    array = np.empty(1, dtype=object)
    array[0] = Payload()
    torch.save({"fc.weight": W, "bomb": Payload()}, case / "step2.pt")
    np.savez(case / "step4.npz", bomb=array)
    (case / "step5").mkdir()
    import pickle

    (case / "step5" / ".metadata").write_bytes(pickle.dumps(Payload()))
    result = run()
    assert not (case / "created").exists()
    assert result.code == 3
    assert [row["step"] for row in result.json["rows"]] == [1, 3]
    reasons = {failure["step"]: failure["reason"] for failure in result.json["failures"]}
    assert "refused by the safe loader: it asks for `posix.mkdir`" in reasons[2]
    assert "asks for `posix.mkdir`" in reasons[5]
