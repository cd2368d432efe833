"""Pairs that a user lists in a TOML file, for an architecture of their own.

    [[pair]]
    from = "blocks.*.up"            # left singular vectors, unless from_side = "right"
    to = "blocks.*.down"            # right singular vectors, unless to_side = "left"

    [[pair]]
    from = "rnn.weight_ih_l0"
    from_rows = "24:36"             # of each vector, as a slice: one gate of a stack
    to = "rnn.weight_hh_l0"

`.weight` may be left out. A star stands for any text, and in `to` for the same text as in `from`.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, get_args

from ..errors import RequestError
from .layers import Layer, Layers
from .pairs import Pair, Side, Slice, Vectors, make_pair

KEYS = ("from", "to", "from_side", "to_side", "from_rows", "to_rows", "kind")
ROWS = re.compile(r"([0-9]{0,12}):([0-9]{0,12})(?::([0-9]{1,12}))?")


@dataclass(frozen=True)
class Entry:
    """One [[pair]] of the file, as it stands there."""

    one: str
    other: str
    one_side: Vectors
    other_side: Vectors
    one_rows: Slice | None
    other_rows: Slice | None
    kind: str

    def pairs(self, layers: Layers) -> list[Pair]:
        """The pairs that it stands for in a model."""
        pattern = re.compile(re.escape(self.one).replace(r"\*", "(.*)"))
        found: dict[str, Pair] = {}
        for name in layers.stems:
            match = pattern.fullmatch(name) or pattern.fullmatch(f"{name}.weight")
            layer = layers.get(name) if match else None
            if match and layer:
                reader = _filled(self.other, match.groups())
                pair = self._pair(layer, layers.get(reader), reader)
                found.setdefault(pair.name, pair)
        return list(found.values())

    def _pair(self, writer: Layer, reader: Layer | None, name: str) -> Pair:
        notes = [rows.text if rows else "" for rows in (self.one_rows, self.other_rows)]
        one = Side(writer.name, self.one_side, self.one_rows, note=notes[0])
        other = Side(reader.name if reader else name, self.other_side, self.other_rows, note=notes[1])
        if reader is None:
            return Pair(self.kind, one, other, reason=f"there is no matrix {name}")
        return make_pair(self.kind, (one, writer), (other, reader))


def _filled(glob: str, parts: tuple[str, ...]) -> str:
    """A glob with its stars replaced one by one."""
    if "*" not in glob:
        return glob
    return "".join(chain.from_iterable(zip_longest(glob.split("*"), parts, fillvalue="")))


def read_entries(path: Path) -> list[Entry]:
    """The pairs of a file. Raises RequestError, which says where it is wrong."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RequestError(f"{path}: cannot be read ({error.strerror or error})") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RequestError(f"{path}: is not TOML: {error}") from error
    listed = content.get("pair")
    if not isinstance(listed, list) or not listed or set(content) != {"pair"}:
        raise RequestError(f"{path}: holds a list of [[pair]], each with `from` and `to`, and nothing else")
    return [_entry(one, f"{path}: pair {number}") for number, one in enumerate(listed, 1)]


def _entry(plain: Any, where: str) -> Entry:
    if not isinstance(plain, dict) or not all(isinstance(value, str) for value in plain.values()):
        raise RequestError(f"{where}: every value is text")
    if unknown := set(plain) - set(KEYS):
        raise RequestError(f"{where}: {sorted(unknown)[0]!r} is not a key; there are {', '.join(KEYS)}")
    if not plain.get("from") or not plain.get("to"):
        raise RequestError(f"{where}: needs `from` and `to`")
    if plain["to"].count("*") not in (0, plain["from"].count("*")):
        raise RequestError(f"{where}: the stars of `to` stand for what those of `from` do, and there are not as many")
    return Entry(
        one=plain["from"],
        other=plain["to"],
        one_side=_side(plain.get("from_side", "left"), where),
        other_side=_side(plain.get("to_side", "right"), where),
        one_rows=_rows(plain.get("from_rows"), where),
        other_rows=_rows(plain.get("to_rows"), where),
        kind=plain.get("kind", "listed"),
    )


def _side(text: str, where: str) -> Vectors:
    sides: dict[str, Vectors] = {side: side for side in get_args(Vectors)}
    if text not in sides:
        raise RequestError(f"{where}: a side is left or right, not {text!r}")
    return sides[text]


def _rows(text: str | None, where: str) -> Slice | None:
    if text is None:
        return None
    match = ROWS.fullmatch(text)
    start, stop, step = (int(part) if part else None for part in match.groups()) if match else (None, None, 0)
    if step == 0 or (stop is not None and stop <= (start or 0)):
        raise RequestError(f"{where}: rows are a slice that keeps some, such as 24:36 or 4::9, not {text!r}")
    return Slice(start or 0, stop, step or 1)
