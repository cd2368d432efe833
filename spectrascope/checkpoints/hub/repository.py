"""What a repository of models on the Hub has: revisions, and the files of each with their sizes and hashes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

from huggingface_hub import constants
from huggingface_hub.file_download import repo_folder_name
from huggingface_hub.utils import build_hf_headers, hf_raise_for_status, http_backoff

from ...errors import CheckpointError, HubError
from ...tensors import natural_key
from .address import SCHEME
from .faults import OFFLINE, describe

COMMIT = re.compile(r"[0-9a-f]{40}$")


@dataclass(frozen=True)
class HubFile:
    """A file of a revision. `digest` is the sha256 of its content where it is stored in LFS, else its git blob id."""

    name: str
    size: int
    digest: str


class Repository:
    """A repository of models, as the Hub lists it, or with HF_HUB_OFFLINE as the user's cache does.

    What it cannot do raises HubError, or CheckpointError where it is of one revision: one sentence with the way out.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __reduce__(self) -> tuple[type[Repository], tuple[str]]:
        return Repository, (self.name,)

    @cached_property
    def commits(self) -> dict[str, str]:
        """The commit of every branch and tag, by name, in natural order."""
        found = self._cached_refs() if constants.is_offline_mode() else self._listed_refs()
        return dict(sorted(found.items(), key=lambda one: natural_key(one[0])))

    def commit_of(self, revision: str) -> str:
        """The commit of a branch, a tag, or the beginning of a commit's own hash."""
        if COMMIT.match(revision):
            return revision
        if revision in self.commits:
            return self.commits[revision]
        if constants.is_offline_mode():
            raise HubError(f"{SCHEME}{self.name}@{revision} {OFFLINE}")
        with self._asking(revision):
            return str(self._ask(f"revision/{quote(revision, safe='')}").json()["sha"])

    def files(self, commit: str, label: str) -> list[HubFile]:
        """The files at the top of a commit, by name. Raises CheckpointError, which names it by `label`."""
        if constants.is_offline_mode():
            return self._cached_files(commit, label)
        try:
            response = self._ask(f"tree/{commit}")
            entries = response.json()
            while following := response.links.get("next", {}).get("url"):
                response = self._get(following)
                entries += response.json()
            files = [one for one in entries if one["type"] == "file"]
            found = [HubFile(one["path"], one["size"], (one.get("lfs") or one)["oid"]) for one in files]
        except Exception as error:  # of the client, of its HTTP library, of the JSON that came
            raise CheckpointError(label, describe(error, self.name)) from error
        return sorted(found, key=lambda one: one.name)

    def _listed_refs(self) -> dict[str, str]:
        with self._asking():
            refs: dict[str, Any] = self._ask("refs").json()
            return {one["name"]: one["targetCommit"] for kind in ("tags", "branches") for one in refs.get(kind, ())}

    def _ask(self, what: str) -> Any:
        return self._get(f"{constants.ENDPOINT}/api/models/{self.name}/{what}")

    def _get(self, url: str) -> Any:
        """An answer, with the client's back-off and a time limit: its own methods have the one or the other."""
        response = http_backoff("GET", url, headers=build_hf_headers(), timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT)
        hf_raise_for_status(response)
        return response

    @property
    def _cache(self) -> Path:
        return Path(constants.HF_HUB_CACHE, repo_folder_name(repo_id=self.name, repo_type="model"))

    def _cached_refs(self) -> dict[str, str]:
        refs = self._cache / "refs"
        names = [path for path in sorted(refs.rglob("*")) if path.is_file()]
        if not names:
            raise HubError(f"{SCHEME}{self.name} {OFFLINE}")
        return {str(path.relative_to(refs)): path.read_text().strip() for path in names}

    def _cached_files(self, commit: str, label: str) -> list[HubFile]:
        snapshot = self._cache / "snapshots" / commit
        if not snapshot.is_dir():
            raise CheckpointError(label, OFFLINE)
        files = [path for path in sorted(snapshot.iterdir()) if path.is_file()]
        # The cache names what it links to by its hash.
        return [HubFile(path.name, path.stat().st_size, path.resolve().name) for path in files]

    @contextmanager
    def _asking(self, revision: str | None = None) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # of the client, of its HTTP library, of the JSON that came
            label = f"{SCHEME}{self.name}" + (f"@{revision}" if revision else "")
            raise HubError(f"{label} {describe(error, self.name)}") from error
