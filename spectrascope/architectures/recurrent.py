"""LSTM and GRU layers of torch.nn: uni- or bidirectional, any depth, one gate at a time (SPEC section 3)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import takewhile

from .facts import Facts
from .family import StoredPlainly
from .layers import Layer, Layers
from .pairs import Blocks, Pair, Side, Slice, make_pair

WEIGHT = re.compile(r"(?P<path>(?:.*\.)?)weight_(?P<kind>ih|hh)_l(?P<depth>\d+)(?P<reverse>_reverse)?$")
# The gates as PyTorch stacks them, and the one that the thesis' figures show.
LSTM, GRU = "ifgo", "rzn"
DEFAULT = {LSTM: "g", GRU: "n"}


@dataclass(frozen=True)
class _Cell:
    """One direction of one layer."""

    ih: Layer | None = None
    hh: Layer | None = None


class Recurrent(StoredPlainly):
    """Any number of recurrent layers, each followed by a Linear that reads it."""

    name = "LSTM or GRU"

    def fits(self, layers: Layers) -> bool:
        """Whether there is a weight of a recurrent layer."""
        return any(WEIGHT.match(layer.name) for layer in layers)

    def pairs(self, layers: Layers, facts: Facts, gate: str | None = None) -> list[Pair]:
        """Within a layer, layer to layer, and the last one to the next Linear."""
        paths = dict.fromkeys(match["path"] for layer in layers if (match := WEIGHT.match(layer.name)))
        return [pair for path in paths for pair in _of_module(layers, path, gate)]


def gates_of(rows: int, hidden: int) -> str | None:
    """The gates of a weight, by how many times its hidden width it has rows; None for anything else."""
    return {4: LSTM, 3: GRU}.get(rows // hidden if rows % hidden == 0 else 0)


def _of_module(layers: Layers, path: str, gate: str | None) -> list[Pair]:
    """The pairs of one nn.LSTM or nn.GRU."""
    cells = _cells(layers, path)
    depths = sorted({depth for depth, _ in cells})
    directions = sorted({reverse for _, reverse in cells})
    pairs = _from_embedding(layers, path, cells)
    for depth in depths:
        for direction in directions:
            cell = cells.get((depth, direction), _Cell())
            if cell.ih and cell.hh:
                pairs += _pair(cell.ih, cell.hh, None, "ih_hh", cell, gate)
            for kind, writer in (("ih", cell.ih), ("hh", cell.hh)):
                for reader, name, guessed in _readers(layers, path, cells, depth, direction):
                    index = int(direction) if len(directions) == 2 else None
                    pairs += _pair(writer, reader, index, f"{kind}_{name}", cell, gate, guessed)
    return pairs


def _cells(layers: Layers, path: str) -> dict[tuple[int, bool], _Cell]:
    found: dict[tuple[int, bool], dict[str, Layer]] = {}
    for layer in layers:
        match = WEIGHT.match(layer.name)
        if match and match["path"] == path:
            found.setdefault((int(match["depth"]), bool(match["reverse"])), {})[match["kind"]] = layer
    return {key: _Cell(**cell) for key, cell in found.items()}


def _readers(
    layers: Layers, path: str, cells: dict[tuple[int, bool], _Cell], depth: int, direction: bool
) -> list[tuple[Layer, str, bool]]:
    """What reads a layer: the next one in the same direction, or a Linear after the last; and whether it is a guess."""
    following = cells.get((depth + 1, direction))
    if following is not None:
        return [(following.ih, "ih", False)] if following.ih else []
    if any(other > depth for other, _ in cells):
        return []
    linears = [layer for layer in layers if layer.role in ("linear", "head", "unembedding")]
    if _in_order(layers, path):
        following_layers = list(layers)[_places(layers, path)[-1] + 1 :]
        before_another = takewhile(lambda layer: layer.role != "recurrent", following_layers)
        return [(layer, "linear", False) for layer in before_another if layer in linears][:1]
    hidden = next((cell.hh.shape[1] for cell in cells.values() if cell.hh), 0)
    width = hidden * len({reverse for _, reverse in cells})
    fitting = [layer for layer in linears if layer.shape[1] == width]
    modules = {match["path"] for layer in layers if (match := WEIGHT.match(layer.name))}
    return [(layer, "linear", len(fitting) + len(modules) > 2) for layer in fitting[:1]]


def _places(layers: Layers, path: str) -> list[int]:
    """Where the weights of a module are among those of the model."""
    return [index for index, layer in enumerate(layers) if layer.name.startswith(f"{path}weight_")]


def _in_order(layers: Layers, path: str) -> bool:
    """Whether names are in the model's order, which has ih before hh, and not sorted, which has hh first."""
    kinds = [match["kind"] for layer in layers if (match := WEIGHT.match(layer.name)) and match["path"] == path]
    return kinds[0] == "ih"


def _pair(
    writer: Layer | None,
    reader: Layer,
    index: int | None,
    kind: str,
    cell: _Cell,
    gate: str | None,
    guessed: bool = False,
) -> list[Pair]:
    """A slice of the rows of U, one gate, with V of what reads it, cut to the columns of one of two directions."""
    if writer is None:
        return []
    columns = None if index is None else Blocks(1, 2, "direction")
    other = Side(reader.name, "right", blocks=columns, index=index)
    hidden = cell.hh.shape[1] if cell.hh else 0
    gates = gates_of(writer.shape[0], hidden) if hidden else None
    if gates is None:
        whole = Side(writer.name, "left")
        return [Pair(kind, whole, other, reason="its gates cannot be told: no weight_hh beside it, of as many rows")]
    chosen = gate or DEFAULT[gates]
    if chosen not in gates:
        reason = f"{'an LSTM' if gates == LSTM else 'a GRU'} has no gate {chosen}; it has {', '.join(gates)}"
        return [Pair(kind, Side(writer.name, "left"), other, reason=reason)]
    place = gates.index(chosen)
    kept = Slice(place * hidden, (place + 1) * hidden)
    return [make_pair(kind, (Side(writer.name, "left", kept), writer), (other, reader), guessed)]


def _from_embedding(layers: Layers, path: str, cells: dict[tuple[int, bool], _Cell]) -> list[Pair]:
    """An embedding right before the first layer, whose width is what that reads."""
    first = _places(layers, path)[0]
    before = list(layers)[max(first - 1, 0) : first] if _in_order(layers, path) else list(layers)
    embeddings = [layer for layer in before if layer.role == "embedding"]
    if len(embeddings) != 1:
        return []
    (embedding,) = embeddings
    readers = [cell.ih for (depth, _), cell in cells.items() if depth == 0 and cell.ih]
    return [
        make_pair("embedding_ih", (Side(embedding.name, "right"), embedding), (Side(reader.name, "right"), reader))
        for reader in readers
        if reader.shape[1] == embedding.shape[1]
    ]


FAMILY = Recurrent()
