"""Figures are drawn for any store, and show what they should."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from spectrascope.errors import RequestError
from spectrascope.report import figures
from spectrascope.report.training_metrics import read_training_metrics


def rank_row(step: int, matrix: str, value: float | None) -> dict[str, object]:
    return {"step": step, "matrix": matrix, "norm_effective_rank": value}


@pytest.mark.parametrize("steps", [[0], [5], [0, 1], [0, 1, 2, 4, 100_000]])
@pytest.mark.parametrize("count", [1, 200])
def test_heat_maps_of_any_size(tmp_path: Path, steps: list[int], count: int) -> None:
    names = [f"layer.{i}.$weird_{{^$" for i in range(count)]
    rows = [rank_row(step, name, None if step == 1 else 0.5) for step in steps for name in names]
    for log in (False, True):
        figures.rank_heat_map(rows, steps, tmp_path / "x.png", None, log)
    assert (tmp_path / "x.png").stat().st_size > 3000
    assert len(list(tmp_path.iterdir())) == 1


def test_cells_meet_halfway_between_steps() -> None:
    np.testing.assert_allclose(figures._edges([0, 10, 30]), [0, 5, 20, 40])
    np.testing.assert_allclose(figures._edges([7]), [6.5, 7.5])


def test_metrics_share_panels_by_kind(tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    path.write_text(
        "\ufeffstep,train_loss,val_loss,val $\\frac{$ error,lr,note\n0,3,4,1,0.1,hello\n10,1,,0.5,0.1,\nx,1,1,1,1,\n"
    )
    metrics = read_training_metrics(path)
    assert metrics.steps == [0, 10]
    assert metrics.columns["train_loss"] == [3, 1]
    assert math.isnan(metrics.columns["val_loss"][1])
    assert "note" not in metrics.columns
    assert figures._metric_groups(metrics) == [["train_loss", "val_loss"], ["val $\\frac{$ error"], ["lr"]]
    figures.rank_heat_map([rank_row(0, "w", 0.5)], [0], tmp_path / "x.png", metrics)


def test_many_columns_are_cut_to_a_few_panels(tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    path.write_text("step," + ",".join(f"c{i}" for i in range(300)) + "\n0," + ",".join(["1"] * 300) + "\n")
    assert len(figures._metric_groups(read_training_metrics(path))) == figures.MOST_PANELS


@pytest.mark.parametrize("text", ["", "loss\n1\n", "step,loss\n", "step,loss\n1,x\n"])
def test_what_is_no_metrics_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "m.csv").write_text(text)
    with pytest.raises(RequestError, match=r"m\.csv"):
        read_training_metrics(tmp_path / "m.csv")
    with pytest.raises(RequestError, match="cannot be read"):
        read_training_metrics(tmp_path / "absent.csv")


def test_spectra_with_gaps(tmp_path: Path) -> None:
    rows = [
        {"step": step, "matrix": "w", "shape": [3, 2], "singular_values": values}
        for step, values in ((0, [2.0, 1.0]), (5, None), (9, [3.0, 0.0]))
    ]
    figures.spectrum(rows, tmp_path / "x.png")
    figures.spectrum(rows[1:2], tmp_path / "y.png")
    assert (tmp_path / "x.png").stat().st_size > 3000
