"""A dask scheduler and its workers, as a pool of tasks."""

from __future__ import annotations

import json
import os
import re
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from .errors import ClusterError, RequestError

INSTALL = "--dask needs dask.distributed: pip install 'spectrascope[dask]'"
# Seconds to wait for a scheduler.
PATIENCE = 30

Task = TypeVar("Task")
Outcome = TypeVar("Outcome")


@dataclass
class Cluster:
    """A scheduler and its workers, behind the interface of `concurrent.futures`."""

    address: str
    client: Any

    @property
    def workers(self) -> int:
        """How many workers there are now."""
        return len(self.client.scheduler_info(n_workers=-1)["workers"])

    def each(
        self, function: Callable[[Task], Outcome], tasks: Sequence[Task], waiting: Callable[[], None]
    ) -> Iterator[tuple[Task, Outcome | BaseException]]:
        """Each task with its outcome, or what it raised, as they come; those of a lost worker run again elsewhere.

        As many tasks are under way as there are workers. `waiting` is called now and then, and may raise
        KeyboardInterrupt; what has not begun is then taken back. Raises ClusterError where the scheduler is lost.
        """
        executor = self.client.get_executor(pure=False)
        left = deque(tasks)
        futures: dict[Future[Outcome], Task] = {}
        try:
            while futures or left:
                while left and len(futures) < max(self.workers, 1):
                    task = left.popleft()
                    futures[executor.submit(function, task)] = task
                done, _ = wait(futures, timeout=0.5, return_when=FIRST_COMPLETED)
                for future in done:
                    error = future.exception()
                    yield futures.pop(future), future.result() if error is None else error
                waiting()
        except (CancelledError, OSError) as error:
            raise ClusterError(
                f"--dask {self.address}: the scheduler is gone; what is finished is in the store, and the same command "
                "goes on from there"
            ) from error
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
        yield Cluster(address, client)


def _place(address: str) -> dict[str, str]:
    """Where the client is to look. Raises TimeoutError for a file that does not come: the client waits for ever."""
    if "://" in address:
        return {"address": address}
    if re.fullmatch(r"[\w.-]+:\d+", address):
        return {"address": f"tcp://{address}"}
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return {"address": str(json.loads(Path(address).read_text(encoding="utf-8"))["address"])}
        except (OSError, ValueError, KeyError, TypeError) as error:  # not there yet, or half of it
            if time.monotonic() > deadline:
                raise TimeoutError from error
        time.sleep(0.1)


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
