"""What a checkpoint costs in a trajectory: linear in steps, one step for one step more, nothing for what is unchanged.

    python benchmarks/trajectory.py [--steps 100] [--rounds 3]

1. A run of small checkpoints (12 matrices, 256 x 256 to 512 x 512, float32) analysed from scratch, a quarter, half and
   all of its steps; then one step more, with and without --trust-mtime, beside the same step alone in an empty store
   and a run with nothing to do.
2. Ten checkpoints with one large tensor that never changes, beside the same in which it does.
3. Singular values alone (--top-k 0) against the default, for one checkpoint of Pythia-160m's shapes: time and bytes.

Times are of whole processes, each run once the machine is quiet.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from child import Spent, run_in_quiet

HERE = Path(__file__).parent
SHAPES = [(rows, columns) for rows in (256, 384, 512) for columns in (256, 320, 384, 512)]
WRITE = """
import sys, pathlib, torch
from safetensors.torch import save_file
folder, first, last, shapes, frozen = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), eval(sys.argv[4]), sys.argv[5]
for step in range(first, last):
    generator = torch.Generator().manual_seed(step)
    weights = {f"layers.{i}.weight": torch.randn(*shape, generator=generator) for i, shape in enumerate(shapes)}
    if frozen:
        weights[frozen] = torch.randn(*weights[frozen].shape, generator=torch.Generator().manual_seed(0))
    save_file(weights, pathlib.Path(folder, f"step{step}.safetensors"))
"""


def write(folder: Path, steps: range, shapes: list[tuple[int, int]], frozen: str = "") -> None:
    """Checkpoints of independent normal weights; the tensor `frozen` is the same in all."""
    folder.mkdir(exist_ok=True)
    numbers = [str(steps.start), str(steps.stop), repr(shapes)]
    subprocess.run([sys.executable, "-c", WRITE, str(folder), *numbers, frozen], check=True)


def analyze(source: Path, store: Path, *more: str) -> Spent:
    """One run of the command."""
    return run_in_quiet([sys.executable, "-m", "spectrascope", "analyze", str(source), "-o", str(store), *more])


def say(what: str, spent: Spent, base: float = 0.0) -> float:
    """Print and return the time above `base`."""
    above = f", {spent.seconds - base:.2f} s without the start" if base else ""
    others = f" (others used {spent.others:.2f} cores)" if spent.others > 0.1 else ""
    print(f"{what}: {spent.seconds:.2f} s{above}, CPU {spent.busy:.2f} s, {spent.peak:.0f} MiB{others}", flush=True)
    return spent.seconds - base


def size(store: Path) -> int:
    return sum(path.stat().st_size for path in store.rglob("*") if path.is_file())


def best(source: Path, known: Path | None, rounds: int, *more: str) -> Spent:
    """The fastest of several runs, each with a copy of a store that is known, or with none."""
    found = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(dir=source.parent) as place:
            store = Path(place, "x.spectra")
            if known is not None:
                shutil.copytree(known, store)
            os.sync()  # or whoever writes next waits for the disk
            found.append(analyze(source, store, *more))
    return min(found, key=lambda spent: spent.seconds)


def steps_of(count: int, folder: Path, rounds: int) -> None:
    """Part 1."""
    source, alone = folder / "run", folder / "alone"
    write(source, range(count), SHAPES)
    write(alone, range(count, count + 1), SHAPES)
    start_store = folder / "start.spectra"
    analyze(alone, start_store)
    start = best(alone, start_store, rounds, "--trust-mtime")
    say("one step, nothing to do (start and end of the process)", start)
    base = start.seconds
    for part in (count // 4, count // 2, count):
        spent = analyze(source, folder / f"{part}.spectra", "--steps", f"0-{part - 1}")
        above = say(f"{part} steps from scratch", spent, base)
        print(f"    {1000 * above / part:.1f} ms a step", flush=True)
    store = folder / f"{count}.spectra"
    say("the next step alone in an empty store", best(alone, None, rounds), base)
    for more in ([], ["--trust-mtime"]):
        option = "".join(f", {one}" for one in more)
        nothing = best(source, store, rounds, *more)
        say(f"{count} steps, nothing to do{option}", nothing, base)
        shutil.copy2(alone / f"step{count}.safetensors", source)
        spent = best(source, store, rounds, *more)
        above = say(f"{count} steps and the next{option}", spent, base)
        more_cpu = spent.busy - nothing.busy
        print(f"    {above + base - nothing.seconds:.2f} s and {more_cpu:.2f} CPU s for the next", flush=True)
        (source / f"step{count}.safetensors").unlink()


def frozen(folder: Path) -> None:
    """Part 2."""
    shapes = [(2048, 2048), *SHAPES[:4]]
    for name, tensor in (("changes", ""), ("never changes", "layers.0.weight")):
        source = folder / name.replace(" ", "-")
        write(source, range(10), shapes, tensor)
        say(f"ten steps, one of 2048 x 2048 that {name}", analyze(source, source.with_suffix(".spectra")))
        print(f"    {size(source.with_suffix('.spectra')) / 10 / 2**20:.2f} MiB a step in the store", flush=True)


def values_only(folder: Path, rounds: int) -> None:
    """Part 3."""
    file = folder / "model.safetensors"
    subprocess.run([sys.executable, str(HERE / "pythia.py"), "160m", "float16", str(file)], check=True)
    for turn in range(2 * rounds):
        top_k = (100, 0)[turn % 2]
        store = folder / f"top{top_k}-{turn}.spectra"
        os.sync()
        say(f"160m, --top-k {top_k}", analyze(file, store, "--top-k", str(top_k)))
        print(
            f"    {size(store) / 1e6:.2f} MB in the store for a file of {file.stat().st_size / 1e6:.0f} MB", flush=True
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--only", nargs="*", choices=["steps", "frozen", "values"], default=["steps", "frozen", "values"]
    )
    options = parser.parse_args()
    print(f"load before: {os.getloadavg()[0]:.2f} on {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if "steps" in options.only:
            steps_of(options.steps, folder, options.rounds)
        if "frozen" in options.only:
            frozen(folder)
        if "values" in options.only:
            values_only(folder, options.rounds)


if __name__ == "__main__":
    main()
