"""Checkpoints that are elsewhere: the next one is fetched while this one is in hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial

from .checkpoints import Container, Reference
from .errors import Unfetched
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
        self._opening: dict[int, tuple[Reference, Future[Opened]]] = {}
        self._unfinished: Reference | None = None

    def __enter__(self) -> Fetcher:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)
        if kind is not KeyboardInterrupt:  # after which the next run goes on from there
            for reference, future in self._opening.values():
                future.add_done_callback(partial(_release, reference))

    def each(
        self, references: Sequence[Reference], waiting: Callable[[Reference], None]
    ) -> Iterator[tuple[Reference, Callable[[], Opened]]]:
        """Each checkpoint with what gives its container and warnings, or raises as `Reference.open` does.

        `waiting` is called now and then while it is being fetched, and may raise KeyboardInterrupt.
        """
        for position, reference in enumerate(references):
            for near in references[position : position + 2]:
                if near.origin is not None and near.step not in self._opening:
                    self._opening[near.step] = near, self._executor.submit(near.open, self._progress.fetch)
            if reference.origin is None:
                yield reference, reference.open
            else:
                yield reference, self._result(reference, waiting)

    def _result(self, reference: Reference, waiting: Callable[[Reference], None]) -> Callable[[], Opened]:
        def result() -> Opened:
            _, future = self._opening[reference.step]
            while not wait([future], timeout=0.2).done:
                waiting(reference)
            del self._opening[reference.step]
            try:
                return future.result()
            except Unfetched:
                if self._unfinished is not None:
                    self._unfinished.release()
                self._unfinished = reference
                raise
            except Exception:
                reference.release()
                raise

        return result


def _release(reference: Reference, _: Future[Opened]) -> None:
    reference.release()
