"""Ours against one torch.linalg.svd per matrix, in turn in one run, on one float16 file of Pythia-160m's shapes.

    python benchmarks/speed.py [--rounds 3] [--size 160m]

Each measurement is a process of its own with its own default threads; imports are not counted, reading the file is.
Ours also hashes the file and every tensor, and writes the store with the top 100 vectors.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from pythia import write

OURS = """
import sys, time, spectrascope, spectrascope.pipeline
start = time.perf_counter()
spectrascope.analyze(sys.argv[1], sys.argv[2], top_k=100)
print(time.perf_counter() - start)
"""
PLAIN = """
import sys, time, torch
from safetensors import safe_open
start = time.perf_counter()
with safe_open(sys.argv[1], framework="pt") as file:
    for name in file.keys():
        weight = file.get_tensor(name)
        if weight.ndim == 2:
            torch.linalg.svd(weight.float(), full_matrices=False)
print(time.perf_counter() - start)
"""


def seconds(program: str, *arguments: str) -> float:
    """The time that a program measures of itself, with every library's default threads."""
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True, env=environment
    )
    return float(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--size", default="160m")
    options = parser.parse_args()
    ours, plain = [], []
    with tempfile.TemporaryDirectory() as folder:
        file = str(write(options.size, "float16", Path(folder, "model.safetensors")))
        print(f"load before: {os.getloadavg()[0]:.2f} on {os.cpu_count()} cores")
        for turn in range(options.rounds):
            ours.append(seconds(OURS, file, str(Path(folder, f"{turn}.spectra"))))
            plain.append(seconds(PLAIN, file))
            print(f"round {turn + 1}: ours {ours[-1]:.2f} s, plain {plain[-1]:.2f} s, {plain[-1] / ours[-1]:.2f} x")
    print(f"best of each: ours {min(ours):.2f} s, plain {min(plain):.2f} s, {min(plain) / min(ours):.2f} times as fast")


if __name__ == "__main__":
    main()
