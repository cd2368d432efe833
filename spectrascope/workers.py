"""Where matrices are decomposed: devices, and a pool of single-threaded workers."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue

from threadpoolctl import threadpool_limits

from .errors import RequestError
from .matrices import Matrix


def choose_devices(device: str) -> tuple[list[str], str | None]:
    """The devices that `device` means, and a warning if it is not what was asked. Raises RequestError."""
    if device == "cpu" or (device == "auto" and not _may_have_a_gpu()):
        return ["cpu"], None
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    has_mps = count == 0 and torch.backends.mps.is_available()
    if device.split(":")[0] == "mps" or (device == "auto" and has_mps):
        return ["cpu"], "Apple's MPS has no float64, which exact singular values need: using the CPU"
    if device == "auto":
        return [f"cuda:{i}" for i in range(count)] or ["cpu"], None
    kind, _, index = device.partition(":")
    if kind != "cuda" or (index and not index.isdecimal()):
        raise RequestError(f"--device {device!r} is none of auto, cpu, cuda, cuda:0, cuda:1, ...")
    if int(index or 0) >= count:
        raise RequestError(f"--device {device}: torch sees {count} CUDA devices here; use --device cpu")
    return ([f"cuda:{index}"] if index else [f"cuda:{i}" for i in range(count)]), None


def _may_have_a_gpu() -> bool:
    """Whether a driver is there, of NVIDIA (WSL's too) or AMD: to ask torch takes seconds on a machine without one."""
    return sys.platform != "linux" or any(Path("/dev", name).exists() for name in ("nvidiactl", "dxg", "kfd"))


class Pool:
    """A thread pool each of whose threads takes one of the devices in turn."""

    def __init__(self, executor: ThreadPoolExecutor, workers: int, devices: list[str]) -> None:
        self.executor = executor
        self._free: SimpleQueue[str] = SimpleQueue()
        for worker in range(workers):
            self._free.put(devices[worker % len(devices)])

    @contextmanager
    def device(self) -> Iterator[str]:
        device = self._free.get()
        try:
            yield device
        finally:
            self._free.put(device)


def needs_all_cores(matrix: Matrix) -> bool:
    """Whether one such matrix per core would fill half of the machine's memory: Gram, eigenvectors, workspace."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    # All cores of the machine, not those that this process may use: results must not depend on it.
    return (os.cpu_count() or 1) * 6 * 8 * matrix.rank**2 > memory / 2


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def default_workers(devices: list[str]) -> int:
    """One per core, or two per GPU."""
    # Two threads per GPU: one reads while the other computes.
    return cores() if devices == ["cpu"] else 2 * len(devices)


@contextmanager
def single_threaded() -> Iterator[None]:
    """One BLAS thread per worker; as they were again afterwards."""
    with threadpool_limits(1, user_api="blas"):
        yield


@contextmanager
def all_cores() -> Iterator[None]:
    """All BLAS threads, for a matrix that runs alone."""
    with threadpool_limits(cores(), user_api="blas"):
        yield


@contextmanager
def open_pool(workers: int | None, devices: list[str]) -> Iterator[Pool]:
    """A pool on these devices, of one worker per core or two per GPU unless `workers` says how many."""
    workers = workers or default_workers(devices)
    executor = ThreadPoolExecutor(workers, thread_name_prefix="spectrascope")
    try:
        yield Pool(executor, workers, devices)
    finally:
        # Without waiting: after an error or Ctrl-C, a large matrix under way may take minutes.
        executor.shutdown(wait=False, cancel_futures=True)
