"""Checkpoints that are elsewhere: the next one is fetched while this one is in hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

from .checkpoints import Container, Reference
from .errors import CheckpointError
from .progress import Progress

Opened = tuple[Container, list[str]]


class Fetcher:
    """Opens checkpoints in their order, in a thread of its own and one ahead.

    While one is in hand the next is fetched, and no other: the disk holds two. What could not be fetched to its end is
    kept for the next run to go on with, of the latest such checkpoint alone.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="spectrascope-fetch")
        self._unfinished: Reference | None = None

    def __enter__(self) -> Fetcher:
        return self

    def __exit__(self, *_: object) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)

    def each(
        self, references: Sequence[Reference], waiting: Callable[[Reference], None]
    ) -> Iterator[tuple[Reference, Callable[[], Opened]]]:
        """Each checkpoint with what gives its container and warnings, or raises as `Reference.open` does.

        `waiting` is called now and then while it is being fetched, and may raise KeyboardInterrupt.
        """
        opening: dict[int, Future[Opened]] = {}
        for position, reference in enumerate(references):
            for near in references[position : position + 2]:
                if near.origin is not None and near.step not in opening:
                    opening[near.step] = self._executor.submit(near.open, self._progress.fetch)
            future = opening.pop(reference.step, None)
            yield reference, (reference.open if future is None else self._result(reference, future, waiting))

    def _result(
        self, reference: Reference, future: Future[Opened], waiting: Callable[[Reference], None]
    ) -> Callable[[], Opened]:
        def result() -> Opened:
            while not wait([future], timeout=0.2).done:
                waiting(reference)
            try:
                return future.result()
            except CheckpointError:
                if self._unfinished is not None:
                    self._unfinished.release()
                self._unfinished = reference
                raise

        return result
