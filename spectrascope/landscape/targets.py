"""Which matrices of a checkpoint pruning and perturbation change, and in which order (SPEC sections 6 and 7)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ..architectures.facts import read_facts
from ..checkpoints import Checkpoint
from ..matrices import Matrix, plan

NO_PLACES: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True)
class Targets:
    """The matrices to change, in the model's order, and why others are left alone, by name.

    `tied` gives for names of tensors the one that is changed in their stead, `refused` why a weight is not read.
    """

    matrices: list[Matrix]
    left_alone: dict[str, str]
    tied: dict[str, str]
    refused: dict[str, str]

    @property
    def tensors(self) -> list[str]:
        """The tensors that they are cut from, each once."""
        return list(dict.fromkeys(matrix.tensor for matrix in self.matrices))

    def of(self, tensor: str) -> list[Matrix]:
        """Those that are cut from a tensor."""
        return [matrix for matrix in self.matrices if matrix.tensor == tensor]


def find_targets(
    checkpoint: Checkpoint,
    places: Mapping[str, int] = NO_PLACES,
    include_last: bool = False,
    skip_embeddings: bool = False,
) -> Targets:
    """Every matrix but the last one, which is left alone unless it is the only one or `include_last`.

    Parameters: `places` are those of the model's parameters by all their names where a model is there, which decide
    which is the last, and which are tied; else that is for the checkpoint to say. A fused projection is one matrix, not
    its q, k and v. What is made of stored tensors, as by weight norm, is left alone. `skip_embeddings` leaves those
    alone too.
    """
    facts = read_facts(checkpoint.config)
    found = plan(checkpoint.tensors, checkpoint.tied, checkpoint.load, ordered=checkpoint.ordered, facts=facts)

    def place(matrix: Matrix) -> int:
        names = (matrix.tensor, *matrix.tied, *checkpoint.parts_of(matrix.tensor))
        return min(places.get(name, len(places)) for name in names)

    whole = sorted((matrix for matrix in found.matrices if matrix.rows is None), key=place)
    tied = dict(checkpoint.tied)
    first: dict[int, str] = {}
    for matrix in whole:
        if place(matrix) < len(places) and first.setdefault(place(matrix), matrix.tensor) != matrix.tensor:
            tied[matrix.tensor] = first[place(matrix)]
    whole = [matrix for matrix in whole if matrix.tensor not in tied]
    left_alone = {matrix.name: f"left alone: {matrix.made_of}" for matrix in whole if matrix.made_of}
    last = [matrix for matrix in whole if matrix.tensor == whole[-1].tensor]
    if not include_last and len(last) < len(whole):
        guess = "" if places or checkpoint.ordered or found.family else ", as the order of names goes"
        left_alone = {matrix.name: f"left alone: the last matrix{guess}" for matrix in last} | left_alone
    if skip_embeddings:
        left_alone |= {matrix.name: "left alone: an embedding" for matrix in whole if matrix.role == "embedding"}
    kept = [matrix for matrix in whole if matrix.name not in left_alone]
    return Targets(kept, left_alone, tied, dict(found.refused))
