"""Figures, drawn without a display and written in the format of their suffix."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..architectures.layers import stem
from ..errors import RequestError
from .files import require_writable, write_whole
from .rows import Row
from .tables import printable
from .training_metrics import TrainingMetrics

SUFFIXES = (".png", ".pdf", ".svg", ".jpg", ".jpeg", ".webp", ".eps", ".ps", ".tif", ".tiff")
MOST_LABELS = 120
MOST_PANELS = 6  # of training metrics; further columns are left to other tools
MOST_LINES = 10


def require_plottable(path: Path, option: str = "--plot") -> None:
    """Raises RequestError, before any work, for a figure that could not be written."""
    require_writable(option, path, SUFFIXES)


def require_numbers(rows: Sequence[Row], what: str) -> None:
    """Raises RequestError where no row has a number to draw."""
    if not any(row["score"] is not None for row in rows):
        reasons = list(dict.fromkeys(row["reason"] for row in rows if row["reason"]))
        raise RequestError(f"there is no number to draw of {what}: {reasons[0] if reasons else 'it has no score'}")


def rank_heat_map(
    rows: Sequence[Row],
    steps: Sequence[int],
    path: Path,
    metrics: TrainingMetrics | None = None,
    log: bool = False,
) -> None:
    """norm_effective_rank (Eq. 4.2) in colour: matrices by depth x steps, with training metrics above."""
    matrices = list(dict.fromkeys(row["matrix"] for row in rows))
    table = np.full((len(matrices), len(steps)), np.nan)
    for row in rows:
        if row["norm_effective_rank"] is not None:
            table[matrices.index(row["matrix"]), steps.index(row["step"])] = row["norm_effective_rank"]
    panels = [*_metric_groups(metrics), None] if metrics else [None]
    height = min(max(1.4 + 0.24 * len(matrices), 2.6), 26.0)
    figure, axes = figure_of(8.0, [1.5] * (len(panels) - 1) + [height])
    for axis, group in zip(axes, panels, strict=True):
        if group is not None and metrics is not None:
            _draw_metrics(axis, metrics, group)
    draw_heat_map(figure, axes[-1], table, matrices, steps, "normalised effective rank")
    _finish(figure, axes, steps, path, log)


def score_heat_map(
    rows: Sequence[Row], column: str, steps: Sequence[int], path: Path, label: str, log: bool = False
) -> None:
    """Scores in [0, 1] in colour: what is in `column`, by depth, x steps; grey where there is none.

    What has no score at any step is left to the table.
    """
    require_numbers(rows, label)
    rows = [row for row in rows if row["score"] is not None]
    names = list(dict.fromkeys(row[column] for row in rows))
    table = np.full((len(names), len(steps)), np.nan)
    for row in rows:
        if row["score"] is not None:
            table[names.index(row[column]), steps.index(row["step"])] = row["score"]
    figure, axes = figure_of(8.0, [min(max(1.4 + 0.24 * len(names), 2.6), 26.0)])
    draw_heat_map(figure, axes[0], table, without_common_path(names), steps, label, _top(table))
    _finish(figure, axes, steps, path, log)


def diagonal_heat_map(
    rows: Sequence[Row], steps: Sequence[int], path: Path, title: str, label: str, log: bool = False
) -> None:
    """The diagonals of one matrix or pair in colour: place i, from the largest singular value, x steps."""
    require_numbers(rows, title)
    count = max((len(row["diagonal"]) for row in rows if row["diagonal"]), default=1)
    table = np.full((count, len(steps)), np.nan)
    for row in rows:
        if row["diagonal"]:
            values = [np.nan if value is None else value for value in row["diagonal"]]
            table[: len(values), steps.index(row["step"])] = values
    figure, (axis,) = figure_of(7.0, [4.2])
    image = _draw_cells(axis, table, steps, _top(table))
    axis.set_ylabel("place i (1 is the largest singular value)")
    axis.set_yticks([0.5, *(i - 0.5 for i in range(10, count + 1, 10))], [1, *range(10, count + 1, 10)])
    axis.set_title(plain_label(title) + _over_heads(rows[0]), fontsize=10)
    figure.colorbar(image, ax=axis, label=label)
    _finish(figure, [axis], steps, path, log)


def alignment_matrix(row: Row, path: Path) -> None:
    """The whole matrix A of one pair at one step in colour (Figure B.8)."""
    require_numbers([row], row["pair"])
    table = np.array([[np.nan if value is None else value for value in line] for line in row["matrix"]])
    figure, (axis,) = figure_of(6.4, [min(max(4.6 * table.shape[0] / table.shape[1], 2.0), 12.0)])
    colours = _colour_map().with_extremes(bad="lightgrey")
    image = axis.imshow(
        np.ma.masked_invalid(table), cmap=colours, vmin=0, vmax=_top(table), extent=_from_one(table.shape)
    )
    axis.set_xlabel("place j in the second matrix")
    axis.set_ylabel("place i in the first matrix")
    axis.set_title(f"{plain_label(row['pair'])}\nstep {row['step']}{_over_heads(row)}", fontsize=10)
    figure.colorbar(image, ax=axis, label="alignment A_ij")
    save(figure, path)


def _over_heads(row: Row) -> str:
    """Said of a pair whose numbers are means over heads."""
    return f", mean over {len(row['per_head'])} heads" if row.get("per_head") else ""


def without_common_path(names: list[str]) -> list[str]:
    """Names of matrices or pairs as labels: without `.weight`, and without what all of them begin with."""
    sides = [[stem(side).split(".") for side in name.split("->")] for name in names]
    parts = zip(*[side[:-1] for name in sides for side in name], strict=False)
    common = sum(1 for _ in takewhile(lambda part: len(set(part)) == 1, parts))
    return ["->".join(".".join(side[common:]) for side in name) for name in sides]


def _from_one(shape: tuple[int, ...]) -> tuple[float, float, float, float]:
    """The frame of an image whose places are counted from 1."""
    return 0.5, shape[1] + 0.5, shape[0] + 0.5, 0.5


def spectrum(rows: Sequence[Row], path: Path, log: bool = False) -> None:
    """Every singular value of one matrix over steps, coloured by its rank (Figure 4.1b)."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.collections import LineCollection
    from matplotlib.colors import Normalize

    steps = [row["step"] for row in rows]
    count = max((len(row["singular_values"]) for row in rows if row["singular_values"]), default=0)
    values = np.full((len(rows), max(count, 1)), np.nan)
    for line, row in zip(values, rows, strict=True):
        if row["singular_values"]:
            line[: len(row["singular_values"])] = row["singular_values"]
    figure, (axis,) = figure_of(7.0, [4.2])
    colours = Normalize(1, max(count, 2))
    # The largest are drawn last: they are what the eye looks for.
    order = range(values.shape[1])[::-1]
    lines = [np.column_stack([steps, values[:, i]]) for i in order]
    style: dict[str, Any] = {"linewidths": 0.8} if len(rows) > 1 else {"linewidths": 0}
    axis.add_collection(LineCollection(lines, colors=_colour_map()(colours([i + 1 for i in order])), **style))
    if len(rows) == 1:
        axis.scatter(np.full(values.shape[1], steps[0]), values[0], c=np.arange(1, values.shape[1] + 1), s=8)
    axis.autoscale_view()
    axis.set_ylim(bottom=0)
    if len(steps) > 1:
        axis.set_xlim(steps[0], steps[-1])
    axis.set_ylabel("singular value")
    axis.set_title(f"{plain_label(rows[0]['matrix'])}  ({rows[0]['shape'][0]} x {rows[0]['shape'][1]})", fontsize=10)
    figure.colorbar(ScalarMappable(colours, _colour_map()), ax=axis, label="rank (1 is the largest)")
    _finish(figure, [axis], steps, path, log)


def figure_of(width: float, heights: list[float]) -> tuple[Any, list[Any]]:
    """A figure of panels above each other, of these sizes in inches, with one horizontal axis."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, sum(heights) + 0.4), layout="constrained")
    axes = figure.subplots(len(heights), 1, height_ratios=heights, sharex=True, squeeze=False)
    return figure, list(axes[:, 0])


def _finish(figure: Any, axes: list[Any], steps: Sequence[int], path: Path, log: bool) -> None:
    if log:
        positive = [step for step in steps if step > 0]
        axes[-1].set_xscale("symlog", linthresh=min(positive, default=1))
    if len(steps) == 1:
        axes[-1].set_xticks(list(steps), [str(step) for step in steps])
    axes[-1].set_xlabel("training step")
    save(figure, path)


def save(figure: Any, path: Path) -> None:
    """Write a figure in the format of its suffix, whole or not at all."""
    write_whole(path, lambda temporary: figure.savefig(temporary, dpi=160))


def draw_heat_map(
    figure: Any,
    axis: Any,
    table: NDArray[np.float64],
    matrices: list[str],
    steps: Sequence[int],
    label: str,
    top: float = 1.0,
) -> None:
    """Values from 0 to `top` in colour, a row for each name, x steps."""
    image = _draw_cells(axis, table, steps, top)
    every = -(-len(matrices) // MOST_LABELS)
    shown = range(0, len(matrices), every)
    size = 8 if len(matrices) <= 60 else 6
    axis.set_yticks([i + 0.5 for i in shown], [plain_label(matrices[i]) for i in shown], fontsize=size)
    axis.tick_params(axis="y", length=0)
    figure.colorbar(image, ax=axis, label=label, fraction=0.05, pad=0.02)


def _top(table: NDArray[np.float64]) -> float:
    """The upper end of a scale of values in [0, 1]: 1, or less where all are small, so that they can be told apart."""
    largest = float(np.nanmax(table)) if not np.isnan(table).all() else 1.0
    return 1.0 if largest > 0.5 else max(np.ceil(largest * 10) / 10, 0.1)


def _draw_cells(axis: Any, table: NDArray[np.float64], steps: Sequence[int], top: float = 1.0) -> Any:
    """Values from 0 to `top` as coloured cells, the first row on top."""
    colours = _colour_map().with_extremes(bad="lightgrey")
    image = axis.pcolormesh(
        _edges(steps), np.arange(table.shape[0] + 1), np.ma.masked_invalid(table), cmap=colours, vmin=0, vmax=top
    )
    axis.invert_yaxis()
    return image


def _draw_metrics(axis: Any, metrics: TrainingMetrics, names: list[str]) -> None:
    for name in names[:MOST_LINES]:
        axis.plot(metrics.steps, metrics.columns[name], label=plain_label(name.replace("_", " ")), linewidth=1.2)
    positive = [value for name in names for value in metrics.columns[name] if value > 0]
    if positive and max(positive) > 100 * min(positive) and len(names) and _kind(names[0]) == "loss":
        axis.set_yscale("log")
    axis.set_ylabel(plain_label(_kind(names[0])))
    axis.legend(fontsize=8, frameon=False)


def _metric_groups(metrics: TrainingMetrics) -> list[list[str]]:
    """Columns of one kind share a panel: losses, errors, accuracies; every other has its own."""
    groups: dict[str, list[str]] = {}
    for name in metrics.columns:
        groups.setdefault(_kind(name), []).append(name)
    return list(groups.values())[:MOST_PANELS]


def _kind(name: str) -> str:
    return next((kind for kind in ("loss", "error", "accuracy") if kind in name.lower()), name)


def _edges(steps: Sequence[int]) -> NDArray[np.float64]:
    """Cells that meet halfway between steps."""
    at = np.asarray(steps, dtype=float)
    if at.size == 1:
        return np.array([at[0] - 0.5, at[0] + 0.5])
    middle = (at[1:] + at[:-1]) / 2
    return np.concatenate([[max(2 * at[0] - middle[0], min(at[0], 0))], middle, [2 * at[-1] - middle[-1]]])


def _colour_map() -> Any:
    from matplotlib import colormaps

    return colormaps["viridis"]


def depth_colour(place: int, count: int) -> Any:
    """The colour of one of so many layers, dark at the input; what is too bright for a line is left out."""
    return _colour_map()(0.85 * place / max(count - 1, 1))


def plain_label(name: str) -> str:
    """A name as plain text: matplotlib takes dollars for mathematics."""
    text = printable(name).replace("$", r"\$")
    return text if len(text) <= 90 else f"{text[:43]}...{text[-43:]}"
