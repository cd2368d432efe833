"""The model's own names: what wrappers put before them is stripped."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

# Names that only a wrapper gives: torch.compile, FSDP, activation checkpointing.
WRAPPERS = frozenset(["_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"])
# torch.optim.swa_utils.AveragedModel keeps its counter beside the wrapped module.
BESIDE_A_WRAPPED_MODULE = frozenset(["n_averaged"])
# What peft puts before the name of every layer.
PEFT = "base_model.model."


def without_wrappers(names: Iterable[str]) -> dict[str, str]:
    """Map each stored name to its name in the bare model.

    `_orig_mod`, `_fsdp_wrapped_module` and `_checkpoint_wrapped_module` are always wrappers. `module` (DataParallel,
    DDP) is one where it is all that its parent holds; a layer called `module_list`, or a `module` that has
    siblings, keeps its name. `base_model.model.` is peft's where all names begin with it.
    """
    names = list(names)
    prefix = PEFT if names and all(name.startswith(PEFT) for name in names) else ""
    paths = {name: [part for part in name.removeprefix(prefix).split(".") if part not in WRAPPERS] for name in names}
    children: defaultdict[tuple[str, ...], set[str]] = defaultdict(set)
    for path in paths.values():
        for depth, part in enumerate(path):
            children[tuple(path[:depth])].add(part)

    def is_wrapper(path: list[str], depth: int) -> bool:
        siblings = children[tuple(path[:depth])] - BESIDE_A_WRAPPED_MODULE
        return path[depth] == "module" and siblings == {"module"} and depth + 1 < len(path)

    return {
        name: ".".join(part for depth, part in enumerate(path) if not is_wrapper(path, depth))
        for name, path in paths.items()
    }
