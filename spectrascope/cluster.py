"""A dask scheduler and its workers, as a pool of tasks."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from .errors import RequestError, SpectrascopeError

INSTALL = "--dask needs dask.distributed: pip install 'spectrascope[dask]'"
# Seconds to wait for a scheduler.
PATIENCE = 30

Task = TypeVar("Task")
Outcome = TypeVar("Outcome")


class ClusterError(SpectrascopeError):
    """The scheduler or its workers cannot be used."""


@dataclass
class Cluster:
    """A scheduler and its workers, behind the interface of `concurrent.futures`."""

    address: str
    executor: Any
    workers: int

    def each(
        self, function: Callable[[Task], Outcome], tasks: Sequence[Task], waiting: Callable[[], None]
    ) -> Iterator[tuple[Task, Outcome | BaseException]]:
        """Each task with its outcome, or what it raised, as they come; those of a lost worker run again elsewhere.

        `waiting` is called now and then, and may raise KeyboardInterrupt; what has not begun is then taken back.
        """
        futures: dict[Future[Outcome], Task] = {self.executor.submit(function, task): task for task in tasks}
        try:
            while futures:
                done, _ = wait(futures, timeout=0.5, return_when=FIRST_COMPLETED)
                for future in done:
                    error = future.exception()
                    yield futures.pop(future), future.result() if error is None else error
                waiting()
        finally:
            for future in futures:
                future.cancel()


@contextmanager
def open_cluster(address: str) -> Iterator[Cluster]:
    """The workers of the scheduler at `address`: tcp://host:8786, or the file that `--scheduler-file` named.

    Raises RequestError where dask is not installed or the address is none, ClusterError where nothing answers there.
    """
    try:
        from distributed import Client
    except ImportError as error:
        raise RequestError(INSTALL) from error
    try:
        client = Client(**_place(address), timeout=PATIENCE, set_as_default=False)
    except ValueError as error:
        raise RequestError(f"--dask {address}: is not an address such as tcp://host:8786 ({error})") from error
    except (OSError, TimeoutError) as error:
        raise ClusterError(f"--dask {address}: no scheduler answers there; start one with `dask scheduler`") from error
    with client:
        yield Cluster(address, client.get_executor(pure=False), len(client.scheduler_info()["workers"]))


def _place(address: str) -> dict[str, str]:
    """Where the client is to look. Raises TimeoutError for a file that does not come: the client waits for ever."""
    if "://" in address:
        return {"address": address}
    deadline = time.monotonic() + PATIENCE
    while not os.path.exists(address):
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.1)
    return {"scheduler_file": address}


def threads_here() -> int | None:
    """How many threads the worker has that this runs on, None where it runs on none."""
    try:
        from distributed import get_worker

        return int(get_worker().state.nthreads)
    except (ImportError, ValueError):
        return None


def describe_lost(error: BaseException) -> str:
    """Why a task came to nothing, in one sentence."""
    name = type(error).__name__
    if name == "KilledWorker":
        return "the workers that took it were lost, again and again: see their logs; they may lack memory"
    if isinstance(error, ModuleNotFoundError):
        return f"a worker lacks {error.name}: install spectrascope there as it is here"
    first_line = (str(error).strip().splitlines() or [""])[0][:200]
    return f"failed on its worker ({name}: {first_line})"


def require_shared(store: str) -> None:
    """Raises ClusterError where this machine does not see the store."""
    if not os.path.isdir(store):
        raise ClusterError(
            f"{store} is not there on {socket.gethostname()}: --dask needs a disk that all machines share"
        )
