"""Sources -> checkpoints in step order. Nothing is opened here unless its name does not tell its step."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

from ..errors import RequestError
from ..tensors import natural_key
from .container import Container
from .deepspeed import deepspeed_directory
from .directory import (
    has_checkpoint_names,
    is_checkpoint_directory,
    is_distributed_directory,
    is_foreign_file,
    is_one_model,
    is_weight_file,
    open_directory,
)
from .formats import open_file
from .origin import HubRequest, Origin, Report, unseen
from .steps import LARGEST_STEP, compile_step_regex, step_in_name

Opener = Callable[[], tuple[Container, list[str]]]
HUB = "hf://"


@dataclass(frozen=True)
class Reference:
    """A checkpoint that has been found and not yet opened.

    `path` is what to show a person. `origin` is where it comes from if it is not on this disk. `is_live` tells that its
    tensors may change once the next reference is asked for, as those of a model in training do.
    """

    path: Path | str
    step: int
    opener: Opener | None
    is_live: bool = False
    origin: Origin | None = None

    def open(self, report: Report = unseen) -> tuple[Container, list[str]]:
        """Its container and a list of warnings, fetched where it is elsewhere. Raises CheckpointError."""
        if self.origin is not None:
            return self.origin.open(report)
        assert self.opener is not None
        return self.opener()

    def release(self) -> None:
        """Take away what was fetched for the while."""
        if self.origin is not None:
            self.origin.release()


@dataclass
class Found:
    """Checkpoints in step order, and what a person should know about how they were found."""

    references: list[Reference] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def is_on_the_hub(source: str | os.PathLike[str]) -> bool:
    """Whether a source is an address of the Hub, hf://owner/name."""
    return isinstance(source, str) and source.startswith(HUB)


def find_checkpoints(
    sources: Sequence[str | os.PathLike[str]],
    step_regex: str | None = None,
    trust_pickle: bool = False,
    request: HubRequest | None = None,
) -> Found:
    """The checkpoints of files, directories and repositories of the Hub (hf://owner/name[@revision]).

    A directory is one checkpoint, or it holds files and directories that are. Steps come from `step_regex`, else
    from names, else from the contents, else they are positions in the order given.

    Raises RequestError where a source does not exist, holds no checkpoint, or two checkpoints have one step;
    HubError where a repository cannot be listed.
    """
    request = request or HubRequest()
    remote = [str(source) for source in sources if is_on_the_hub(source)]
    if request.revisions and not remote:
        raise RequestError(f"--revisions are of a repository on the Hub: give one as {HUB}owner/name")
    notes: list[str] = []
    candidates = [
        candidate
        for source in sources
        for candidate in (
            _revisions(str(source), request, trust_pickle, notes)
            if is_on_the_hub(source)
            else _candidates(Path(source), trust_pickle)
        )
    ]
    found = _with_steps(candidates, compile_step_regex(step_regex))
    if not found.references:
        raise RequestError(_nothing_in(sources))
    _require_distinct(found.references)
    found.references.sort(key=lambda reference: reference.step)
    found.notes = notes
    return found


def from_state_dicts(items: Iterable[tuple[int, Mapping[str, Any]]]) -> Iterator[Reference]:
    """References to (step, state_dict) pairs, taken one at a time. Raises RequestError for what is no such pair."""
    seen: set[int] = set()
    for item in items:
        step, state_dict = _pair(item)
        if step in seen:
            raise RequestError(f"two state dicts are of step {step}")
        seen.add(step)
        yield Reference(Path(f"state dict of step {step}"), step, partial(_open_state_dict, step, state_dict), True)


def _pair(item: Any) -> tuple[int, Mapping[str, Any]]:
    try:
        step, state_dict = item
        whole = int(step) == step
    except (TypeError, ValueError) as error:
        raise RequestError(f"a source is paths, or pairs of a step and a state dict, not {item!r:.80}") from error
    if not whole or not 0 <= step <= LARGEST_STEP:
        raise RequestError(f"a step is a whole number from 0 on, not {step!r}")
    return int(step), state_dict


def _open_state_dict(step: int, state_dict: Mapping[str, Any]) -> tuple[Container, list[str]]:
    from .memory import StateDict

    return StateDict(state_dict, f"state dict of step {step}"), []


@dataclass(frozen=True)
class _Candidate:
    """Something beside others that may be a checkpoint; `open` is None for what is none, or is elsewhere."""

    path: Path | str
    open: Opener | None
    origin: Origin | None = None

    @property
    def is_checkpoint(self) -> bool:
        return self.open is not None or self.origin is not None

    @property
    def name(self) -> str:
        """What its step is read from: the file's name, or the revision."""
        return self.path.name if isinstance(self.path, Path) else self.path.partition("@")[2]

    @property
    def parent_name(self) -> str:
        return self.path.parent.name if isinstance(self.path, Path) else ""


def _revisions(source: str, request: HubRequest, trust_pickle: bool, notes: list[str]) -> list[_Candidate]:
    from .hub import HubRevision, Repository, parse, revisions_meant

    address = parse(source)
    repository = Repository(address.repository)
    names = list(repository.commits) if address.revision is None else []
    meant = revisions_meant(address, names, request.revisions)
    stepped = [name for name in names if step_in_name(name) is not None and name not in meant]
    if stepped and not request.revisions:
        notes.append(f"{source} is read at main; for its {len(stepped)} others, such as {stepped[0]}, add --revisions")
    found = []
    for name in meant:
        label = address.label(name)
        origin = HubRevision(label, repository, repository.commit_of(name), request, trust_pickle)
        found.append(_Candidate(label, None, origin))
    return found


def _candidates(source: Path, trust_pickle: bool) -> list[_Candidate]:
    def of_file(path: Path) -> _Candidate:
        return _Candidate(path, partial(_open_one_file, path, trust_pickle))

    def of_directory(path: Path) -> _Candidate:
        return _Candidate(path, partial(open_directory, path, trust_pickle))

    source = source if source.name else source.resolve()  # "." has no name to read a step from
    if not source.exists():
        raise RequestError(f"{source}: no such file or directory{_near(source)}")
    if source.suffix == ".spectra" and source.is_dir():
        raise RequestError(f"{source} is a store of spectra; report it with `spectrascope rank {source}`")
    if not source.is_dir():
        return [of_file(source)]
    try:
        children = sorted(source.iterdir(), key=lambda path: natural_key(path.name))
    except OSError as error:
        raise RequestError(f"{source}: cannot be read ({error.strerror})") from error
    folders = [p for p in children if p.is_dir() and p.suffix != ".spectra" and not p.name.startswith(".")]
    # `checkpoint-300` without weights beside `checkpoint-200` with them is a checkpoint that failed to be written.
    families = {_family(path) for path in folders if is_checkpoint_directory(path)}
    directories = [of_directory(p) if _family(p) in families else _Candidate(p, None) for p in folders]
    stepped = [path for path in folders if _family(path) in families and step_in_name(path.name) is not None]
    # Trainers put the states of DeepSpeed, in directories of their own, beside the weights of the same step.
    if is_distributed_directory(source) or (not stepped and is_one_model(source)):
        return [of_directory(source)]
    if has_checkpoint_names(source) and all(map(deepspeed_directory, stepped)):
        return [of_directory(source)]
    foreign = [path for path in children if is_foreign_file(path) and step_in_name(path.name) is not None]
    found = directories + [of_file(path) for path in children if is_weight_file(path) or path in foreign]
    if any(one.open for one in found) or not is_checkpoint_directory(source):
        return found + ([] if found else [of_file(path) for path in children if is_foreign_file(path)])
    return [of_directory(source)]


def _open_one_file(path: Path, trust_pickle: bool) -> tuple[Container, list[str]]:
    return open_file(path, trust_pickle), []


def _near(source: Path) -> str:
    try:
        names = [path.name for path in source.parent.iterdir()]
    except OSError:
        return ""
    close = get_close_matches(source.name, names, n=1)
    return f"; did you mean {source.with_name(close[0])}?" if close else ""


def _family(path: Path) -> str:
    """A name without its numbers."""
    return re.sub(r"\d+", "#", path.name)


def _with_steps(candidates: list[_Candidate], pattern: re.Pattern[str] | None) -> Found:
    usable = [one for one in candidates if one.is_checkpoint]
    steps = [step_in_name(one.name, pattern) for one in usable]
    if not any(step is not None for step in steps):
        parents = [step_in_name(one.parent_name, pattern) for one in usable]
        if None not in parents and len(set(parents)) == len(usable):
            steps = parents
    if any(step is not None for step in steps):
        noise = [one for one in candidates if not one.is_checkpoint]
        noise += [one for one, step in zip(usable, steps, strict=True) if step is None]
        found = [(one, step) for one, step in zip(usable, steps, strict=True) if step is not None]
        return Found([_reference(one, step) for one, step in found], _name_once(noise))
    if pattern is not None and usable:
        raise RequestError(f"--step-regex {pattern.pattern!r} fits no name, such as {usable[0].name!r}")
    return _steps_from_content(usable)


def _steps_from_content(candidates: list[_Candidate]) -> Found:
    steps = [_step_in_content(one) for one in candidates]
    if candidates and None not in steps and len(set(steps)) == len(steps):
        return Found([_reference(one, step) for one, step in zip(candidates, steps, strict=True) if step is not None])
    found = Found([_reference(one, position) for position, one in enumerate(candidates)])
    if len(candidates) > 1:
        order = ", ".join(one.name for one in candidates[:4]) + (", ..." if candidates[4:] else "")
        found.warnings.append(
            f"neither names nor contents tell the step of every checkpoint: steps are positions ({order}); "
            "--step-regex can read them from the names"
        )
    elif candidates:
        found.warnings.append(f"{candidates[0].path}: neither name nor content tells the step; it is called step 0")
    return found


def _step_in_content(candidate: _Candidate) -> int | None:
    if candidate.open is None:
        return None  # what is elsewhere is not fetched for this
    try:
        return candidate.open()[0].step()
    except Exception:
        return None  # reported when the checkpoint is analysed


def _reference(candidate: _Candidate, step: int) -> Reference:
    return Reference(candidate.path, step, candidate.open, origin=candidate.origin)


def _name_once(noise: list[_Candidate]) -> list[str]:
    if not noise:
        return []
    names = ", ".join(sorted((one.name for one in noise), key=natural_key))
    return [f"left out, as they hold no weights or their names state no step: {names}"]


def _require_distinct(references: list[Reference]) -> None:
    first: dict[int, Path | str] = {}
    for reference in references:
        if reference.step in first:
            raise RequestError(
                f"{first[reference.step]} and {reference.path} are both step {reference.step}; "
                "name one of them, or tell steps apart with --step-regex"
            )
        first[reference.step] = reference.path


def _nothing_in(sources: Sequence[str | os.PathLike[str]]) -> str:
    where = ", ".join(map(str, sources)) or "nothing on standard input"
    inside = [
        child
        for source in map(Path, sources)
        if source.is_dir()
        for child in sorted(source.iterdir())
        if _holds_checkpoints(child)
    ]
    hint = f"; did you mean {inside[0]}?" if inside else ""
    return f"{where}: no checkpoints here (.safetensors, .pt, .pth, .bin, .ckpt, .npz){hint}"


def _holds_checkpoints(path: Path) -> bool:
    try:
        return path.is_dir() and any(is_weight_file(one) or is_checkpoint_directory(one) for one in path.iterdir())
    except OSError:
        return False
