"""Tables for people: of full width on a terminal, plain and never cut in a pipe."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from ..words import counted
from .rows import Row

BARS = "▁▂▃▄▅▆▇█"
ASCII_BARS = "_.-:=+*#"
# The columns of rank rows as a table's narrow heads.
SHORT_NAMES = {
    "spectral_entropy": "entropy",
    "effective_rank": "eff_rank",
    "norm_effective_rank": "norm_eff",
    "stable_rank": "stable",
    "spectral_norm": "sigma_1",
    "frobenius_norm": "||W||_F",
    "nuclear_norm": "nuclear",
    "rank_99": "rank_99",
    "numerical_rank": "num_rank",
}
NARROWEST_NAME = 12
# Some entries of any matrix of 16 bits are zero.
WORTH_A_NOTE = 0.01


class Words(str):
    """The head of a column of words; every other column is of numbers, aligned to the right."""


@dataclass
class Table:
    """Columns of text under their heads."""

    headers: list[str]
    lines: list[list[str]] = field(default_factory=list)
    title: str = ""


def render(table: Table, terminal_width: int | None) -> str:
    """The table as text: names folded to a terminal's width where that is enough, else unbounded; plain for None."""
    if terminal_width is None:
        return _plain_text(table)
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    name = next((i for i, header in enumerate(table.headers) if isinstance(header, Words)), None)
    fits = _width(table, folding=name) <= terminal_width
    view = RichTable(
        box=None,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for index, header in enumerate(table.headers):
        justify: Literal["left", "right"] = "left" if isinstance(header, Words) else "right"
        view.add_column(Text(header), justify=justify, overflow="fold", no_wrap=index != name)
    for line in table.lines:
        view.add_row(*[Text(printable(cell)) for cell in line])
    buffer = io.StringIO()
    console = Console(
        file=buffer,
        force_terminal=True,
        color_system="auto",
        width=terminal_width if fits else 1_000_000,
        highlight=False,
        emoji=False,
        legacy_windows=False,
    )
    if table.title:  # as a title of the table it would fold to the table's width
        console.print(Text(table.title, style="italic"))
    console.print(view)
    return "".join(line.rstrip() + "\n" for line in buffer.getvalue().splitlines())


def _plain_text(table: Table) -> str:
    """Columns side by side and nothing else. Rich would take longer to load than most reports take."""
    cells = [table.headers, *([printable(cell) for cell in line] for line in table.lines)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    is_words = [isinstance(header, Words) for header in table.headers]
    lines = [
        "  ".join(
            cell.ljust(width) if words else cell.rjust(width)
            for cell, width, words in zip(line, widths, is_words, strict=True)
        )
        for line in cells
    ]
    return "".join(f"{line.rstrip()}\n" for line in ([printable(table.title)] if table.title else []) + lines)


def _width(table: Table, folding: int | None) -> int:
    """The columns that a table needs on a terminal when its column `folding` is as narrow as can be."""
    cells = zip(table.headers, *table.lines, strict=True)
    widths = [max(len(printable(cell)) + 1 for cell in column) for column in cells]
    return sum(min(w, NARROWEST_NAME) if i == folding else w for i, w in enumerate(widths))


def rank_summary(rows: Sequence[Row], steps: Sequence[int], terminal_width: int | None = None) -> Table:
    """One line per matrix: where its effective rank starts, is lowest and ends, its norms, and its course."""
    deviation = ["std"] if any("effective_rank_std" in row for row in rows) else []
    table = Table(
        [
            *(Words("matrix"), "shape", "first", "lowest", "at", "last", *deviation),
            *("of", "sigma_1", "||W||_F", Words("course")),
        ],
        title=f"effective rank, {_span(steps)}; bars: norm_effective_rank from 0 to 1",
    )
    by_matrix: dict[str, dict[int, Row]] = {}
    for row in rows:
        by_matrix.setdefault(row["matrix"], {})[row["step"]] = row
    longest = max(map(len, by_matrix), default=0)
    bars = 24 if terminal_width is None else max(8, min(24, terminal_width - longest - 62))
    for matrix, found in by_matrix.items():
        table.lines.append(_summary_line(matrix, found, steps, bars))
    return table


def rank_details(rows: Sequence[Row]) -> Table:
    """One line per step and matrix with every column; of one step alone, the step is the title."""
    steps = {row["step"] for row in rows}
    several = len(steps) > 1
    table = Table([*(["step"] if several else []), Words("matrix"), "shape", *SHORT_NAMES.values(), Words("note")])
    table.title = "" if several else _span(list(steps))
    for row in rows:
        cells = [row["matrix"], shape(row["shape"]), *(number(row[name]) for name in SHORT_NAMES)]
        table.lines.append([*([str(row["step"])] if several else []), *cells, _note(row)])
    return table


def score_summary(
    rows: Sequence[Row],
    column: str,
    steps: Sequence[int],
    title: str,
    extreme: Literal["lowest", "highest"],
    terminal_width: int | None = None,
) -> Table:
    """One line per matrix or pair, whichever is in `column`: its score at first, its extreme, last, and course."""
    deviation = ["std"] if any("score_std" in row for row in rows) else []
    heads = [Words(column), "first", extreme, "at", "last", *deviation, "baseline", Words("course")]
    table = Table(heads, title=f"{title}, {_span(steps)}; bars from 0 to 1")
    by_name: dict[str, dict[int, Row]] = {}
    for row in rows:
        by_name.setdefault(row[column], {})[row["step"]] = row
    bars = 24 if terminal_width is None else max(8, min(24, terminal_width - max(map(len, by_name), default=0) - 45))
    for name, found in by_name.items():
        first, last = found[min(found)], found[max(found)]
        present = [row for row in found.values() if row["score"] is not None]
        furthest = min if extreme == "lowest" else max
        turn: dict[str, Any] = furthest(present, key=lambda row: row["score"]) if present else {}
        course = sparkline([found[step]["score"] if step in found else None for step in steps], can_draw_bars(), bars)
        reason = next((note for row in found.values() if (note := _score_note(row))), None)
        table.lines.append(
            [
                name,
                number(first["score"]),
                number(turn.get("score")),
                str(turn.get("step", "-")),
                number(last["score"]),
                *([number(last["score_std"])] if deviation else []),
                number(next((row["baseline"] for row in present), None)),
                course + (f"  {reason}" if reason else ""),
            ]
        )
    return table


def of_several(table: Table, seeds: int) -> Table:
    """A table of the means over several stores says so."""
    table.title = f"mean of {seeds} stores: {table.title}".rstrip(": ") if seeds > 1 else table.title
    return table


def score_details(rows: Sequence[Row], column: str, numbers: Sequence[str]) -> Table:
    """One line per step and matrix or pair, with the columns of numbers that are named."""
    references = ["reference"] if any("reference" in row for row in rows) else []
    numbers = [
        name for one in numbers for name in (one, f"{one}_std") if name == one or any(name in row for row in rows)
    ]
    table = Table(["step", *references, Words(column), *numbers, Words("note")])
    for row in rows:
        places = ["-" if row[name] is None else str(row[name]) for name in references]
        cells = [number(row[name]) for name in numbers]
        table.lines.append([str(row["step"]), *places, row[column], *cells, _score_note(row)])
    return table


def spectrum_table(rows: Sequence[Row]) -> Table:
    """Some singular values of one matrix, a line per step."""
    table = Table(["step", "sigma_1", "sigma_2", "sigma_10", "median", "sigma_R", "R", Words("reason")])
    if rows:
        table.title = f"singular values of {rows[0]['matrix']} ({shape(rows[0]['shape'])})"
    for row in rows:
        values = row["singular_values"] or []
        picked = [values[i] if i < len(values) else None for i in (0, 1, 9)]
        picked += [float(np.median(values)), values[-1]] if values else [None, None]
        count = min(row["shape"])
        table.lines.append([str(row["step"]), *map(number, picked), str(count), row["reason"] or ""])
    return table


def number(value: float | int | None) -> str:
    """Four significant digits; a dash for what does not exist."""
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.4g}"


def shape(sizes: Sequence[int]) -> str:
    """512x128."""
    return "x".join(map(str, sizes))


def sparkline(values: Sequence[float | None], unicode: bool, width: int) -> str:
    """The course of values over [0, 1] as one character each, thinned to `width`; a space where there is none."""
    bars = BARS if unicode else ASCII_BARS
    count = min(width, len(values))
    chosen = [values[round(i * (len(values) - 1) / max(count - 1, 1))] for i in range(count)]
    return "".join(" " if value is None else bars[min(int(value * len(bars)), len(bars) - 1)] for value in chosen)


def printable(text: str) -> str:
    """Names are data: control characters and lone surrogates are shown as escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def can_draw_bars() -> bool:
    """Whether standard output can encode a sparkline."""
    try:
        BARS.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _summary_line(matrix: str, found: dict[int, Row], steps: Sequence[int], bars: int) -> list[str]:
    first, last = found[min(found)], found[max(found)]
    present = [row for row in found.values() if row["effective_rank"] is not None]
    lowest: dict[str, Any] = min(present, key=lambda row: row["effective_rank"]) if present else {}
    course = [found[step]["norm_effective_rank"] if step in found else None for step in steps]
    broken = next((row["reason"] for row in found.values() if row["reason"]), _note(last))
    return [
        matrix,
        shape(last["shape"]),
        number(first["effective_rank"]),
        number(lowest.get("effective_rank")),
        str(lowest.get("step", "-")),
        number(last["effective_rank"]),
        *([number(last["effective_rank_std"])] if "effective_rank_std" in last else []),
        str(min(last["shape"])),
        number(last["spectral_norm"]),
        number(last["frobenius_norm"]),
        sparkline(course, can_draw_bars(), bars) + (f"  {broken}" if broken else ""),
    ]


def _score_note(row: Row) -> str:
    """Why there is no score or what to know of it, and whether the pair is a guess."""
    return "; ".join(filter(None, ["guessed" if row.get("guessed") else "", row["reason"]]))


def _note(row: Row) -> str:
    """Why there is no number; else how the weight comes about, and how many of its entries are zero."""
    if row["reason"]:
        return str(row["reason"])
    zeros = [f"{row['sparsity']:.1%} zeros"] if (row["sparsity"] or 0) >= WORTH_A_NOTE else []
    return "; ".join(([row["made_of"]] if row.get("made_of") else []) + zeros)


def _span(steps: Sequence[int]) -> str:
    if len(steps) == 1:
        return f"step {steps[0]}"
    return f"{counted(len(steps), 'step')}, {steps[0]} to {steps[-1]}"
