"""Progress of an analysis on stderr: a bar with an ETA on a terminal, at most ten plain lines elsewhere."""

from __future__ import annotations

import signal
import sys
import threading
import time
from types import FrameType, TracebackType
from typing import Any

from ._output import Output


class AnalysisProgress:
    """Keeps `spectrascope.progress.Progress`, and hears Ctrl-C.

    `doing` so many of `what` is what it says.

    A KeyboardInterrupt at any instant may fall into a destructor of a library and be lost there. So the first Ctrl-C
    is only noted, and raised by the next update; a second one is raised at once, and so is one before the first update,
    while revisions are listed.
    """

    def __init__(self, output: Output, doing: str = "analysing", what: str = "checkpoints") -> None:
        self._output = output
        self._what = what
        self._bar: Any = None
        self._task: Any = None
        self._started = time.monotonic()
        self._tenths = 0
        self._fetching = ""
        self._began = False
        self._interrupted = False
        self._handler: Any = None
        if sys.stderr.isatty() and not output.quiet:
            self._bar = _bar(doing, what)

    def __enter__(self) -> AnalysisProgress:
        if threading.current_thread() is threading.main_thread():
            self._handler = signal.signal(signal.SIGINT, self._interrupt)
        return self

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._interrupted or not self._began:
            raise KeyboardInterrupt
        self._interrupted = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._handler is not None:
            signal.signal(signal.SIGINT, self._handler)
        if self._task is not None:
            self._bar.stop()

    def say(self, line: str) -> None:
        self._output.say(line)

    def warn(self, line: str) -> None:
        self._output.warn(line)

    def fail(self, line: str) -> None:
        self._output.fail(line)

    def update(self, done: float, total: int, step: int | None) -> None:
        self._began = True
        if self._interrupted:
            raise KeyboardInterrupt
        if self._bar is not None:
            if self._task is None:
                self._bar.start()
                self._task = self._bar.add_task("", total=total or None, label="")
            label = "" if step is None else f"step {step}"
            label = "done" if total and done >= total else label
            self._bar.update(self._task, completed=done, label=label + self._fetching)
        elif total and int(10 * done / total) > self._tenths:
            self._tenths = int(10 * done / total)
            seconds = time.monotonic() - self._started
            left = seconds / done * (total - done)
            if 0 < done < total and seconds > 2:
                self._output.say(f"{int(done)} of {total} {self._what}, about {left:.0f} s left")

    def fetch(self, label: str, done: int, size: int) -> None:
        revision = label.rpartition("@")[2]
        self._fetching = f"; fetching {revision}: {done / 1e6:,.0f} of {size / 1e6:,.0f} MB" if done < size else ""


def _bar(doing: str, what: str) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn(doing),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(f"{what}, ETA"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[label]}"),
        console=Console(stderr=True),
        transient=True,
    )
