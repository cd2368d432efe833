"""The analysis of a trajectory (behind `spectrascope.analyze`): finds its checkpoints, and runs over them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, cast

from .checkpoints import (
    HubRequest,
    Reference,
    find_checkpoints,
    from_state_dicts,
    is_on_the_hub,
    require_weights,
)
from .cluster import open_cluster
from .errors import RequestError
from .job import Settings
from .machines import run_on
from .progress import Progress, Silent
from .run import Run
from .steps import select_steps
from .store import Trajectory, open_for_writing
from .workers import choose_devices, open_pool, single_threaded

StateDictAtStep = tuple[int, Mapping[str, Any]]
Source = str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | Iterable[StateDictAtStep]


def analyze(
    source: Source,
    out: str | os.PathLike[str] | None = None,
    *,
    steps: str = "all",
    step_regex: str | None = None,
    match: Sequence[str] = (),
    skip: Sequence[str] = (),
    top_k: int = 100,
    device: str = "auto",
    workers: int | None = None,
    trust_mtime: bool = False,
    trust_pickle: bool = False,
    weights: str = "auto",
    heads: int | None = None,
    kv_heads: int | None = None,
    revisions: Sequence[str] = (),
    keep: bool = False,
    dask: str | None = None,
    progress: Progress | None = None,
) -> Trajectory:
    """Decompose every weight matrix of a trajectory of checkpoints into a store, and open it.

    Parameters
    ----------
    source : a directory, a file, a repository of the Hugging Face Hub ("hf://owner/name[@revision]"), several of these,
        or an iterable of (step, state_dict); each state dict is done with when the next one is asked for, so that a
        generator may train in place
    out : the store's directory; `./NAME.spectra` by default for one path, required otherwise
    steps : which of the steps found: all, last, every:N, log:N, or a list of steps and ranges
    step_regex : finds the step in names; its group `step`, else its first group
    match, skip : globs of matrix names to analyse, and to leave out
    top_k : how many singular vectors to keep of either side; 0 keeps singular values alone
    device : auto, cpu, cuda or cuda:i. Float64 is needed, so MPS gives way to the CPU
    workers : threads of the pool; one per core by default
    trust_mtime : take files of unchanged size and time as unchanged, without reading them
    trust_pickle : load pickles that need more than the safe loader gives; they can run any code
    weights : of checkpoints that hold averages (EMA) of the weights as well, which copy: live, averaged, or auto, which
        is live where the first checkpoint has live weights. The two are never mixed
    heads, kv_heads : how many heads attention layers have, and their keys and values, where no config.json beside the
        checkpoint says it
    revisions : of a repository on the Hub, those that fit one of these globs, or regular expressions after "re:"
    dask : the address of a dask scheduler, "tcp://host:8786", whose workers analyse a checkpoint each on a shared disk
    keep : leave what is fetched from the Hub in its cache, rather than remove each revision when it is done

    Returns the store, opened for the steps asked for. `failures` lists what could not be read, `warnings` the rest.
    What the store already holds of the same content under the same settings is not computed again.

    Raises RequestError for a source, step or setting that does not exist, HubError where a repository is not listed,
    StoreError where the store cannot be read or written, NothingAnalysed where no checkpoint could be read or none
    holds a matrix.
    """
    if top_k < 0:
        raise RequestError(f"--top-k must be 0 or more, not {top_k}")
    if workers is not None and workers < 1:
        raise RequestError(f"--workers must be 1 or more, not {workers}")
    if any(count is not None and count < 1 for count in (heads, kv_heads)):
        raise RequestError("--heads and --kv-heads must be 1 or more")
    require_weights(weights)
    progress = progress or Silent()
    # On a cluster, the workers know what they have.
    devices, device_warning = choose_devices(device if dask is None else "cpu")
    settings = Settings(top_k, ((tuple(match), tuple(skip)),), heads=heads, kv_heads=kv_heads)
    run = Run(_store_path(source, out), settings, trust_mtime, progress, weights)
    if device_warning:
        run.warn(device_warning)
    request = HubRequest(tuple(revisions), keep, bool(match), run.store)
    references = _references(run, source, steps, step_regex, trust_pickle, request, is_shared=dask is not None)
    with open_for_writing(run.store):
        if dask is None:
            with single_threaded(), open_pool(workers, devices) as pool:
                run.go(references, pool)
        elif isinstance(references, list):
            with open_cluster(dask) as cluster:
                run_on(cluster, run, references, device, workers)
        else:
            raise RequestError("--dask analyses files and repositories; state dicts are in the memory of this machine")
        return run.result()


def _references(
    run: Run,
    source: Source,
    steps: str,
    step_regex: str | None,
    trust_pickle: bool,
    request: HubRequest,
    is_shared: bool,
) -> Iterable[Reference]:
    """The checkpoints to analyse in step order; a list, unless they come from memory one after the other."""
    items = iter([source] if isinstance(source, (str, os.PathLike)) else source)
    first = next(items, None)
    if first is not None and not isinstance(first, (str, os.PathLike)):
        if steps != "all":
            raise RequestError("steps are selected among checkpoints in files; leave out state dicts yourself")
        return from_state_dicts(chain([first], cast(Iterator[StateDictAtStep], items)))
    paths = [path for path in chain([first], cast(Iterator[str], items)) if path is not None]
    if is_shared:  # the workers run in directories of their own
        paths = [path if is_on_the_hub(path) else os.path.abspath(path) for path in paths]
    found = find_checkpoints(paths, step_regex, trust_pickle, request)
    for warning in found.warnings:
        run.warn(warning)
    for note in found.notes:
        run.progress.say(note)
    wanted = set(select_steps([reference.step for reference in found.references], steps))
    return [reference for reference in found.references if reference.step in wanted]


def default_store(source: str | os.PathLike[str]) -> Path:
    """`./NAME.spectra`, NAME being that of the directory, file or repository."""
    if is_on_the_hub(source):
        return Path(f"{str(source).partition('@')[0].rpartition('/')[2]}.spectra")
    path = Path(source).resolve()
    return Path(f"{path.name if path.is_dir() else path.stem}.spectra")


def _store_path(source: Source, out: str | os.PathLike[str] | None) -> Path:
    if out is not None:
        return Path(out)
    if not isinstance(source, (str, os.PathLike)):
        raise RequestError("several sources, or state dicts, need a store: name one as `out`")
    return default_store(source)
