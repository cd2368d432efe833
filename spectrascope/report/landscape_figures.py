"""Figures of losses between checkpoints, of branches, and of pruning."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import RequestError
from .figures import depth_colour, draw_heat_map, figure_of, plain_label, save, without_common_path
from .rows import Row

# Of Okabe and Ito: told apart by all readers. Red, blue and green as in Figure 4.4.
FULL, TOP, BOTTOM = "#D55E00", "#0072B2", "#009E73"
MOST_LABELS = 12  # of matrices in one legend


def barrier_curves(rows: Sequence[Row], path: Path) -> None:
    """The losses along the line between two checkpoints, a panel each, and where they would lie without a barrier."""
    figure, axes = figure_of(6.0, [2.2] * len(rows))
    for axis, row in zip(axes, rows, strict=True):
        alphas = np.asarray(row["alphas"], dtype=float)
        curve = _numbers(row["curve"])
        axis.plot(alphas, curve, marker="o", markersize=3, linewidth=1.2)
        axis.plot(alphas[[0, -1]], curve[[0, -1]], color="grey", linestyle="--", linewidth=1.0)
        if row["barrier"] is not None:
            axis.set_title(f"barrier {row['barrier']:.4g}", fontsize=9, loc="right")
        axis.set_ylabel(plain_label(row["metric"]))
    axes[-1].set_xlabel(r"$\alpha$")
    save(figure, path)


def branches_figure(rows: Sequence[Row], path: Path) -> None:
    """Barriers, and agreement of singular vectors, of pairs of branches over their groups (Figures 4.8 and 4.14).

    A panel for each metric with a point for each pair and a line through their means, then the agreement of each matrix
    in colour, then its mean over matrices beside what random directions give.
    """
    groups = list(dict.fromkeys(row["group"] for row in rows))
    places = range(1, len(groups) + 1)
    metrics = list(dict.fromkeys(row["metric"] for row in rows if "metric" in row))
    scores = [row for row in rows if row.get("score") is not None]
    matrices = list(dict.fromkeys(row["matrix"] for row in scores))
    heights = [1.7] * len(metrics) + ([min(1.2 + 0.24 * len(matrices), 12.0), 1.7] if matrices else [])
    figure, axes = figure_of(6.4, heights)
    for axis, metric in zip(axes, metrics, strict=False):
        _draw_points(axis, groups, [row for row in rows if row.get("metric") == metric], "barrier")
        axis.set_ylabel(f"barrier of\n{plain_label(metric)}")
    if matrices:
        table = np.array([[_mean(scores, "score", group, name) for group in groups] for name in matrices])
        label = "SVA, first ten"
        draw_heat_map(figure, axes[-2], table, without_common_path(matrices), places, label)
        _draw_points(axes[-1], groups, scores, "score")
        chance = [_mean(scores, "baseline", group) for group in groups]
        axes[-1].plot(places, chance, color="grey", linestyle="--", linewidth=1.0, label="by chance")
        axes[-1].legend(fontsize=8, frameon=False)
        axes[-1].set_ylabel("SVA, mean")
    axes[-1].set_xticks(places, [plain_label(_short(group)) for group in groups])
    axes[-1].set_xlim(0.5, len(groups) + 0.5)
    axes[-1].set_xlabel("split step" if all(_short(group).isdecimal() for group in groups) else "group of branches")
    save(figure, path)


def pruning_figure(losses: Sequence[Row], matrices: Sequence[Row], path: Path) -> None:
    """Losses before and after pruning, over the steps of a trajectory or the fractions of a sweep (Figure 4.4).

    Without losses, the agreement of matrices before and after, over the steps. Raises RequestError where there is
    neither.
    """
    rows = [row for row in losses if row["after"] is not None]
    if not rows:
        return _agreement_over_steps(matrices, path)
    metrics = list(dict.fromkeys(row["metric"] for row in rows))
    x = "step" if len({row["step"] for row in rows}) > 1 else "fraction"
    figure, axes = figure_of(6.4, [2.4] * len(metrics))
    for axis, metric in zip(axes, metrics, strict=True):
        _draw_pruned(axis, [row for row in rows if row["metric"] == metric], x)
        axis.set_ylabel(plain_label(metric))
    axes[0].legend(fontsize=8, frameon=False)
    axes[-1].set_xlabel("training step" if x == "step" else "share of the components that are the top ones")
    save(figure, path)


def _draw_pruned(axis: Any, rows: list[Row], x: str) -> None:
    places = sorted({row[x] for row in rows})
    before = {row[x]: row["before"] for row in rows}
    axis.plot(places, _numbers([before[place] for place in places]), color=FULL, linewidth=1.4, label="full model")
    lines: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        lines.setdefault((row["keep"], row.get("matrix"), None if x == "fraction" else row["fraction"]), []).append(row)
    matrices = list(dict.fromkeys(row["matrix"] for row in rows if row.get("matrix")))
    for (keep, matrix, fraction), some in lines.items():
        some.sort(key=lambda row: row[x])
        share = "" if fraction is None or keep is None else f" {fraction if keep == 'top' else 1 - fraction:g}"
        label = f"{keep or 'pruned'}{share}"
        colour: Any = BOTTOM if keep == "bottom" else TOP
        if matrix is not None:  # one at a time, by depth
            label = plain_label(matrix) if len(matrices) <= MOST_LABELS else "_"
            colour = depth_colour(matrices.index(matrix), len(matrices))
        xs, ys = [row[x] for row in some], [row["after"] for row in some]
        style = "--" if keep == "bottom" else "-"
        axis.plot(xs, ys, style, color=colour, linewidth=1.2, marker="o", markersize=2.5, label=label)
    values = [value for row in rows for value in (row["before"], row["after"]) if value]
    if values and "error" not in rows[0]["metric"] and min(values) > 0 and max(values) > 100 * min(values):
        axis.set_yscale("log")


def _agreement_over_steps(rows: Sequence[Row], path: Path) -> None:
    scored = [row for row in rows if row["score"] is not None]
    keeps = list(dict.fromkeys(row["keep"] for row in scored))
    steps = sorted({row["step"] for row in scored})
    if not scored:
        raise RequestError("there is no number to draw: no loss, and no matrix that has an agreement")
    names = list(dict.fromkeys(row["matrix"] for row in scored))
    figure, axes = figure_of(8.0, [1.4 + 0.24 * len(names)] * len(keeps))
    for axis, keep in zip(axes, keeps, strict=True):
        table = np.full((len(names), len(steps)), np.nan)
        for row in scored:
            if row["keep"] == keep:
                table[names.index(row["matrix"]), steps.index(row["step"])] = row["score"]
        words = "after pruning" if keep is None else f"after keeping the {keep}"
        draw_heat_map(figure, axis, table, without_common_path(names), steps, f"SVA before and {words}")
    axes[-1].set_xlabel("training step")
    save(figure, path)


def _draw_points(axis: Any, groups: list[str], rows: list[Row], column: str) -> None:
    """A point for each pair, the mean over its rows, and a line through the means of groups."""
    for place, group in enumerate(groups, start=1):
        pairs = dict.fromkeys((row["one"], row["other"]) for row in rows if row["group"] == group)
        for one, other in pairs:
            some = [row for row in rows if (row["group"], row["one"], row["other"]) == (group, one, other)]
            axis.plot([place], [_mean(some, column)], "o", color=TOP, alpha=0.4, markersize=4)
    means = [_mean(rows, column, group) for group in groups]
    axis.plot(range(1, len(groups) + 1), means, color=TOP, linewidth=1.4)
    axis.set_ylim(bottom=min(0.0, np.nanmin([*means, 0.0])))


def _mean(rows: Sequence[Row], column: str, group: str | None = None, matrix: str | None = None) -> float:
    values = [
        row[column]
        for row in rows
        if row[column] is not None and group in (None, row.get("group")) and matrix in (None, row.get("matrix"))
    ]
    return float(np.mean(values)) if values else float("nan")


def _short(group: str) -> str:
    """What differs between groups such as split-0100: the number."""
    number = group.removeprefix("split-")
    return str(int(number)) if number.isdecimal() else number


def _numbers(values: Sequence[float | None]) -> Any:
    return np.array([np.nan if value is None else value for value in values])
