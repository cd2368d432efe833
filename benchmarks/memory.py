"""Peak memory of an analysis of a 1.6 GB float32 file of Pythia-410m's shapes with 2 workers.

    python benchmarks/memory.py [--size 410m]

Peak resident set of the whole process, less that of `import torch` alone.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from pythia import write

# VmHWM, unlike getrusage, starts afresh at exec.
PEAK = "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))"
OURS = "import sys, spectrascope; spectrascope.analyze(sys.argv[1], sys.argv[2], workers=2); " + PEAK


def peak(program: str, *arguments: str) -> int:
    """The peak resident set of a program, in bytes."""
    command = [sys.executable, "-c", program, *arguments]
    return 1024 * int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="410m")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = write(options.size, "float32", Path(folder, "model.safetensors"))
        base = peak("import torch; " + PEAK)
        ours = peak(OURS, str(file), str(Path(folder, "x.spectra")))
        print(f"file {file.stat().st_size / 2**30:.2f} GiB, import torch {base / 2**20:.0f} MiB")
        print(f"peak {ours / 2**20:.0f} MiB: {(ours - base) / 2**30:.2f} GiB above the import")


if __name__ == "__main__":
    main()
