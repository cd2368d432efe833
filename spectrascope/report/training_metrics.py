"""The user's metrics file: a CSV with a column `step` and columns of numbers."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from pathlib import Path

from ..errors import RequestError


@dataclass(frozen=True)
class TrainingMetrics:
    """`columns` maps a metric's name to its values at `steps`; NaN where a cell is empty."""

    steps: list[float]
    columns: dict[str, list[float]]


def read_training_metrics(path: Path) -> TrainingMetrics:
    """Read a metrics file. Raises RequestError where it is absent or has no column `step` or no number."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise RequestError(
            f"{path}: the metrics cannot be read ({getattr(error, 'strerror', None) or error})"
        ) from error
    if not lines or "step" not in lines[0]:
        raise RequestError(f"{path}: a metrics file is a CSV with a header, a column `step` and a line per step")
    rows = [(step, line) for line in lines if math.isfinite(step := _number(line["step"]))]
    names = [name for name in lines[0] if name and name != "step"]
    columns = {name: [_number(line[name]) for _, line in rows] for name in names}
    columns = {name: values for name, values in columns.items() if any(map(math.isfinite, values))}
    if not columns:
        raise RequestError(f"{path}: no column beside `step` holds numbers")
    return TrainingMetrics([step for step, _ in rows], columns)


def _number(text: str | None) -> float:
    try:
        return float(text or "nan")
    except ValueError:
        return math.nan
