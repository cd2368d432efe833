"""Peak memory of an analysis of a 1.5 GiB float32 file of Pythia-410m's shapes, and of pruning 1e8 weights.

    python benchmarks/memory.py [--size 410m]

Peak resident sets of whole processes. Pruning imports torch, which the rest of the analysis does without.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from pythia import write
from safetensors.numpy import save_file

# VmHWM, unlike getrusage, starts afresh at exec.
PEAK = "; print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))"
ANALYSIS = "import sys, spectrascope; spectrascope.analyze(sys.argv[1], sys.argv[2], workers=2)"
IMPORTS = "import sys; from spectrascope.landscape.prune_command import *"
PRUNING = (
    f"{IMPORTS}; folder = Path(sys.argv[1]); "
    "prune(Sources([folder / 'm.safetensors']), Request('magnitude', (0.05,)), None, None, "
    "Outputs(folder / 'pruned.safetensors', folder / 'masks.safetensors'))"
)
# About 1e8 weights, and a last matrix that is left alone.
SHAPES = {"100 of 1000 x 1000": [(1000, 1000)] * 101, "one of 130208 x 768": [(130208, 768), (10, 768)]}


def peak(program: str, *arguments: str) -> int:
    """The peak resident set of a program, in bytes."""
    command = [sys.executable, "-c", program + PEAK, *arguments]
    return 1024 * int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="410m")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = write(options.size, "float32", Path(folder, "model.safetensors"))
        ours = peak(ANALYSIS, str(file), str(Path(folder, "x.spectra")))
        print(f"analysis of {file.stat().st_size / 2**30:.2f} GiB: peak {ours / 2**20:.0f} MiB")
    base = peak(IMPORTS)
    for words, shapes in SHAPES.items():
        with tempfile.TemporaryDirectory() as folder:
            random = np.random.default_rng(0)
            matrices = {f"{i:03d}.weight": random.standard_normal(one, np.float32) for i, one in enumerate(shapes)}
            save_file(matrices, Path(folder, "m.safetensors"))
            weights = sum(matrix.nbytes for matrix in matrices.values())
            del matrices
            ours = peak(PRUNING, folder)
            print(
                f"pruning {words}, {weights / 2**20:.0f} MiB: peak {ours / 2**20:.0f} MiB, "
                f"{(ours - base) / 2**20:.0f} above imports: {(ours - base) / weights:.2f} times the weights"
            )


if __name__ == "__main__":
    main()
