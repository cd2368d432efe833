"""Reports from a store of 100 steps and 50 matrices against reading the arrays that they need, in turn in one run.

    python benchmarks/reports.py [--rounds 5] [--width 256]

Two other programs compute nothing. *Plain* imports numpy and h5py and reads, of every step's file, the catalogue, the
singular values, and of the sides that the report compares the leading vectors: ten, or all 100 for JSON. *Store* reads
the same through the store, as a report has to: with checksums, as records.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from spectrascope.store import Record, StepInfo, StepWriter, step_path

STEPS, LAYERS, TOP_K = 100, 7, 100
PARTS = [*(f"self_attn.{x}_proj" for x in "qkvo"), *(f"mlp.{x}_proj" for x in ("gate", "up", "down"))]
NAMES = ["embed_tokens.weight", *(f"layers.{i}.{part}.weight" for i in range(LAYERS) for part in PARTS)]
READ = """
import sys, pathlib
import numpy, h5py
count, sides, width = int(sys.argv[2]), sys.argv[3].split(","), int(sys.argv[4])
for path in sorted(pathlib.Path(sys.argv[1]).glob("*.h5")):
    with h5py.File(path, "r") as file:
        file["catalogue"][()]
        file["singular_values"][()]
        for side in filter(None, sides):
            data = file[side]
            for start in range(0, data.size, 100 * width):
                data[start : start + count * width]
"""

STORE = """
import sys
import numpy, h5py
from spectrascope.store import open
count, sides = int(sys.argv[2]), [side for side in sys.argv[3].split(",") if side]
store = open(sys.argv[1])
for step in store.steps:
    store.sides(step, [(name, side) for name in store.matrices for side in sides], count)
"""


def write(store: Path, width: int) -> None:
    """A store as `analyze` would write it, of random numbers."""
    store.mkdir()
    random = np.random.default_rng(0)
    vectors = np.linalg.qr(random.standard_normal((width, TOP_K)))[0].T.astype(np.float32)
    for step in range(STEPS):
        records = [Record(name, (width, width), "float32", "linear", "", TOP_K) for name in NAMES]
        settings = {"top_k": TOP_K, "filters": [[[], []]], "weights": "live", "heads": None, "kv_heads": None}
        info = StepInfo(step_path(store, step), step, {"path": "x", "content": str(step)}, settings, records, [], 1.0)
        with StepWriter(store, info) as writer:
            for record in records:
                sigma = -np.sort(-random.random(width))
                writer.add(record, sigma, vectors, vectors)
                record.raw_hash = record.vectors_hash
            writer.finish()


def seconds(arguments: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--width", type=int, default=256)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder, "x.spectra")
        write(store, options.width)
        print(f"load before: {os.getloadavg()[0]:.2f} on {os.cpu_count()} cores; {len(NAMES)} matrices, {STEPS} steps")
        reports = [
            ("rank", ["rank"], 0, ""),
            ("align", ["align"], 10, "left,right"),
            ("sva", ["sva"], 10, "left,right"),
            ("align --format json", ["align", "--format", "json"], TOP_K, "left,right"),
            ("sva --format json", ["sva", "--format", "json"], TOP_K, "left,right"),
        ]
        for name, command, count, sides in reports:
            times: dict[str, list[float]] = {"ours": [], "plain": [], "store": []}
            for _ in range(options.rounds):
                times["ours"].append(seconds(["-m", "spectrascope", *command, str(store), "--quiet"]))
                times["plain"].append(seconds(["-c", READ, str(store), str(count), sides, str(options.width)]))
                times["store"].append(seconds(["-c", STORE, str(store), str(count), sides]))
            ours, plain, through = (min(times[name]) for name in ("ours", "plain", "store"))
            print(
                f"{name:20}  ours {ours:.2f} s; plain {plain:.2f} s, {ours / plain:.2f} times; "
                f"store {through:.2f} s, {ours / through:.2f} times (best of each)"
            )


if __name__ == "__main__":
    main()
