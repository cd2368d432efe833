"""What is finished of a checkpoint that is not, kept so that a kill loses a minute of work and not an hour."""

from __future__ import annotations

import os
import shutil
import time
import uuid
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ..errors import StoreError
from .directory import STEP_FILE
from .step_file import Record, StepInfo, StepWriter, read_info

# Seconds of work between two of them. A checkpoint that takes less leaves none.
SAVE_EVERY = 60.0
PARTS = ".unfinished"


class Parts:
    """The parts of one step's file: files of their own below the store, each of some matrices, never changed again.

    They are found by the bytes of tensors, as all that the store holds is, and removed once the step's file is there.
    """

    def __init__(self, store: Path, info: StepInfo) -> None:
        self._store, self._info = store, info
        self._saved = time.monotonic()
        self._records: list[Record] = []
        self._there = {
            (record.name, record.raw_hash)
            for path in part_files(store)
            if path.parent.parent == _folder(store, info.step)
            for record in _records(path)
        }

    def add(self, record: Record, writer: StepWriter) -> None:
        """A matrix is in the writer of the step's file; it is saved with those since the last part, if it is time."""
        if (record.name, record.raw_hash) not in self._there:
            self._records.append(record)
        if self._records and time.monotonic() - self._saved >= SAVE_EVERY:
            with suppress(StoreError, OSError):  # the step's file itself will say that the disk is full
                self._save(writer)
                self._records = []
            self._saved = time.monotonic()

    def _save(self, writer: StepWriter) -> None:
        folder = _folder(self._store, self._info.step) / uuid.uuid4().hex
        folder.mkdir(parents=True)
        records = [replace(record) for record in self._records if not record.failed]
        source = self._info.source | {"content": ""}
        info = StepInfo(folder, self._info.step, source, self._info.settings, records, [], 0.0, self._info.architecture)
        with StepWriter(folder, info) as part:
            for record in records:
                part.add(record, *writer.read_back(record))
            part.finish()


def part_files(store: Path) -> list[Path]:
    """The finished parts of all steps."""
    # Unlike Path.glob, this goes on where another worker removes a directory meanwhile.
    found = [Path(folder, name) for folder, _, names in os.walk(store / PARTS) for name in names]
    return sorted(path for path in found if STEP_FILE.match(path.name))


def remove_parts(store: Path, step: int) -> None:
    """The step's file is there: its parts are not needed any more."""
    shutil.rmtree(_folder(store, step), ignore_errors=True)
    with suppress(OSError):
        (store / PARTS).rmdir()  # refused while there are those of another step


def _records(path: Path) -> list[Record]:
    try:
        return read_info(path).records
    except StoreError:
        return []


def _folder(store: Path, step: int) -> Path:
    return store / PARTS / str(step)
