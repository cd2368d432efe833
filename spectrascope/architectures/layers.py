"""The matrices of a model as the rules of its family see them: names and shapes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from math import prod

from ..tensors import natural_key

SOURCE, TARGET = re.compile(r"src|source|enc"), re.compile(r"tgt|trg|target|dec")
NUMBER = re.compile(r"\d+")
NUMBER_AT_END = re.compile(r"(\d+)(\D*)$")


@dataclass(frozen=True)
class Layer:
    """A matrix (out, in). `kernel` is the spatial size of a convolution, () for what is none."""

    name: str
    shape: tuple[int, int]
    role: str
    kernel: tuple[int, ...] = ()
    tied: tuple[str, ...] = ()

    @property
    def width_in(self) -> int:
        """How many channels or numbers it reads."""
        return self.shape[1] // max(prod(self.kernel), 1)


class Layers:
    """The matrices of a model by name, in its order. Names may leave out `.weight`, and may be those of tied copies."""

    def __init__(self, layers: Iterable[Layer]) -> None:
        self.all = list(layers)
        self._by_name = {layer.name: layer for layer in self.all}
        for layer in self.all:
            for alias in layer.tied:
                self._by_name.setdefault(alias, layer)
        self._by_stem: dict[str, Layer] = {}
        for name, layer in self._by_name.items():
            self._by_stem.setdefault(stem(name), layer)
        self._by_last: dict[str, list[str]] = {}
        for name in self._by_stem:
            self._by_last.setdefault(name.rpartition(".")[2], []).append(name)

    def __iter__(self) -> Iterator[Layer]:
        return iter(self.all)

    @property
    def stems(self) -> Iterable[str]:
        """All names without `.weight`."""
        return self._by_stem

    def get(self, name: str) -> Layer | None:
        """The matrix of this name, None where there is none."""
        return self._by_name.get(name) or self._by_stem.get(name)

    def under(self, head: str, tail: str) -> dict[str, Layer]:
        """The matrix `head` + `tail`, under "". A star in `tail` is any number: the matrices by what it stands for."""
        if "*" not in tail:
            layer = self.get(head + tail)
            return {} if layer is None else {"": layer}
        return self._by_star.get(head + tail, {})

    @cached_property
    def _by_star(self) -> dict[str, dict[str, Layer]]:
        """Names with one of their numbers as a star -> that number -> the matrix, in the order of the numbers."""
        found: dict[str, dict[str, Layer]] = {}
        for name in sorted(self._by_stem, key=natural_key):
            for match in NUMBER.finditer(name):
                starred = f"{name[: match.start()]}*{name[match.end() :]}"
                found.setdefault(starred, {})[match[0]] = self._by_stem[name]
        return found

    def heads_of(self, tail: str) -> list[str]:
        """What stands before `tail` in names that end in it, in natural order; "" for a name that is it."""
        names = self._by_last.get(tail.rpartition(".")[2], [])
        found = {name[: -len(tail)] for name in names if name == tail or name.endswith(f".{tail}")}
        return sorted(found, key=natural_key)

    def nearest(self, tail: str, head: str) -> Layer | None:
        """Of the matrices whose names end in `tail`, the first of those whose names begin most like `head`."""
        return next(iter(self.nearest_of(tail, head)), None)

    def nearest_of(self, tail: str, head: str) -> list[Layer]:
        """All of those: more than one where names do not tell them apart.

        The more parts of a name are shared the better; then words for the source and the target decide.
        """
        candidates = self.heads_of(tail)
        most = max((_common(candidate, head) for candidate in candidates), default=0)
        best = [candidate for candidate in candidates if _common(candidate, head) == most]
        side = TARGET if "decoder" in head else SOURCE if "encoder" in head else None
        of_side = [candidate for candidate in best if side and side.search(candidate)] if len(best) > 1 else []
        found = [self.get(candidate + tail) for candidate in of_side or best]
        return [layer for layer in found if layer is not None]


def stem(name: str) -> str:
    """A name without `.weight`: `w.weight[q]` -> `w[q]`."""
    path, bracket, part = name.partition("[")
    return path.removesuffix(".weight") + bracket + part


def without_number(head: str) -> tuple[str, int | None]:
    """What `model.layers.3.` has in common with its neighbours, and its number; None where it has none."""
    match = NUMBER_AT_END.search(head)
    return (head, None) if match is None else (f"{head[: match.start()]}*{match[2]}", int(match[1]))


def _common(one: str, other: str) -> int:
    """How many parts two names share from the start."""
    pairs = zip(one.split(".")[:-1], other.split(".")[:-1], strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
