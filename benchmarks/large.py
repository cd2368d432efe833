"""A sharded float16 checkpoint of a large model's shapes: time, memory, and what the workers' time is spent on.

    python benchmarks/large.py [--size 2.8b] [--folder /tmp] [--workers 2]

Writes shards, index and config.json with random weights of decaying spectra into a temporary folder (5.6 GB for 2.8b),
analyses them in a process of its own with a clock in every thread (timed.py), and prints the share of every activity in
the busy time of all threads, and the rate of every LAPACK and BLAS routine on one core by shape. With config.json the
number of heads is known, so q, k and v and the head blocks are decomposed as well.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from math import prod
from pathlib import Path

from child import run

HERE = Path(__file__).parent
MOST = 12


def operations(call: str) -> tuple[str, float]:
    """What the rate of a call such as "syrk 512 x 4096 x 512" is stated in, and how many of them there are."""
    routine, *shape = call.replace(" x ", " ").split()
    numbers = [float(number) for number in shape]
    if routine.startswith("eig"):
        return "n^3", numbers[0] ** 3
    return ("m n^2", numbers[0] * numbers[1] ** 2) if len(numbers) == 2 else ("m k n", prod(numbers))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="2.8b")
    parser.add_argument("--folder", type=Path, help="where the temporary folder is made")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder, store, result = (Path(name, one) for one in ("model", "model.spectra", "result.json"))
        subprocess.run([sys.executable, str(HERE / "pythia.py"), "--sharded", options.size, str(folder)], check=True)
        size = sum(path.stat().st_size for path in folder.iterdir())
        print(f"{options.size}: {size / 1e9:.2f} GB, {options.workers} workers on {os.cpu_count()} cores", flush=True)
        print(f"load before: {os.getloadavg()[0]:.2f}", flush=True)
        arguments = [str(folder), str(store), str(result), str(options.workers)]
        spent = run([sys.executable, str(HERE / "timed.py"), *arguments])
        found = json.loads(result.read_text())
        stored = sum(path.stat().st_size for path in store.rglob("*") if path.is_file())
    print(
        f"analysis {found['seconds']:.1f} s (process {spent.seconds:.1f} s, CPU {spent.busy:.1f} s, others used "
        f"{spent.others:.2f} cores), peak {spent.peak:.0f} MiB, store {stored / 1e6:.1f} MB"
    )
    wall, cpu = (sum(one[at] for one in found["spent"].values()) for at in (0, 1))
    print(f"\n| activity | seconds of all threads | share | CPU seconds | share |\n{'| --- ' * 5}|")
    for activity, (seconds, busy) in sorted(found["spent"].items(), key=lambda item: -item[1][0]):
        print(f"| {activity} | {seconds:.2f} | {seconds / wall:.1%} | {busy:.2f} | {busy / cpu:.1%} |")
    engine = [sum(found["spent"][name][at] for name in ("LAPACK", "BLAS")) for at in (0, 1)]
    print(f"| LAPACK and BLAS | {engine[0]:.2f} | {engine[0] / wall:.1%} | {engine[1]:.2f} | {engine[1] / cpu:.1%} |")
    print(f"\n| routine | calls | seconds | CPU seconds a call | ns per operation |\n{'| --- ' * 5}|")
    for call, (count, seconds, cpu) in sorted(found["calls"].items(), key=lambda item: -item[1][1])[:MOST]:
        unit, number = operations(call)
        rate = f"{1e9 * cpu / count / number:.4f} per {unit}"
        print(f"| {call} | {count:.0f} | {seconds:.2f} | {cpu / count:.4f} | {rate} |")


if __name__ == "__main__":
    main()
