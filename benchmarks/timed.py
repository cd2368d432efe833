"""An analysis with a clock in every thread: `python benchmarks/timed.py SOURCE STORE RESULT.json [WORKERS]`.

Functions of the package are wrapped, none is changed. Every moment of a thread inside the engine is charged to one
activity, the innermost, as wall time and as CPU time of that thread. The result holds the seconds of every activity of
all threads together, and of every LAPACK or BLAS call by routine and shape.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np

import spectrascope
from spectrascope import decompose, job
from spectrascope.checkpoints import Checkpoint
from spectrascope.matrices import Matrix
from spectrascope.store import StepWriter


class Clock:
    """Charges the time of each thread to the activity that it entered last."""

    def __init__(self) -> None:
        self._here = threading.local()
        self._lock = threading.Lock()
        self.spent: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        self.calls: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])

    def _charge(self) -> None:
        here, now = self._here, (time.perf_counter(), time.thread_time())
        if here.stack:
            with self._lock:
                for at in (0, 1):
                    self.spent[here.stack[-1]][at] += now[at] - here.since[at]
        here.since = (time.perf_counter(), time.thread_time())

    @contextmanager
    def doing(self, activity: str, call: str = "") -> Iterator[None]:
        """Time inside is of this activity; `call` is counted, with what is nested in it."""
        here = self._here
        here.stack = getattr(here, "stack", [])
        self._charge()
        here.stack.append(activity)
        start = here.since
        try:
            yield
        finally:
            self._charge()
            here.stack.pop()
            if call:
                with self._lock:
                    for at, value in enumerate((1, here.since[0] - start[0], here.since[1] - start[1])):
                        self.calls[call][at] += value

    def timed(self, activity: str, function: Callable[..., Any], name: str = "") -> Callable[..., Any]:
        """The same function on this clock; with a name, calls are told apart by the shape of the first argument."""

        @wraps(function)
        def wrapped(*arguments: Any, **options: Any) -> Any:
            call = f"{name} {' x '.join(map(str, arguments[0].shape))}" if name else ""
            with self.doing(activity, call):
                return function(*arguments, **options)

        return wrapped


CLOCK = Clock()


class Block(np.ndarray):
    """A float64 block whose products are on the clock."""

    def __matmul__(self, other: Any) -> Any:
        left, right = self.view(np.ndarray), np.asarray(other)
        # NumPy multiplies an array by its own transpose with syrk, of half the operations.
        routine = "syrk" if left.__array_interface__["data"] == right.__array_interface__["data"] else "gemm"
        with CLOCK.doing("BLAS", f"{routine} {left.shape[0]} x {left.shape[1]} x {right.shape[1]}"):
            return left @ right


def plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function given the plain array."""
    return lambda array, *more, **options: function(np.asarray(array), *more, **options)


def wrap() -> None:
    """Put the engine on the clock."""
    for routine in ("eigh", "eigvalsh", "svd", "qr"):
        setattr(np.linalg, routine, CLOCK.timed("LAPACK", plain(getattr(np.linalg, routine)), routine))
    upcast = decompose.NUMPY.upcast
    decompose.NUMPY = replace(decompose.NUMPY, upcast=lambda block: upcast(block).view(Block))
    blocks = decompose._Tall.blocks

    def timed_blocks(tall: Any, rows: int | None = None) -> Iterator[Any]:
        source = blocks(tall, rows)
        while True:
            with CLOCK.doing("upcasting"):
                block = next(source, None)
            if block is None:
                return
            yield block

    decompose._Tall.blocks = timed_blocks
    for activity, owner, name in (
        ("rest of decompose", job, "decompose"),
        ("rest of decompose", decompose, "decompose"),
        ("rest of decompose", job, "decompose_blocks"),
        ("store: float32, transposed", decompose, "_stored"),
        ("counting zeros", job, "share_of_zeros"),
        ("hashing tensors", job, "hash_tensor"),
        ("hashing files", Checkpoint, "content_hash"),
        ("reading", Checkpoint, "load"),
        ("cutting parts and heads", Matrix, "cut"),
        ("store: writing", StepWriter, "__enter__"),
        ("store: writing", StepWriter, "add"),
        ("store: writing", StepWriter, "finish"),
        ("rest of a worker", job.Job, "_decompose"),
    ):
        setattr(owner, name, CLOCK.timed(activity, getattr(owner, name)))


def main() -> None:
    source, store, result, *workers = sys.argv[1:]
    wrap()
    start = time.perf_counter()
    spectrascope.analyze(source, store, workers=int(workers[0]) if workers else None)
    seconds = time.perf_counter() - start
    Path(result).write_text(json.dumps({"seconds": seconds, "spent": CLOCK.spent, "calls": CLOCK.calls}))


if __name__ == "__main__":
    main()
