"""LSTM, GRU and RNN layers of torch.nn: uni- or bidirectional, any depth, one gate at a time (SPEC section 3)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ..tensors import natural_key
from .facts import Facts
from .family import StoredPlainly
from .layers import Layer, Layers
from .pairs import Blocks, Pair, Side, Slice, make_pair

WEIGHT = re.compile(r"(?P<path>(?:.*\.)?)weight_(?P<kind>ih|hh|hr)_l(?P<depth>\d+)(?P<reverse>_reverse)?$")
# The gates as PyTorch stacks them, and the one that the thesis' figures show.
GATES = {4: "ifgo", 3: "rzn", 1: ""}
DEFAULT = {"ifgo": "g", "rzn": "n"}
KINDS = {"ifgo": "an LSTM", "rzn": "a GRU"}

Reader = tuple[Layer, str, bool]


@dataclass
class _Cell:
    """One direction of one layer. `hr` projects the output of an LSTM that has a `proj_size`."""

    ih: Layer | None = None
    hh: Layer | None = None
    hr: Layer | None = None

    @property
    def hidden(self) -> int:
        """The width of a gate, 0 where nothing tells it."""
        return self.hr.shape[1] if self.hr else self.hh.shape[1] if self.hh else 0

    @property
    def output(self) -> int:
        """How many numbers it writes."""
        return self.hr.shape[0] if self.hr else self.hidden


@dataclass
class _Module:
    """One nn.LSTM, nn.GRU or nn.RNN: its cells by depth and direction, and where its weights are in the model."""

    path: str
    cells: dict[tuple[int, bool], _Cell] = field(default_factory=dict)
    places: list[int] = field(default_factory=list)
    in_order: bool = True

    @property
    def depth(self) -> int:
        return max(depth for depth, _ in self.cells)

    @property
    def directions(self) -> list[bool]:
        return sorted({reverse for _, reverse in self.cells})

    @property
    def width(self) -> int:
        """How many numbers it writes, in both directions."""
        return sum(cell.output for (depth, _), cell in self.cells.items() if depth == self.depth)


class Recurrent(StoredPlainly):
    """Any number of recurrent layers, and a Linear that reads the last."""

    name = "LSTM or GRU"

    def fits(self, layers: Layers) -> bool:
        """Whether there is a weight of a recurrent layer."""
        return any(WEIGHT.match(layer.name) for layer in layers)

    def pairs(self, layers: Layers, facts: Facts, gate: str | None = None) -> list[Pair]:
        """Within a layer, layer to layer, and the last one to what reads it."""
        modules = _modules(layers)
        pairs = []
        for index, module in enumerate(modules):
            following = modules[index + 1] if index + 1 < len(modules) else None
            pairs += _from_embedding(layers, module) + _of_module(layers, module, following, gate)
        return pairs


def _modules(layers: Layers) -> list[_Module]:
    """In the model's order; in that of their names where names are sorted, which then have hh before ih."""
    found: dict[str, _Module] = {}
    for place, layer in enumerate(layers):
        match = WEIGHT.match(layer.name)
        if match:
            module = found.setdefault(match["path"], _Module(match["path"], in_order=match["kind"] == "ih"))
            cell = module.cells.setdefault((int(match["depth"]), bool(match["reverse"])), _Cell())
            setattr(cell, match["kind"], layer)
            module.places.append(place)
    modules = list(found.values())
    return modules if all(one.in_order for one in modules) else sorted(modules, key=lambda one: natural_key(one.path))


def _of_module(layers: Layers, module: _Module, following: _Module | None, gate: str | None) -> list[Pair]:
    pairs = []
    halves = Blocks(1, 2, "direction") if len(module.directions) == 2 else None
    for depth, direction in sorted(module.cells):
        cell = module.cells[depth, direction]
        pairs += _inside(cell, gate)
        after = module.cells.get((depth + 1, direction), _Cell()).ih
        readers: list[Reader] = [(after, "ih", False)] if after else []
        if depth == module.depth:
            readers = _readers(layers, module, following)
        for reader, kind, guessed in readers:
            side = Side(reader.name, "right", blocks=halves, index=int(direction) if halves else None)
            pairs += _outputs(cell, (side, reader), kind, gate, guessed)
    return pairs


def _inside(cell: _Cell, gate: str | None) -> list[Pair]:
    """The input to the recurrence; through the projection where there is one."""
    pairs = []
    if cell.hr:
        for kind, writer in (("ih", cell.ih), ("hh", cell.hh)):
            pairs += _gate(writer, cell, (Side(cell.hr.name, "right"), cell.hr), f"{kind}_hr", gate)
        if cell.hh:
            pairs.append(
                make_pair("hr_hh", (Side(cell.hr.name, "left"), cell.hr), (Side(cell.hh.name, "right"), cell.hh))
            )
    elif cell.hh:
        pairs += _gate(cell.ih, cell, (Side(cell.hh.name, "right"), cell.hh), "ih_hh", gate)
    return pairs


def _outputs(cell: _Cell, reader: tuple[Side, Layer], kind: str, gate: str | None, guessed: bool) -> list[Pair]:
    """What a cell writes to what reads it."""
    if cell.hr:
        return [make_pair(f"hr_{kind}", (Side(cell.hr.name, "left"), cell.hr), reader, guessed)]
    return [
        pair
        for name, writer in (("ih", cell.ih), ("hh", cell.hh))
        for pair in _gate(writer, cell, reader, f"{name}_{kind}", gate, guessed)
    ]


def _gate(
    writer: Layer | None, cell: _Cell, reader: tuple[Side, Layer], kind: str, gate: str | None, guessed: bool = False
) -> list[Pair]:
    """A slice of the rows of U, one gate, with V of what reads it."""
    if writer is None:
        return []
    hidden, rows = cell.hidden, writer.shape[0]
    gates = GATES.get(rows // hidden) if hidden and rows % hidden == 0 else None
    whole = Side(writer.name, "left")
    if gates is None:
        reason = f"its gates cannot be told: there is no weight_hh beside {writer.name}, or none that fits"
        return [Pair(kind, whole, reader[0], guessed, reason)]
    if not gates:  # an nn.RNN
        return [make_pair(kind, (whole, writer), reader, guessed)]
    chosen = gate or DEFAULT[gates]
    if chosen not in gates:
        reason = f"{KINDS[gates]} has no gate {chosen}; it has {', '.join(gates)}"
        return [Pair(kind, whole, reader[0], guessed, reason)]
    start = gates.index(chosen) * hidden
    return [make_pair(kind, (Side(writer.name, "left", Slice(start, start + hidden)), writer), reader, guessed)]


def _readers(layers: Layers, module: _Module, following: _Module | None) -> list[Reader]:
    """What reads the last layer of a module, and whether that is a guess.

    The next Linear; the module that follows where there is none between. Where names are sorted, what fits.
    """
    linears = [
        layer for layer in layers if layer.role in ("linear", "head", "unembedding") and not WEIGHT.match(layer.name)
    ]
    if module.in_order:
        end = min(following.places) if following else len(layers.all)
        between = [layer for layer in layers.all[max(module.places) + 1 : end] if layer in linears]
        if between:
            return [(between[0], "linear", False)]
    if following is not None:
        inputs = [cell.ih for (depth, _), cell in following.cells.items() if depth == 0 and cell.ih]
        return [(layer, "ih", True) for layer in inputs if layer.shape[1] == module.width]
    if module.in_order:
        return []
    fitting = [layer for layer in linears if layer.shape[1] == module.width]
    return [(layer, "linear", len(fitting) > 1) for layer in fitting[:1]]


def _from_embedding(layers: Layers, module: _Module) -> list[Pair]:
    """An embedding right before the first layer (anywhere, where names are sorted) whose width is what that reads."""
    first = min(module.places)
    before = layers.all[max(first - 1, 0) : first] if module.in_order else layers.all
    embeddings = [layer for layer in before if layer.role == "embedding"]
    if len(embeddings) != 1:
        return []
    (embedding,) = embeddings
    readers = [cell.ih for (depth, _), cell in module.cells.items() if depth == 0 and cell.ih]
    return [
        make_pair("embedding_ih", (Side(embedding.name, "right"), embedding), (Side(reader.name, "right"), reader))
        for reader in readers
        if reader.shape[1] == embedding.shape[1]
    ]


FAMILY = Recurrent()
