"""Files of a revision on the disk: those in the user's cache, and those that are fetched for the while."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from huggingface_hub import constants, hf_hub_download, try_to_load_from_cache
from tqdm.auto import tqdm

from ...errors import Unfetched
from ..origin import Report
from .claims import claim, give_up
from .faults import describe, may_pass
from .repository import HubFile

# Seconds before a file is asked for again that the server failed to give; the client itself asks once.
WAITS = (1.0, 4.0, 8.0)


class Files:
    """The files of one commit on this disk.

    What the user's cache holds is read there and stays. What is not there is fetched into a place of its own, by
    commit, name and `user` (the store that is made of it): a run that was killed goes on with the files that came
    whole, and no other run loses its own. `remove` takes that away. With `keep` it is fetched into the user's cache.
    """

    def __init__(self, label: str, repository: str, commit: str, user: str, keep: bool) -> None:
        self._label, self._repository, self._commit = label, repository, commit
        self._user, self._keep = user, keep

    def cached(self, names: Sequence[str]) -> Path | None:
        """The directory of the user's cache that holds all of these files, None where one is not there."""
        found = [try_to_load_from_cache(self._repository, name, revision=self._commit) for name in names]
        paths = [Path(path) for path in found if isinstance(path, str)]
        return paths[0].parent if paths and len(paths) == len(names) else None

    def fetch(self, files: Sequence[HubFile], report: Report) -> Path:
        """The directory that holds these files, once they are there; `report` is told label, bytes done and all bytes.

        Raises Unfetched where one cannot be had; files that came whole are kept for the next attempt.
        """
        names = [file.name for file in files]
        if cached := self.cached(names):
            return cached
        whole = sum(file.size for file in files)
        before = 0
        path = None
        for file in files:
            path = self._fetch_one(file, partial(self._report, report, before, whole))
            before += file.size
        assert path is not None
        if self._keep:
            self._name_commit(path.parent.parent.parent / "refs" / self._label.partition("@")[2])
        return path.parent

    def _name_commit(self, ref: Path) -> None:
        """So that HF_HUB_OFFLINE finds the revision by its name."""
        if ref.name != self._commit:
            ref.parent.mkdir(parents=True, exist_ok=True)
            ref.write_text(self._commit)

    def remove(self) -> None:
        """Take away what was fetched for the while; never what the user's cache holds."""
        place = self._place
        shutil.rmtree(claim(place), ignore_errors=True)
        give_up(place)
        with suppress(OSError):
            place.parent.rmdir()  # refused while another revision is there

    def _fetch_one(self, file: HubFile, report: Callable[[int], None]) -> Path:
        place: dict[str, Any] = {} if self._keep else {"local_dir": claim(self._place)}
        for wait in (*WAITS, None):
            try:
                bar = _reporting(report)
                path = hf_hub_download(self._repository, file.name, revision=self._commit, tqdm_class=bar, **place)
                break
            except Exception as error:  # of the client, of its HTTP library, of the disk
                if wait is None or not may_pass(error):
                    raise Unfetched(f"{self._label}/{file.name}", self._reason(error)) from error
                time.sleep(wait)
        return Path(path)

    def _reason(self, error: Exception) -> str:
        if isinstance(error, OSError) and error.errno and error.strerror:
            where = error.filename or (constants.HF_HUB_CACHE if self._keep else self._place)
            return f"cannot be kept at {where} ({error.strerror}); make room there, or set HF_HOME to another disk"
        return describe(error, self._repository)

    def _report(self, report: Report, before: int, whole: int, done: int) -> None:
        report(self._label, before + done, whole)

    @property
    def _place(self) -> Path:
        """Where huggingface_hub wants other programs to keep what they fetch."""
        user = sha256(f"{self._user} {self._label}".encode()).hexdigest()[:8]
        repository = self._repository.replace("/", "--")
        return Path(constants.HF_ASSETS_CACHE, "spectrascope", repository, f"{self._commit[:12]}-{user}")


def _reporting(report: Callable[[int], None]) -> type[tqdm]:
    """A bar of the client that shows nothing and says how many bytes have come."""

    class Bar(tqdm):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            kwargs.pop("name", None)
            super().__init__(*args, **(kwargs | {"disable": True}))
            self._come = int(kwargs.get("initial") or 0)

        def update(self, n: float | None = 1) -> bool | None:
            self._come += int(n or 0)
            report(self._come)
            return None

    return Bar
