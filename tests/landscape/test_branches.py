"""Branches of common trunks: barriers and shared singular vectors, on the checkpoints that are shipped."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import pytest
import torch
from conftest import ROOT, assert_plain
from safetensors.torch import load_file, save_file

DIGITS = ROOT / "fixtures" / "digits"
RECIPE = ROOT / "fixtures" / "digits.py"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def branch(model: str, split: int, seed: int, trunk: int = 0) -> Path:
    return DIGITS / model / f"trunk-{trunk}" / f"split-{split:04d}" / f"seed-{seed}" / "last.safetensors"


def by_group(found: Any, column: str, metric: str | None = None) -> dict[str, float]:
    """The mean of a column over all rows of a group, of one metric or of all matrices."""
    chosen = [row for row in found.json["rows"] if row.get("metric") == metric and row.get(column) is not None]
    groups = dict.fromkeys(row["group"] for row in chosen)
    return {group: mean(row[column] for row in chosen if row["group"] == group) for group in groups}


@pytest.mark.parametrize("model", ["conv", "mlp"])
def test_figures_4_8_and_4_14(model: str, cli: Any) -> None:
    """The barrier falls and SVA rises with the split step; different trunks keep a barrier and no SVA.

    Measured, train/loss at 0, 20 and 320: conv 0.179, 0.012, 0.000; mlp 0.185, 0.094, 0.003. SVA: conv 0.088, 0.191,
    0.687; mlp 0.145, 0.208, 0.492. Different trunks: 0.97 and 1.26, 1.40 and 1.18; SVA 0.036, 0.045, 0.060 and 0.031.
    """
    task = f"{RECIPE}:{model}"
    found = cli(
        *("lmc", "--branches", DIGITS / model / "trunk-0" / "split-*" / "seed-*" / "last.safetensors"),
        *("--task", task, "--plot", "fig4_8.png", "--format", "json"),
    )
    assert_plain(found)
    barriers, scores = by_group(found, "barrier", "train/loss"), by_group(found, "score")
    assert list(barriers) == list(scores) == ["split-0000", "split-0020", "split-0320"]
    assert all(before > 1.5 * after for before, after in pairwise(barriers.values()))
    assert all(after > 1.3 * before for before, after in pairwise(scores.values()))
    assert barriers["split-0000"] > 0.1
    assert barriers["split-0320"] < 0.01
    assert scores["split-0320"] > 0.4
    assert Path("fig4_8.png").stat().st_size > 20_000
    apart = cli(
        *("lmc", "--branches", DIGITS / model / "trunk-*" / "split-*" / "seed-0" / "last.safetensors"),
        *("--group", r"split-\d+", "--task", task, "--format", "json"),
    )
    assert "alone in a group, and left out" in apart.err
    assert list(by_group(apart, "barrier", "train/loss")) == ["split-0000", "split-0320"]
    assert min(by_group(apart, "barrier", "train/loss").values()) > 0.5
    assert max(by_group(apart, "score").values()) < 0.1


def test_rows_of_branches(cli: Any) -> None:
    command = ["lmc", "--branches", str(DIGITS / "mlp" / "trunk-0" / "split-0*" / "seed-[01]" / "*.safetensors")]
    command += ["--task", f"{RECIPE}:mlp", "--points", "3"]
    rows = cli(*command, "--format", "json").json["rows"]
    assert len(rows) == 3 * (4 + 3)
    losses, agreement = rows[0], rows[4]
    assert set(losses) - set(agreement) == {
        "metric",
        "barrier",
        "max_deviation",
        "alpha",
        "alphas",
        "curve",
        "recalibrated",
    }
    assert set(agreement) - set(losses) == {"matrix", "score", "baseline", "diagonal"}
    assert losses["one"].endswith("split-0000/seed-0/last.safetensors")
    assert losses["other"].endswith("split-0000/seed-1/last.safetensors")
    table = cli(*command)
    assert_plain(table)
    assert table.out.splitlines()[1].split()[:2] == ["split-0000", "1"]
    assert cli(*command, "--format", "csv").out.startswith("group,one,other,matrix,score,baseline,diagonal,metric")


def test_the_line_with_agreement_and_matrix_by_matrix(cli: Any) -> None:
    one, other = branch("mlp", 0, 0), branch("mlp", 0, 1)
    command = ["lmc", one, other, "--task", f"{RECIPE}:mlp", "--points", "5"]
    found = cli(*command, "--sva", "--layerwise", "--format", "json")
    assert_plain(found)
    rows = found.json["rows"]
    plain = cli(*command, "--format", "json").json["rows"]
    assert [row for row in rows if row.get("matrix") is None] == [{"matrix": None, **row} for row in plain]
    layers = [row for row in rows if row.get("matrix") and row.get("metric") == "train/loss"]
    assert [row["matrix"] for row in layers] == ["1.weight", "3.weight", "5.weight"]
    assert len({row["curve"][0] for row in [*layers, plain[0]]}) == 1
    agreement = [row for row in rows if "score" in row]
    assert [row["matrix"] for row in agreement] == ["1.weight", "3.weight", "5.weight"]
    for row in agreement:
        vectors = [np.linalg.svd(load_file(end)[row["matrix"]].double().numpy()) for end in (one, other)]
        u, v = (
            np.abs((a.T @ b).diagonal())
            for a, b in ((vectors[0][0], vectors[1][0]), (vectors[0][2].T, vectors[1][2].T))
        )
        expected = (u[: len(v)] * v[: len(u)])[:10]
        assert row["diagonal"][:10] == pytest.approx(expected, abs=1e-5)
        assert row["score"] == pytest.approx(expected.mean(), abs=1e-5)
    table = cli(*command, "--sva", "--layerwise").out
    assert "singular vector agreement of the ends" in table
    assert "(all)" in table


def test_a_swap_of_the_one_differing_matrix_is_the_whole_line(cli: Any) -> None:
    one = load_file(branch("mlp", 320, 0))
    torch.manual_seed(0)
    save_file(one | {"3.weight": one["3.weight"] + torch.randn(64, 64)}, "b.safetensors")
    command = ["lmc", branch("mlp", 320, 0), "b.safetensors", "--task", f"{RECIPE}:mlp", "--layerwise", "--points", "3"]
    rows = cli(*command, "--format", "json").json["rows"]
    curves = {row.get("matrix"): row["curve"] for row in rows if row["metric"] == "val/loss"}
    assert curves["3.weight"] == curves[None]
    assert len(set(curves["1.weight"])) == len(set(curves["5.weight"])) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--branches", "nothing-*"], "nothing fits"),
        (["--branches", str(DIGITS / "mlp" / "**" / "*.safetensors"), "--group", "("], "no regular expression"),
        (["--branches", str(DIGITS / "mlp" / "**" / "*.safetensors"), "--group", "nope"], "finds nothing in"),
        (["--branches", str(DIGITS / "mlp" / "trunk-1" / "**" / "*.safetensors")], "there is no pair"),
        (["--branches", "x", "--sva"], "takes no --layerwise or --sva"),
        (["--group", "x", "a.pt", "b.pt"], "give those"),
        (["a.pt", "b.pt", "c.pt", "--sva"], "these are more"),
        (["a.pt", "b.pt", "--text", "x.txt"], "belong together"),
        ([], "name another"),
    ],
)
def test_wrong_requests(arguments: list[str], words: str, cli: Any) -> None:
    found = cli("lmc", *arguments, "--task", f"{RECIPE}:mlp")
    assert_plain(found)
    assert (found.code, found.out) == (2, "")
    assert words in found.err


def test_a_hull_is_of_parameters(cli: Any) -> None:
    """Running statistics are no part of distances, and no noise is added to them."""
    ends = [branch("conv", 0, seed) for seed in range(3)]
    found = cli("lmc", *ends, "--task", f"{RECIPE}:conv", "--samples", "3", "--format", "json")
    assert_plain(found)
    weights = [load_file(end) for end in ends]
    names = [name for name in weights[0] if "running" not in name and "num_batches" not in name]
    flat = torch.stack([torch.cat([one[name].flatten().double() for name in names]) for one in weights])
    row = found.json["rows"][0]
    assert np.allclose(row["distances"], torch.cdist(flat, flat), rtol=1e-6, atol=1e-4)
    assert np.allclose(row["singular_values"], torch.linalg.svdvals(flat), rtol=1e-6)
    assert row["singular_values_centred"][2] < 1e-3 < row["singular_values_centred"][1]


def test_a_branch_that_cannot_be_read(cli: Any) -> None:
    for seed in range(3):
        Path(f"split-1/{seed}").mkdir(parents=True)
        save_file(load_file(branch("mlp", 320, seed)), f"split-1/{seed}/m.safetensors")
    Path("split-1/1/m.safetensors").write_bytes(b"not a checkpoint")
    found = cli("lmc", "--branches", "split-*/*/m.safetensors", "--task", f"{RECIPE}:mlp", "--format", "json")
    assert_plain(found)
    assert found.code == 3
    assert [one["path"] for one in found.json["failures"]] == ["split-1/1/m.safetensors"]
    assert {(row["one"], row["other"]) for row in found.json["rows"]} == {
        ("split-1/0/m.safetensors", "split-1/2/m.safetensors")
    }


def test_the_recipe_grows_branches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Branches begin as their trunk is at the split, and differ from each other by the order of the data alone."""
    monkeypatch.syspath_prepend(RECIPE.parent)
    import digits

    monkeypatch.setattr(digits, "SAVED", (0, 2))
    recipe = replace(digits.mlp, steps=4)
    digits.grow(tmp_path, recipe, trunk=0, splits=(0, 2), branches=2)
    ends = [load_file(path) for path in sorted(tmp_path.glob("split-*/seed-*/last.safetensors"))]
    assert len(ends) == 4
    assert sorted(path.name for path in tmp_path.glob("step*")) == [f"step{i:04d}.safetensors" for i in (0, 2, 4)]
    assert not any(torch.equal(one["1.weight"], other["1.weight"]) for one, other in combinations(ends, 2))
    torch.manual_seed(0)
    start = recipe.build_model().state_dict()
    assert all(torch.equal(start[name], value) for name, value in load_file(tmp_path / "step0000.safetensors").items())
