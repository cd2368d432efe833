"""What a caller may want to see while an analysis runs."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """What a caller may want to see while an analysis runs."""

    def say(self, line: str) -> None:
        """A plain fact, such as how much there is to do."""

    def warn(self, line: str) -> None:
        """Something that a person should know; the numbers stand."""

    def fail(self, line: str) -> None:
        """A checkpoint that could not be analysed; the run goes on."""

    def update(self, done: float, total: int, step: int | None) -> None:
        """`done` of `total` checkpoints are decomposed; `step` is the one in hand. `total` is 0 if unknown."""

    def fetch(self, label: str, done: int, size: int) -> None:
        """`done` of `size` bytes of a checkpoint on the Hub have come. Called from another thread."""


class Silent:
    """No progress."""

    def say(self, line: str) -> None: ...
    def warn(self, line: str) -> None: ...
    def fail(self, line: str) -> None: ...
    def update(self, done: float, total: int, step: int | None) -> None: ...
    def fetch(self, label: str, done: int, size: int) -> None: ...


class Muted:
    """Another's progress without its words, for a part of its work: `span` of `total`, from `at` on."""

    def __init__(self, progress: Progress, at: float, span: float, total: int) -> None:
        self._progress = progress
        self._at, self._span, self._total = at, span, total

    def say(self, line: str) -> None: ...
    def warn(self, line: str) -> None: ...

    def fail(self, line: str) -> None:
        self._progress.fail(line)

    def update(self, done: float, total: int, step: int | None) -> None:
        self._progress.update(self._at + self._span * done / max(total, 1), self._total, step)

    def fetch(self, label: str, done: int, size: int) -> None:
        self._progress.fetch(label, done, size)
