"""Ours against other ways to the spectra of checkpoints, in turn in one run, on the same float16 files.

    python benchmarks/competitors.py [--size 70m 160m 70m-x10] [--rounds 1] [--only plain weightwatcher]
                                     [--device cuda] [--weightwatcher PYTHON]

Every one is a process of its own; its time is that of the whole process, from the start of Python to its end.

ours            `spectrascope analyze PATH -o STORE`: float64, with the top 100 vectors, hashes and the store
plain           torch.linalg.svd(W.float(), full_matrices=False) of every 2-D tensor
reference       as often as the thesis' own code (dyunis/spectral_dynamics, language_modeling/evaluate_run.py) calls it:
                for either side of alignment, for spectrum and agreement, for pruning to the top and to the bottom half.
                The first embedding has one side in alignment, the last one too and is not pruned. What that code
                computes from the vectors, its losses and the final checkpoint's SVDs are left out: a lower bound
five            five calls per matrix, embeddings too; only where asked for
weightwatcher   the singular values alone (float64, by SciPy on a CPU), without its power law fits: the least it can do

All but ours run with every library's default threads and with one thread; the better of the two is what counts. Each
waits until the machine is quiet, and is begun again where other processes use it meanwhile: a run of one thread only
where they use more than one core, and then its CPU seconds tell what it takes alone.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from child import QUIET, Spent, run_in_quiet

HERE = Path(__file__).parent
WEIGHTWATCHER = Path(tempfile.gettempdir(), "ww-venv", "bin", "python")
SVD = """
import sys, torch
from safetensors import safe_open
who, device, *paths = sys.argv[1:]
def svd(weight):
    torch.linalg.svd(weight, full_matrices=False)
for path in paths:
    with safe_open(path, framework="pt") as file:
        for name in file.keys():
            weight = file.get_tensor(name)
            if weight.ndim != 2:
                continue
            weight = weight.to(device).float()
            calls = {"plain": 1, "five": 5, "reference": 5}[who]
            if who == "reference" and "embed" in name:
                calls = 4 if "embed_in" in name else 2
            if who == "reference" and "query_key_value" in name:
                query, key, value = weight.chunk(3)
                svd(query.reshape(-1, 64, query.shape[1]))
                svd(key.reshape(-1, 64, key.shape[1]))
                svd(value)
                calls = 4
            for _ in range(calls):
                svd(weight)
if device != "cpu":
    torch.cuda.synchronize()
"""
WATCH = """
import sys
from safetensors.torch import load_file
from weightwatcher import WeightWatcher
from weightwatcher.constants import DEFAULT_PARAMS
parameters = DEFAULT_PARAMS | {"max_N": 10**6}  # or the embeddings would be skipped
for path in sys.argv[1:]:
    weights = load_file(path)
    watcher = WeightWatcher(model=weights, log_level=40)
    done = [watcher.apply_esd(layer, parameters) for layer in watcher.make_layer_iterator(params=parameters)]
    assert len(done) == sum(weight.ndim == 2 for weight in weights.values())
"""


def command(who: str, paths: list[Path], store: Path, options: argparse.Namespace) -> list[str]:
    """How one of them is called on these files."""
    files = list(map(str, paths))
    if who == "ours":
        source = files[0] if len(files) == 1 else str(paths[0].parent.parent)
        return [sys.executable, "-m", "spectrascope", "analyze", source, "-o", str(store), "--device", options.device]
    if who == "weightwatcher":
        return [str(options.weightwatcher), "-c", WATCH, *files]
    return [sys.executable, "-c", SVD, who, options.device, *files]


def install(python: Path) -> None:
    """A virtual environment with weightwatcher, unless it is there: it pins none of our dependencies."""
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(python.parent.parent)], check=True)
        packages = ["weightwatcher==0.7.7", "safetensors"]
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *packages], check=True)


def compare(size: str, options: argparse.Namespace) -> None:
    """One size, or a trajectory of it: every one in turn, as often as there are rounds."""
    shapes, _, count = size.partition("-x")
    counts = [number or None for number in options.threads] if options.device == "cpu" else [None]
    others = [(who, threads) for who in options.only for threads in counts]
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for step in range(int(count or 1)):
            paths.append(Path(folder, "run", f"step{step}", "model.safetensors"))
            paths[-1].parent.mkdir(parents=True)
            write = [sys.executable, str(HERE / "pythia.py"), shapes, "float16", str(paths[-1]), str(step)]
            subprocess.run(write, check=True)
        os.sync()  # or whoever writes next waits for the disk
        print(f"\n{size}, load before: {os.getloadavg()[0]:.2f} on {os.cpu_count()} cores", flush=True)
        spent: dict[tuple[str, int | None], list[Spent]] = {}
        for turn in range(options.rounds):
            for who, threads in [("ours", None), *others]:
                store = Path(folder, f"{turn}.spectra")
                one = run_in_quiet(command(who, paths, store, options), threads, quiet=1.0 if threads == 1 else QUIET)
                spent.setdefault((who, threads), []).append(one)
                print(
                    f"  {who} {threads or 'default'}: {one.seconds:.1f} s, others {one.others:.2f}",
                    file=sys.stderr,
                    flush=True,
                )
        ours = min(one.seconds for one in spent["ours", None])
        print("| who | threads | seconds, best | median | CPU seconds | peak MiB | others' cores | times ours |")
        print(8 * "| --- " + "|")
        for (who, threads), runs in spent.items():
            best, median = min(one.seconds for one in runs), statistics.median(one.seconds for one in runs)
            busy = min(one.busy for one in runs)
            peak, others = max(one.peak for one in runs), max(one.others for one in runs)
            numbers = f"{best:.2f} | {median:.2f} | {busy:.2f} | {peak:.0f} | {others:.2f} | {best / ours:.2f}"
            print(f"| {who} | {threads or 'default'} | {numbers} |")
        for who in options.only:
            best = min(one.seconds for (name, _), runs in spent.items() if name == who for one in runs)
            print(f"{who} at its best takes {best / ours:.2f} times as long as ours", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", nargs="+", default=["70m", "160m", "70m-x10"], help="70m-x10 is ten checkpoints")
    parser.add_argument("--rounds", type=int, default=1)
    everyone = ["plain", "reference", "five", "weightwatcher"]
    parser.add_argument("--only", nargs="*", choices=everyone, default=["plain", "reference", "weightwatcher"])
    parser.add_argument("--threads", nargs="+", type=int, default=[0, 1], help="0 is every library's default")
    parser.add_argument("--device", default="cpu", help="cpu or cuda, where weightwatcher uses a GPU of itself")
    parser.add_argument("--weightwatcher", type=Path, default=WEIGHTWATCHER, metavar="PYTHON", help="made if not there")
    options = parser.parse_args()
    if "weightwatcher" in options.only:
        install(options.weightwatcher)
    for size in options.size:
        compare(size, options)


if __name__ == "__main__":
    main()
