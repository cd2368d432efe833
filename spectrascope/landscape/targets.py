"""Which matrices of a checkpoint pruning and perturbation change, and in which order (SPEC sections 6 and 7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..architectures.facts import read_facts
from ..checkpoints import Checkpoint
from ..matrices import Matrix, plan


@dataclass(frozen=True)
class Targets:
    """The matrices to change, in the model's order, and why others are left alone, by name."""

    matrices: list[Matrix]
    left_alone: dict[str, str]

    @property
    def tensors(self) -> list[str]:
        """The tensors that they are cut from, each once."""
        return list(dict.fromkeys(matrix.tensor for matrix in self.matrices))

    def of(self, tensor: str) -> list[Matrix]:
        """Those that are cut from a tensor."""
        return [matrix for matrix in self.matrices if matrix.tensor == tensor]


def find_targets(
    checkpoint: Checkpoint, order: Sequence[str] = (), include_last: bool = False, skip_embeddings: bool = False
) -> Targets:
    """Every matrix but the last one, which is left alone unless it is the only one or `include_last`.

    Parameters: `order` are the names of the model's parameters where a model is there, whose order decides which is the
    last; else it is that of the checkpoint. A fused projection is one matrix, not its q, k and v. What is made of
    stored tensors, as by weight norm, is left alone. `skip_embeddings` leaves those alone too.
    """
    places = {name: place for place, name in enumerate(order)}
    facts = read_facts(checkpoint.config)
    found = plan(checkpoint.tensors, checkpoint.tied, checkpoint.load, ordered=checkpoint.ordered, facts=facts).matrices
    whole = [matrix for matrix in found if matrix.rows is None]
    whole.sort(key=lambda matrix: min((places.get(name, len(places)) for name in _names(matrix)), default=0))
    left_alone = {matrix.name: f"left alone: {matrix.made_of}" for matrix in whole if matrix.made_of}
    stored = [matrix for matrix in whole if matrix.name not in left_alone]
    last = [matrix for matrix in stored if matrix.tensor == stored[-1].tensor]
    if not include_last and len(last) < len(stored):
        left_alone |= {matrix.name: "left alone: the last matrix" for matrix in last}
    if skip_embeddings:
        left_alone |= {matrix.name: "left alone: an embedding" for matrix in stored if matrix.role == "embedding"}
    return Targets([matrix for matrix in stored if matrix.name not in left_alone], left_alone)


def _names(matrix: Matrix) -> list[str]:
    return [matrix.tensor, *matrix.tied]
