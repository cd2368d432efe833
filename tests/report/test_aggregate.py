"""Several stores as their mean and standard deviation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import mat

import spectrascope
from spectrascope.report.aggregate import aggregate


def row(step: int, value: float | None, **more: Any) -> dict[str, Any]:
    return {"step": step, "matrix": "w", "shape": [3, 2], "score": value, "reason": None} | more


def test_means_and_deviations() -> None:
    (found,) = aggregate([[row(0, 1.0)], [row(0, 2.0)], [row(0, 6.0)]], ["score"])
    assert (found["score"], found["score_std"], found["seeds"]) == (3.0, pytest.approx(np.std([1, 2, 6], ddof=1)), 3)
    assert found["reason"] is None
    (alone,) = aggregate([[row(0, 1.0)]], ["score"])
    assert (alone["score"], alone["score_std"], alone["seeds"]) == (1.0, None, 1)


def test_what_some_stores_lack() -> None:
    first, second = aggregate([[row(0, 1.0), row(5, 2.0)], [row(0, None, reason="zero matrix")]], ["score"])
    assert (first["step"], first["score"], first["seeds"], first["reason"]) == (
        0,
        1.0,
        1,
        "in 1 of 2 stores: zero matrix",
    )
    assert second["reason"] == "in 1 of 2 stores: not there in the others"
    (differ,) = aggregate([[row(0, 1.0)], [row(0, 2.0, shape=[4, 2])]], ["score"])
    assert (differ["score"], differ["reason"]) == (None, "its shape is not the same in all stores")
    assert "shape" not in differ or differ["shape"] is None


def test_diagonals_are_averaged_place_by_place() -> None:
    rows = [[row(0, 1.0, diagonal=[1.0, None, 0.5])], [row(0, 1.0, diagonal=[0.0, None])]]
    assert aggregate(rows, ["score"])[0]["diagonal"] == [0.5, None, 0.5]


@pytest.fixture
def seeds(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"seed{seed}.spectra" for seed in range(3)]
    for seed, path in enumerate(paths):
        weights = [{"w": mat([3.0 + seed, 1.0], 6, 4, seed=7 * step + seed)} for step in range(2)]
        spectrascope.analyze(iter(enumerate(weights)), path)
    return paths


def test_rank_over_seeds(seeds: list[Path], cli: Any, tmp_path: Path) -> None:
    rows = cli("rank", *seeds, "--aggregate", "--format", "json").json["rows"]
    assert [one["step"] for one in rows] == [0, 1]
    assert rows[0]["spectral_norm"] == pytest.approx(4.0)
    assert rows[0]["spectral_norm_std"] == pytest.approx(1.0)
    assert rows[0]["seeds"] == 3
    header = cli("rank", *seeds, "--aggregate", "--format", "csv").out.splitlines()[0]
    assert "effective_rank,effective_rank_std" in header
    table = cli("rank", *seeds, "--aggregate", "--plot", tmp_path / "mean.png")
    assert table.out.startswith("mean of 3 stores: effective rank, 2 steps, 0 to 1")
    assert (tmp_path / "mean.png").exists()
    assert cli("rank", seeds[0], "--aggregate", "--format", "json").json["rows"][0]["spectral_norm_std"] is None


def test_agreement_over_seeds(seeds: list[Path], cli: Any) -> None:
    rows = cli("sva", *seeds, "--aggregate", "--format", "json").json["rows"]
    each = [cli("sva", seed, "--format", "json").json["rows"][0]["score"] for seed in seeds]
    assert rows[0]["score"] == pytest.approx(np.mean(each))
    assert rows[0]["score_std"] == pytest.approx(np.std(each, ddof=1))
    assert rows[1]["score"] == pytest.approx(1, abs=1e-6)
    assert len(cli("sva", *seeds, "--aggregate").out.splitlines()) == 3


def test_several_stores_need_the_word(seeds: list[Path], cli: Any) -> None:
    result = cli("rank", *seeds)
    assert result.code == 2
    assert "reported together with --aggregate" in result.err


def test_failures_of_every_store_are_named(seeds: list[Path], cli: Any, tmp_path: Path) -> None:
    broken = tmp_path / "broken.spectra"
    spectrascope.analyze(iter([(0, {"w": torch.full((6, 4), float("nan"))})]), broken)
    result = cli("rank", seeds[0], broken, "--aggregate", "--format", "json")
    assert result.code == 3
    assert result.json["rows"][0]["reason"].startswith("in 1 of 2 stores: non-finite")
