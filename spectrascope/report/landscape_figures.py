"""Figures of losses between checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from .figures import figure_of, plain_label, save
from .rows import Row


def barrier_curves(rows: Sequence[Row], path: Path) -> None:
    """The losses along the line between two checkpoints, a panel each, and where they would lie without a barrier."""
    figure, axes = figure_of(6.0, [2.2] * len(rows))
    for axis, row in zip(axes, rows, strict=True):
        alphas = np.asarray(row["alphas"], dtype=float)
        curve = np.array([np.nan if value is None else value for value in row["curve"]])
        axis.plot(alphas, curve, marker="o", markersize=3, linewidth=1.2)
        axis.plot(alphas[[0, -1]], curve[[0, -1]], color="grey", linestyle="--", linewidth=1.0)
        if row["barrier"] is not None:
            axis.set_title(f"barrier {row['barrier']:.4g}", fontsize=9, loc="right")
        axis.set_ylabel(plain_label(row["metric"]))
    axes[-1].set_xlabel(r"$\alpha$")
    save(figure, path)
