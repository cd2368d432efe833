"""One revision of a repository as a checkpoint: which files are its weights, fetched whole or read in place."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ...errors import CheckpointError
from ...words import human_bytes, listed
from ..container import Container
from ..directory import INDICES, WHOLE_FILES, is_weight_name
from ..formats import open_file
from ..origin import HubRequest, Report, Stamp, unseen
from ..sharded import SHARD, full_shard_sets, open_index, open_shards, read_index
from .fetch import Files
from .remote_file import RemoteSafetensors
from .repository import HubFile, Repository

# What is read beside the weights, where it is there.
FACTS = ("config.json", "adapter_config.json", "quantize_config.json")


@dataclass(frozen=True)
class Weights:
    """Which files hold the weights of a revision: `index` names the shards, else several are shards without one."""

    files: list[HubFile]
    index: HubFile | None = None

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self.files)


@dataclass
class HubRevision:
    """A revision, found and not yet fetched; keeps the protocol of `Origin`.

    Attributes: `label` (hf://owner/name@revision), `commit` (what the revision was when it was found), `request`.
    """

    label: str
    repository: Repository
    commit: str
    request: HubRequest
    trust_pickle: bool = False
    folder: Path | None = field(default=None, init=False)
    _listed: dict[str, HubFile] = field(default_factory=dict, init=False, repr=False)
    _weights: Weights | None = field(default=None, init=False, repr=False)
    _is_local: bool = field(default=False, init=False, repr=False)

    def weights(self) -> Weights:
        """The files that hold the weights; safetensors before pickles. Raises CheckpointError where none does."""
        if self._weights is None:
            self._listed = {file.name: file for file in self.repository.files(self.commit, self.label)}
            self._weights = self._choose()
        return self._weights

    def open(self, report: Report) -> tuple[Container, list[str]]:
        """The container of the weights, after what it needs has been fetched. Raises CheckpointError."""
        weights = self.weights()
        facts = [self._listed[name] for name in FACTS if name in self._listed]
        beside = facts + ([weights.index] if weights.index else [])
        cached = self._files.cached([file.name for file in (*weights.files, *beside)])
        self._is_local = not (self.request.in_place and cached is None and _all_safe(weights.files))
        wanted = [*beside, *weights.files] if self._is_local else beside
        self.folder = self._files.fetch(wanted, report) if wanted else None
        return self._container(weights), []

    def sizes(self) -> tuple[dict[str, int], int]:
        """The bytes of each file that holds weights, and how many of all are to be fetched. Raises CheckpointError."""
        weights = self.weights()
        cached = self._files.cached([file.name for file in weights.files])
        return {file.name: file.size for file in weights.files}, 0 if cached else weights.bytes

    def require_in_place(self) -> None:
        """Raises CheckpointError where the weights are pickles, which are fetched whole, and are not in the cache."""
        weights = self.weights()
        if not _all_safe(weights.files) and self._files.cached([file.name for file in weights.files]) is None:
            raise CheckpointError(
                self.label,
                f"holds {weights.files[0].name}, {human_bytes(weights.bytes)}, whose tensors are not known before all "
                "of it is fetched; `spectrascope analyze` does that, and --keep leaves it in the cache",
            )

    def release(self) -> None:
        """Take away what was fetched and was not in the user's cache before. What is kept for good stays."""
        self._files.remove()

    def stamp(self, used: Sequence[Path]) -> Stamp:
        """Name, size and hash of each file that decides values, as the Hub lists them."""
        return [(file.name, file.size, file.digest) for file in self._deciding(used)]

    def content(self, used: Sequence[Path]) -> str:
        """The blobs' own hashes, which files on this disk must have.

        Raises CheckpointError where they have not. What is read in place is not hashed.
        """
        files = self._deciding(used)
        if self._is_local:
            for file in files:
                self._require_sound(file)
        if len(files) == 1:
            return files[0].digest
        return hashlib.sha256(repr([(file.name, file.digest) for file in files]).encode()).hexdigest()

    @property
    def _files(self) -> Files:
        user = f"process {os.getpid()}" if self.request.store is None else os.path.abspath(self.request.store)
        return Files(self.label, self.repository.name, self.commit, user, self.request.keep)

    def _deciding(self, used: Sequence[Path]) -> list[HubFile]:
        return [*self.weights().files, *(self._listed[path.name] for path in used if path.name in self._listed)]

    def _choose(self) -> Weights:
        names = list(self._listed)
        for whole, index in zip(WHOLE_FILES, (*INDICES, *[None] * len(WHOLE_FILES)), strict=False):
            if index in self._listed and (shards := self._shards_of(str(index))):
                return Weights(shards, self._listed[str(index)])
            if whole in self._listed:
                return Weights([self._listed[whole]])
        sets = list(full_shard_sets(names).values())
        lone = [name for name in names if is_weight_name(name)]
        if not sets and any(map(SHARD.match, lone)):
            there = listed([name for name in lone if SHARD.match(name)], 4)
            raise CheckpointError(self.label, f"lacks some of its shards: only {there} is there")
        chosen = sets[0] if sets else lone
        if not chosen or (len(chosen) > 1 and not sets):
            if lone:
                raise CheckpointError(self.label, f"which file holds the weights is not clear ({', '.join(lone)})")
            raise CheckpointError(
                self.label,
                f"holds no weights of a format that is read here: {listed(names, 8) or 'no files at its top'}",
            )
        return Weights([self._listed[name] for name in chosen])

    def _shards_of(self, index: str) -> list[HubFile]:
        """The shards that an index names; none where one of them is not there."""
        file = self._listed[index]
        folder = self._files.fetch([file], unseen)
        names = sorted(set(read_index(folder / index).values()))
        return [self._listed[name] for name in names] if all(name in self._listed for name in names) else []

    def _container(self, weights: Weights) -> Container:
        opener: Callable[[Path], Container] = self._open_local if self._is_local else self._open_remote
        folder = self.folder or Path()
        names = [file.name for file in weights.files]
        if weights.index is not None:
            return open_index(folder / weights.index.name, opener, are_here=self._is_local)
        if len(names) > 1:
            return open_shards(folder, self.label, names, opener)
        return opener(folder / names[0])

    def _open_local(self, path: Path) -> Container:
        return open_file(path, self.trust_pickle)

    def _open_remote(self, path: Path) -> Container:
        return RemoteSafetensors(self.label, self.repository.name, self.commit, self._listed[path.name])

    def _require_sound(self, file: HubFile) -> None:
        assert self.folder is not None
        path = self.folder / file.name
        try:
            is_sound = not _is_hash(file.digest) or _digest(path, len(file.digest)) == file.digest
        except OSError as error:
            raise CheckpointError(path, f"cannot be read ({error.strerror or error})") from error
        if not is_sound:
            is_kept = self.request.keep or self._files.cached([file.name]) is not None
            way_out = f"delete {path.resolve()}" if is_kept else "the same command fetches it anew"
            raise CheckpointError(f"{self.label}/{file.name}", f"has other bytes than were published; {way_out}")


def _all_safe(files: Sequence[HubFile]) -> bool:
    return all(file.name.endswith(".safetensors") for file in files)


def _is_hash(digest: str) -> bool:
    """Whether a digest is one: a cache without links does not name its files so."""
    return re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", digest) is not None


def _digest(path: Path, length: int) -> str:
    """The sha256 of a file, or, for a hash as long as git's, its git blob id."""
    with path.open("rb") as file:
        if length == 64:
            return hashlib.file_digest(file, "sha256").hexdigest()
        blob = hashlib.sha1(f"blob {path.stat().st_size}\0".encode())
        while piece := file.read(2**20):
            blob.update(piece)
        return blob.hexdigest()
