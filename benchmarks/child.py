"""A program run as a process of its own on a machine that is shared: wall time, peak memory, and what others took."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
QUIET, TRIES = 0.15, 6


@dataclass(frozen=True)
class Spent:
    """What a process took, start and imports included; `others` is how many cores all other processes used meanwhile.

    seconds : wall time;  busy : CPU time of all its threads;  peak : largest resident set, MiB
    """

    seconds: float
    busy: float
    peak: float
    others: float


def run(
    command: Sequence[str],
    threads: int | None = None,
    environment: Mapping[str, str] | None = None,
    quiet: float | None = None,
) -> Spent | None:
    """Run a command with so many BLAS threads, or with every library's own default.

    The peak is Linux' largest resident set of the process, never less than what the process that starts it holds: the
    caller should import nothing large. None where it was ended because others used more than `quiet` cores. Raises
    RuntimeError where the command fails, with what it said.
    """
    variables = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    if threads is not None:
        variables |= dict.fromkeys(THREADS, str(threads))
    with tempfile.TemporaryFile("w+") as said:
        before, start = _busy(), time.perf_counter()
        process = subprocess.Popen(
            command, env=variables | dict(environment or {}), stdout=subprocess.DEVNULL, stderr=said
        )
        while not (ended := os.wait4(process.pid, os.WNOHANG))[0]:
            time.sleep(0.02)
            seconds = time.perf_counter() - start
            if quiet is not None and _busy() - before - _busy_of(process.pid) > 1.0 + quiet * seconds:
                process.kill()
                process.wait()
                return None
        seconds, usage = time.perf_counter() - start, ended[2]
        process.returncode = os.waitstatus_to_exitcode(ended[1])
        if process.returncode:
            said.seek(0)
            raise RuntimeError(f"{' '.join(command)[:200]}\n{said.read()[-2000:]}")
    busy = usage.ru_utime + usage.ru_stime
    return Spent(seconds, busy, usage.ru_maxrss / 1024, max(0.0, (_busy() - before - busy) / seconds))


def run_in_quiet(
    command: Sequence[str],
    threads: int | None = None,
    environment: Mapping[str, str] | None = None,
    quiet: float = QUIET,
) -> Spent:
    """The same once other processes use no more than `quiet` cores; begun again where they do meanwhile.

    The last of so many tries counts even if it is disturbed, which its `others` shows.
    """
    for left in reversed(range(TRIES)):
        wait_for_quiet(quiet)
        spent = run(command, threads, environment, quiet if left else None)
        if spent is not None:
            return spent
        print("  disturbed, begun again", file=sys.stderr, flush=True)
    raise AssertionError("the last try is not given up")


def wait_for_quiet(quiet: float = QUIET, limit: float = 600.0) -> None:
    """Wait until other processes have used no more than `quiet` cores for three seconds, but no longer than `limit`."""
    end = time.perf_counter() + limit
    while time.perf_counter() < end:
        before = _busy()
        time.sleep(3)
        if (_busy() - before) / 3 < quiet:
            return


def _busy() -> float:
    """Core seconds that the machine has spent on all processes since it started."""
    user, nice, system, _, _, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split("\n")[0].split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def _busy_of(process: int) -> float:
    """Core seconds that a running process has spent."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
