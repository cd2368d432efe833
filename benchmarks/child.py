"""A program run as a process of its own on a machine that is shared: wall time, peak memory, and what others took."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
QUIET = 0.15


@dataclass(frozen=True)
class Spent:
    """What a process took, start and imports included; `others` is how many cores all other processes used meanwhile.

    seconds : wall time;  busy : CPU time of all its threads;  peak : largest resident set, MiB
    """

    seconds: float
    busy: float
    peak: float
    others: float


def run(command: Sequence[str], threads: int | None = None, environment: Mapping[str, str] | None = None) -> Spent:
    """Run a command with so many BLAS threads, or with every library's own default.

    The peak is Linux' largest resident set of the process, never less than what the process that starts it holds: the
    caller should import nothing large. Raises RuntimeError where the command fails, with what it said.
    """
    variables = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    if threads is not None:
        variables |= dict.fromkeys(THREADS, str(threads))
    before, start = _busy(), time.perf_counter()
    process = subprocess.Popen(
        command, env=variables | dict(environment or {}), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    said = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    seconds, busy = time.perf_counter() - start, usage.ru_utime + usage.ru_stime
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)[:200]}\n{said[-2000:]}")
    return Spent(seconds, busy, usage.ru_maxrss / 1024, max(0.0, (_busy() - before - busy) / seconds))


def run_in_quiet(
    command: Sequence[str], threads: int | None = None, environment: Mapping[str, str] | None = None, tries: int = 4
) -> Spent:
    """The same once no other process uses more than a little; run again where one did meanwhile.

    The run that was disturbed least is given: its `others` says whether it was.
    """
    found = []
    for _ in range(tries):
        wait_for_quiet()
        found.append(run(command, threads, environment))
        if found[-1].others < QUIET:
            break
        print(f"  disturbed: others used {found[-1].others:.2f} cores", file=sys.stderr, flush=True)
    return min(found, key=lambda spent: spent.others)


def wait_for_quiet(limit: float = 600.0) -> None:
    """Wait until other processes have used next to nothing for five seconds, but no longer than `limit`."""
    end = time.perf_counter() + limit
    while time.perf_counter() < end:
        before = _busy()
        time.sleep(5)
        if (_busy() - before) / 5 < QUIET:
            return


def _busy() -> float:
    """Core seconds that the machine has spent on all processes since it started."""
    user, nice, system, _, _, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split("\n")[0].split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
