"""Rows as text for other programs. JSON is strict: a number that does not exist is null."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from typing import Any

from .. import __version__
from .rows import Row


def to_json(
    command: str,
    source: str,
    rows: Sequence[Row],
    warnings: Sequence[str],
    failures: Sequence[Row],
    **more: Any,
) -> str:
    """One object: command, version, source, rows, what the command adds, warnings, failures. A row is a line."""
    document = {
        "command": command,
        "version": __version__,
        "source": source,
        "rows": list(rows),
        **more,
        "warnings": list(warnings),
        "failures": list(failures),
    }
    members = [f"  {json.dumps(key)}: {_member(value)}" for key, value in document.items()]
    return "{\n" + ",\n".join(members) + "\n}\n"


def _member(value: Any) -> str:
    """Indented where it is a list of objects; the encoder that can indent is many times slower than the one in C."""
    if not isinstance(value, list) or not value:
        return json.dumps(value, allow_nan=False)
    return "[\n" + ",\n".join(f"    {json.dumps(one, allow_nan=False)}" for one in value) + "\n  ]"


def to_jsonl(rows: Sequence[Row]) -> str:
    """One object a line."""
    return "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows)


def to_csv(rows: Sequence[Row], columns: Sequence[str]) -> str:
    """A header and a line per row; a list is JSON text, None is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([json.dumps(cell) if isinstance(cell, list) else cell for cell in map(row.get, columns)])
    return text.getvalue()
