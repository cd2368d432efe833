"""A directory that is one checkpoint: which of its files are the weights."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from itertools import zip_longest
from pathlib import Path

from ..errors import CheckpointError
from .checkpoint import hash_tensor
from .container import Container
from .deepspeed import WHOLE, deepspeed_directory, whole_weights
from .foreign import ORBAX, ORBAX_FILES, foreign_by_name
from .formats import format_of, open_file
from .safetensors_file import PUT_TOGETHER
from .sharded import SHARD, full_shard_sets, open_index, open_shards, read_index

# What trainers leave beside the weights.
NOT_WEIGHTS = re.compile(
    r"(?:(?:optimizer|optim|opt)(?:_?states?)?|lr_scheduler|scheduler|scaler|rng_state|random_states|training_args)(?:_\d+)*\.",
    re.IGNORECASE,
)
# The names that a model's weights have inside a checkpoint directory, best first.
WHOLE_FILES = ("model.safetensors", "pytorch_model.bin", "adapter_model.safetensors", "adapter_model.bin")
INDICES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")

# What torch.distributed.checkpoint writes last, and what is missing without it.
METADATA = ".metadata"
UNFINISHED = "holds parts of a torch.distributed.checkpoint and no .metadata: it was not saved to its end"
# Where Accelerate puts the weights of a model under FSDP.
ACCELERATE = "pytorch_model_fsdp_*"

# Slices of every matrix, of Llama's releases and of Megatron.
SLICE = re.compile(r"(?:consolidated\.\d\d\.(?:pth|pt)|mp_rank_\d\d(?:_\d+)?)$")
# What torch.distributed.checkpoint calls the safetensors of each process.
PROCESS = re.compile(r"shard-(\d{5})-.*\.safetensors$")

Opener = Callable[[], Container]


def is_weight_file(path: Path) -> bool:
    """Whether a file may be a checkpoint, by its name."""
    return is_weight_name(path.name) and path.is_file()


def is_weight_name(name: str) -> bool:
    """Whether a name may be that of a checkpoint."""
    return format_of(Path(name)) is not None and not name.startswith(".") and not NOT_WEIGHTS.match(name)


def is_foreign_file(path: Path) -> bool:
    """Whether a file is, by its name, a checkpoint of a format that is recognised and refused."""
    return foreign_by_name(path) is not None and _may_be_weights(path)


def _may_be_weights(path: Path) -> bool:
    return not path.name.startswith(".") and not NOT_WEIGHTS.match(path.name) and path.is_file()


def has_checkpoint_names(path: Path) -> bool:
    """Whether a directory holds files under the names that the weights of one checkpoint have."""
    names = _names(path)
    known = {*WHOLE_FILES, *INDICES, METADATA}
    return any(name in known or (SHARD.match(name) and is_weight_file(path / name)) for name in names)


def is_checkpoint_directory(path: Path) -> bool:
    """Whether a directory holds one checkpoint: weights under such names, or one weight file of any name.

    Those of other tools, which may be refused when they are opened, count as well.
    """
    try:
        names = _names(path)
        weights = sum(is_weight_file(path / name) for name in names)
        foreign = sum(is_foreign_file(path / name) for name in names)
        if _slices(names):
            return True
        return weights == 1 or (weights == 0 and foreign == 1) or has_checkpoint_names(path) or _is_of_a_tool(path)
    except OSError:
        return False


def _slices(names: list[str]) -> list[str]:
    """The slices of one model among file names, where there are several."""
    found = [name for name in names if SLICE.match(name)]
    return found if len(found) > 1 else []


def _is_of_a_tool(path: Path) -> bool:
    is_of_orbax = any((path / name).exists() for name in ORBAX_FILES)
    return is_of_orbax or is_distributed_directory(path) or deepspeed_directory(path) is not None


def is_one_model(path: Path) -> bool:
    """Whether the weight files of a directory are pieces of one model, rather than checkpoints of their own."""
    return deepspeed_directory(path) == path or bool(_slices(_names(path)))


def is_distributed_directory(path: Path) -> bool:
    """Whether a directory is a torch.distributed.checkpoint, or holds one that Accelerate has put into it."""
    return _distributed_inside(path) is not None


def _distributed_inside(path: Path) -> Path | None:
    """The torch.distributed.checkpoint that a directory is, or that Accelerate has put into it."""
    return next((one for one in (path, *sorted(path.glob(ACCELERATE))) if (one / METADATA).is_file()), None)


def open_directory(path: Path, trust_pickle: bool = False) -> tuple[Container, list[str]]:
    """The container of a checkpoint directory, and warnings about what else lies in it.

    Safetensors are preferred to pickles and an index to its absence; sets are never merged. Raises CheckpointError
    where a shard that an index names is absent, or where several files could be meant.
    """
    opener = partial(open_file, trust_pickle=trust_pickle)
    try:
        names = _names(path)
    except OSError as error:
        raise CheckpointError(path, f"cannot be read ({error.strerror})") from error
    if slices := _slices(names):
        raise CheckpointError(
            path,
            f"holds {len(slices)} slices of one model ({slices[0]}, ...); put them together first, with the script of "
            "its publisher or of transformers that converts it",
        )
    if len({found[1] for name in names if (found := PROCESS.match(name))}) > 1:
        raise CheckpointError(path, f"holds the shards of several processes; {PUT_TOGETHER}")
    indices = [path / name for name in INDICES if name in names]
    stale = [index for index in indices if _is_stale(index)]
    sets = _sets(path, names, [index for index in indices if index not in stale], opener)
    if not sets and stale:
        open_index(stale[0], opener)  # raises, naming the absent shards
    warnings = [
        f"{index}: a stale index, none of its shards is there; reading {next(iter(sets))} instead" for index in stale
    ]
    if not sets:
        sets = _of_a_tool(path, opener) or _lone_file(path, names, opener)
    (label, first), *others = sets.items()
    container = first()
    return container, warnings + [line for other in others if (line := _differs(path, label, container, *other))]


def _names(path: Path) -> list[str]:
    return sorted(child.name for child in path.iterdir())


def _is_stale(index: Path) -> bool:
    return not any((index.parent / name).exists() for name in set(read_index(index).values()))


def _sets(path: Path, names: list[str], indices: list[Path], opener: Callable[[Path], Container]) -> dict[str, Opener]:
    """Every complete set of weights in the directory under the name it is known by, best first."""
    sets: dict[str, Opener] = {}
    indexed = {file for index in indices for file in read_index(index).values()}
    for whole, index_name in zip_longest(WHOLE_FILES, INDICES):
        if index_name and path / index_name in indices:
            sets[index_name] = partial(open_index, path / index_name, opener)
        if whole in names:
            sets[whole] = partial(opener, path / whole)
    for whole, shards in full_shard_sets(names).items():
        if not indexed.intersection(shards):
            sets[f"the shards of {whole}"] = partial(open_shards, path, whole, shards, opener)
    return sets


def _of_a_tool(path: Path, opener: Callable[[Path], Container]) -> dict[str, Opener]:
    """The weights that torch.distributed.checkpoint or DeepSpeed has saved. Raises CheckpointError for partial ones."""
    if any((path / name).exists() for name in ORBAX_FILES):
        raise ORBAX.refusal(path)
    distributed = _distributed_inside(path)
    if distributed is not None:
        return {distributed.name: partial(_open_distributed, distributed)}
    states = deepspeed_directory(path)
    return {WHOLE: partial(opener, whole_weights(states))} if states is not None else {}


def _open_distributed(path: Path) -> Container:
    from .distributed import DistributedDirectory  # torch is imported for what it wrote alone

    return DistributedDirectory(path)


def _lone_file(path: Path, names: list[str], opener: Callable[[Path], Container]) -> dict[str, Opener]:
    weights = [name for name in names if is_weight_file(path / name)]
    if len(weights) != 1:
        foreign = [path / name for name in names if is_foreign_file(path / name)]
        if not weights and any(name.endswith(".distcp") for name in names):
            raise CheckpointError(path, UNFINISHED)
        if not weights and foreign:
            open_file(foreign[0])  # raises, naming the format
        if not weights:
            raise CheckpointError(path, "holds no weights of a format that is read here")
        listed = ", ".join(weights)
        raise CheckpointError(path, f"which file holds the weights is not clear ({listed}); name one of them")
    if found := SHARD.match(weights[0]):
        raise CheckpointError(path, f"{weights[0]} is one of {int(found['count'])} shards; the others are not there")
    return {weights[0]: partial(opener, path / weights[0])}


def _differs(path: Path, label: str, chosen: Container, other_label: str, other: Opener) -> str | None:
    """A warning where two complete sets of one directory do not hold the same weights."""
    try:
        same = _fingerprint(chosen) == _fingerprint(other())
    except CheckpointError as error:
        return f"{path} holds {label} and {other_label}; the latter {error.reason}; reading {label}"
    if same:
        return None
    return f"{path} holds {label} and {other_label}, whose weights differ; reading {label}. Remove one to be sure"


def _fingerprint(container: Container) -> dict[str, str]:
    """Hash of each tensor, tied ones under their first name alone: safetensors store them once."""
    hashes: dict[str, str] = {}
    seen = set()
    for info in container.tensors():
        if info.storage is None or info.storage not in seen:
            hashes[info.name] = "" if info.problem else hash_tensor(container.load(info.name))
        seen.add(info.storage)
    return hashes
