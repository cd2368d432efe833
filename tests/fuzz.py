"""Small valid checkpoints of every format with bytes flipped, cut, repeated and spliced, through the command line.

    python tests/fuzz.py [--examples 10000]

Whatever is in the files: an exit code that is documented, no traceback, at most 10 seconds, and no more than 1 GiB of
memory above that of the imports. Examples run in processes of their own, so that a crash is one more finding.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import io
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import torch
import torch.nn.utils.prune
from hypothesis import HealthCheck, Phase, given, seed, settings
from safetensors.torch import save_file

from spectrascope.cli import main

DATA = Path(__file__).parent / "data" / "formats"
GROK = Path(__file__).parent.parent / "fixtures" / "grok"
SECONDS, BYTES = 10.0, 2**30
CODES = {0, 1, 2, 3}
PROCESSES = 10

# A checkpoint as its files: path below the directory -> content.
Tree = dict[str, bytes]
WEIGHTS = {"fc.weight": torch.arange(800.0).reshape(40, 20), "fc.bias": torch.ones(40), "out.weight": torch.eye(3, 40)}


def _safetensors(to: Path) -> None:
    save_file(WEIGHTS, to / "step1.safetensors")


def _zip(to: Path) -> None:
    torch.save({"model": WEIGHTS, "optimizer": {0: {"exp_avg": torch.ones(6, 4)}}, "step": 7}, to / "a.pt")


def _legacy(to: Path) -> None:
    torch.save({"state_dict": WEIGHTS, "global_step": 7}, to / "step1.ckpt", _use_new_zipfile_serialization=False)


def _npz(to: Path) -> None:
    np.savez(to / "step1.npz", **{name: tensor.numpy() for name, tensor in WEIGHTS.items()})


def _compressed_npz(to: Path) -> None:
    np.savez_compressed(to / "step1.npz", **{name: tensor.numpy() for name, tensor in WEIGHTS.items()})


def _sharded(to: Path) -> None:
    home = {name: f"model-{i + 1:05d}-of-00003.safetensors" for i, name in enumerate(WEIGHTS)}
    for name, file in home.items():
        save_file({name: WEIGHTS[name]}, to / file)
    (to / "model.safetensors.index.json").write_text(json.dumps({"weight_map": home}))


def _distributed(to: Path) -> None:
    import torch.distributed.checkpoint as dcp

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save({"model": dict(WEIGHTS), "step": 3}, checkpoint_id=str(to / "last"), no_dist=True)


def _adapter(to: Path) -> None:
    factors = {"fc.lora_A.weight": torch.ones(2, 6), "fc.lora_B.weight": torch.ones(8, 2)}
    save_file(factors, to / "adapter_model.safetensors")
    (to / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 2, "lora_alpha": 16, "rank_pattern": {"x": 1}}')


def _codes(to: Path) -> None:
    codes = {"fc.weight": torch.ones(8, 6, dtype=torch.int8), "fc.SCB": torch.ones(8)}
    codes |= {"a.weight": torch.ones(6, 4).to(torch.float8_e4m3fn), "a.weight_scale": torch.ones(6, 1)}
    codes |= {"b.qweight": torch.ones(2, 8, dtype=torch.int32), "b.scales": torch.ones(1, 8)}
    save_file(codes, to / "step1.safetensors")


def _parametrised(to: Path) -> None:
    layer = torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(6, 4))
    pruned = torch.nn.utils.prune.l1_unstructured(torch.nn.Linear(4, 6), "weight", amount=0.5)
    torch.save({**layer.state_dict(), **{f"p.{k}": v for k, v in pruned.state_dict().items()}}, to / "step1.pth")


def _copied(*names: str) -> Callable[[Path], None]:
    def copy(to: Path) -> None:
        for name in names:
            source = DATA / name
            shutil.copytree(source, to / source.name) if source.is_dir() else shutil.copy(source, to)

    return copy


SEEDS: dict[str, Callable[[Path], None]] = {
    "safetensors": _safetensors,
    "torch zip": _zip,
    "torch legacy": _legacy,
    "npz": _npz,
    "compressed npz": _compressed_npz,
    "sharded": _sharded,
    "distributed": _distributed,
    "adapter": _adapter,
    "codes": _codes,
    "parametrised": _parametrised,
    "lightning": _copied("lightning_ema"),
    "two processes": _copied("dcp_dtensor_colshard"),
    "deepspeed": _copied("deepspeed_zero3"),
    "gguf": _copied("gguf/model.gguf"),
    "keras": _copied("keras3/model.keras"),
}


@cache
def tree_of(name: str) -> Tree:
    """The files of a valid checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        SEEDS[name](Path(folder))
        return {
            str(path.relative_to(folder)): path.read_bytes()
            for path in sorted(Path(folder).rglob("*"))
            if path.is_file()
        }


@dataclass(frozen=True)
class Change:
    """One change of one file: `kind` at a place that is a share of its length."""

    kind: str
    file: int
    at: float
    size: int
    value: bytes

    def apply(self, tree: Tree) -> Tree:
        path = sorted(tree)[self.file % len(tree)]
        whole, other = tree[path], tree[sorted(tree)[(self.file + 1) % len(tree)]]
        at = int(self.at * len(whole))
        changed = {
            "flip": whole[:at] + bytes(byte ^ 1 << self.size % 8 for byte in whole[at : at + 1]) + whole[at + 1 :],
            "overwrite": whole[:at] + self.value + whole[at + len(self.value) :],
            "cut": whole[:at],
            "remove": whole[:at] + whole[at + self.size :],
            "repeat": whole[:at] + whole[at : at + self.size] * (2 + self.size % 50) + whole[at + self.size :],
            "splice": whole[:at] + other[int(len(other) * self.at / 2) :][: 50 * self.size] + whole[at:],
            "insert": whole[:at] + self.value + whole[at:],
        }
        return {**tree, path: changed[self.kind]}


CHANGES = st.builds(
    Change,
    st.sampled_from(["flip", "flip", "overwrite", "cut", "remove", "repeat", "splice", "insert"]),
    st.integers(0, 7),
    st.floats(0, 1, exclude_max=True),
    st.integers(1, 64),
    st.one_of(
        st.binary(min_size=1, max_size=16), st.sampled_from([b"\xff" * 8, b"\0" * 8, b"999999999", b"-1", b"[[["])
    ),
)
EXAMPLES = st.tuples(st.sampled_from(sorted(SEEDS)), st.lists(CHANGES, min_size=1, max_size=3))


def spectrascope(*arguments: object) -> tuple[int, str]:
    """Exit code and stderr of a command line in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as exit_:
            return int(exit_.code or 0), err.getvalue()
    raise AssertionError("the command did not exit")


def peak_memory() -> int:
    """The peak resident set of this process, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def check(name: str, changes: list[Change], memory_at_start: int) -> int:
    """Analyse a changed checkpoint. Raises AssertionError where a promise is broken; gives the exit code."""
    tree = tree_of(name)
    for change in changes:
        tree = change.apply(tree)
    code = 0
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "run")
        for path, content in tree.items():
            (source / path).parent.mkdir(parents=True, exist_ok=True)
            (source / path).write_bytes(content)
        before = sorted(source.rglob("*"))
        store = Path(folder, "x.spectra")
        for command in (
            ["show", source],
            ["show", source, "--pairs", "--heads", "2"],
            ["analyze", source, "-o", store, "-f", "json"],
            ["align", store, "-f", "json"],
        ):
            if command[0] == "align" and not store.exists():
                continue
            start = time.monotonic()
            returned, err = spectrascope(*command)
            code = returned if command[0] == "analyze" else code
            took = time.monotonic() - start
            assert returned in CODES, f"exit code {returned}: {err}"
            assert "Traceback" not in err, err
            assert "fault of spectrascope" not in err, err
            assert took < SECONDS, f"{command[0]} took {took:.1f} s: {err}"
            assert all(line.startswith("spectrascope: ") for line in err.splitlines()), err
        assert sorted(source.rglob("*")) == before, "files were made beside the checkpoint"
        assert sorted(path.name for path in Path(folder).iterdir()) in (["run"], ["run", "x.spectra"])
    grown = peak_memory() - memory_at_start
    assert grown < BYTES, f"memory grew by {grown / 2**20:.0f} MiB"
    return code


def run(examples: int, number: int, log: Path) -> Counter[int]:
    """So many examples in this process; the example in hand is in `log`, in case the process does not survive it."""
    codes: Counter[int] = Counter()
    with tempfile.TemporaryDirectory() as folder:  # imports what is imported late
        spectrascope("analyze", GROK, "--steps", "0", "-o", Path(folder, "x"))
    memory = peak_memory()

    @seed(number)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(EXAMPLES)
    def examine(example: tuple[str, list[Change]]) -> None:
        log.write_text(repr(example))
        codes[check(*example, memory)] += 1

    examine()
    return codes


def run_all(examples: int) -> int:
    """Examples in processes, one after the other. Prints what was found; gives the number of processes that failed."""
    start, failed = time.monotonic(), 0
    codes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(PROCESSES):
            log = Path(folder, "example")
            command = [sys.executable, __file__, "--examples", str(-(-examples // PROCESSES)), "--process", str(number)]
            done = subprocess.run([*command, "--log", str(log)], capture_output=True, text=True)
            if done.returncode == 0:
                codes.update(json.loads(done.stdout.splitlines()[-1]))
            else:
                failed += 1
                print(f"process {number} ended with {done.returncode} at {log.read_text()}\n{done.stderr[-3000:]}")
    counts = ", ".join(f"{count} with exit code {code}" for code, count in sorted(codes.items()))
    print(f"{sum(codes.values())} examples in {time.monotonic() - start:.0f} s: {counts}; {failed} processes failed")
    return failed


if __name__ == "__main__":
    faulthandler.enable()
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=10_000)
    parser.add_argument("--process", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--log", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.process is None:
        sys.exit(min(run_all(options.examples), 1))
    print(json.dumps(run(options.examples, options.process, options.log)))
