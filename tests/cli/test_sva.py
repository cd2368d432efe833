"""`spectrascope sva` as a user sees it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import GROK, mat
from reference import ORACLE
from reference import recipe as weights_of

import spectrascope


def orthogonal(n: int, k: int, seed: int) -> Any:
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((n, k)))[0]


def of(singular_values: Any, u: Any, v: Any) -> torch.Tensor:
    return torch.from_numpy((u * np.asarray(singular_values, float)) @ v.T).float()


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)

    def analyze(*weights: dict[str, torch.Tensor], name: str = "x.spectra", **options: Any) -> Path:
        spectrascope.analyze(iter(enumerate(weights)), name, **options)
        return Path(name)

    return analyze


def by_step(cli: Any, *arguments: object) -> dict[int, Any]:
    result = cli("sva", *arguments, "--format", "json")
    return {row["step"]: row for row in result.json["rows"]}


@pytest.mark.parametrize("recipe", [key for key in ORACLE if key.startswith("recipe_float64")])
def test_the_oracle(store: Any, cli: Any, recipe: str) -> None:
    entry = ORACLE[recipe]

    first, last = weights_of(entry, 0), weights_of(entry, 1)
    rows = cli("sva", store(first, last), "--format", "json").json["rows"]
    checked = 0
    for row in rows:
        expected = entry.get(f"{row['matrix']}_sva")
        if expected is None:
            continue
        if row["step"] == 0:
            checked += 1
            np.testing.assert_allclose(row["diagonal"][:10], expected["diag_first_step_first10"], atol=1e-6)
            assert row["score"] == pytest.approx(expected["score_per_step"][0], abs=1e-6)
        else:
            assert row["score"] == pytest.approx(1, abs=1e-6)
        assert row["reason"] is None
    assert checked >= 3


def test_vectors_that_swap_places(store: Any, cli: Any) -> None:
    u, v = orthogonal(8, 3, 0), orthogonal(6, 3, 1)
    path = store({"w": of([3, 2, 1], u, v)}, {"w": of([3, 2, 1], u[:, [1, 0, 2]], v[:, [1, 0, 2]])})
    rows = by_step(cli, path, "--subspace", "2")
    assert rows[0]["diagonal"][:3] == pytest.approx([0, 0, 1], abs=1e-6)
    assert rows[0]["diagonal"][3:] == [None] * 3, "directions below the numerical rank are no directions"
    assert rows[0]["score"] == pytest.approx(1 / 3, abs=1e-6)
    assert rows[0]["left_overlap"] == pytest.approx(1, abs=1e-6)
    assert rows[0]["right_overlap"] == pytest.approx(1, abs=1e-6)
    assert rows[0]["baseline"] == pytest.approx(2 / np.pi / np.sqrt(48))
    assert (rows[0]["reference"], rows[1]["score"]) == (1, pytest.approx(1, abs=1e-6))
    assert "left_overlap" in cli("sva", path, "--subspace", "2").out


def test_references(store: Any, cli: Any) -> None:
    w = [mat([3.0, 2.0, 1.0], 8, 6, seed=seed) for seed in range(3)]
    path, other = store(*({"w": one} for one in w)), store({"w": w[0]}, {"w": w[1] + 0.01}, name="y.spectra")
    assert by_step(cli, path, "--reference", "first")[0]["score"] == pytest.approx(1, abs=1e-6)
    assert {row["reference"] for row in by_step(cli, path, "-r", "1").values()} == {1}
    for arguments in ([path, other, "--paired"], [path, "--reference", other]):
        rows = by_step(cli, *arguments)
        assert rows[0]["score"] == pytest.approx(1, abs=1e-6)
        assert rows[0]["reason"] == "the same bytes as at the reference: a copy, no finding"
        assert 0.9 < rows[1]["score"] < 1
        assert (rows[2]["reference"], rows[2]["score"]) == (None, None)
        assert rows[2]["reason"] == "not there at the reference"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["x.spectra", "--reference", "9"], "there is no step 9"),
        (["x.spectra", "--reference", "best"], "--reference is last, first, a step or a store"),
        (["x.spectra", "x.spectra"], "two with --paired"),
        (["x.spectra", "--paired"], "two with --paired"),
        (["x.spectra", "x.spectra", "--paired", "--aggregate"], "give one of the two"),
        (["x.spectra", "--matrix", "nope"], "no matrix matches 'nope'"),
        (["x.spectra", "--plot", "x.nope"], "x.nope"),
        (["nope.spectra"], "no such store"),
    ],
)
def test_what_makes_no_sense(store: Any, cli: Any, arguments: list[str], message: str) -> None:
    store({"w": mat([2.0, 1.0], 6, 4)})
    result = cli("sva", *arguments)
    assert result.code == 2
    assert message in result.err
    assert result.out == ""


def test_words_are_no_directories(store: Any, cli: Any) -> None:
    Path("last").mkdir()
    Path("0").mkdir()
    path = store({"w": mat([2.0, 1.0], 6, 4)}, {"w": mat([2.0, 1.0], 6, 4, seed=1)})
    assert {row["reference"] for row in by_step(cli, path).values()} == {1}
    assert {row["reference"] for row in by_step(cli, path, "-r", "0").values()} == {0}


def test_stores_without_a_step_in_common(store: Any, cli: Any, tmp_path: Path) -> None:
    store({"w": mat([2.0, 1.0], 6, 4)})
    spectrascope.analyze(iter([(7, {"w": mat([2.0], 6, 4)})]), tmp_path / "y.spectra")
    result = cli("sva", "x.spectra", "--reference", "y.spectra")
    assert result.code == 2
    assert "have no step in common" in result.err


def test_rows_with_a_reason(store: Any, cli: Any) -> None:
    w, nan = mat([3.0, 2.0, 1.0], 8, 6), torch.full((8, 6), float("nan"))
    path = store(
        {"grown": w, "zero": torch.zeros(8, 6), "nan": nan, "twin": mat([2.0, 2.0, 1.0], 8, 6), "gone": w + 1},
        {"grown": mat([1.0], 9, 6), "zero": w, "nan": w + 3, "twin": mat([3.0, 2.0, 1.0], 8, 6, seed=4), "new": w + 2},
    )
    result = cli("sva", path, "--format", "json", "--steps", "0")
    rows = {row["matrix"]: row for row in result.json["rows"]}
    assert rows["grown"]["reason"] == "its shape at the reference is 9x6"
    assert rows["zero"]["reason"] == "zero matrix: it has no effective rank"
    assert rows["nan"]["reason"].startswith("non-finite")
    assert rows["gone"]["reason"] == "not there at the reference"
    assert [rows[name]["score"] for name in ("grown", "zero", "nan", "gone")] == [None] * 4
    assert rows["twin"]["reason"] == "sigma_1 and sigma_2 are equal to 1e-6: their vectors are not unique"
    assert rows["twin"]["score"] is not None
    assert rows["new"]["reason"] == "not there at this step"
    assert rows["new"]["score"] is None
    assert result.code == 3, "a matrix is not finite"


def test_stores_with_few_vectors_or_none(store: Any, cli: Any) -> None:
    few = store({"w": mat(range(12, 0, -1), 20, 16)}, {"w": mat(range(12, 0, -1), 20, 16, seed=1)}, top_k=4)
    assert "4 singular vectors are kept, and the score asks for 10" in by_step(cli, few)[0]["reason"]
    none = store({"w": mat([2.0], 6, 4)}, name="none.spectra", top_k=0)
    assert by_step(cli, none)[0]["reason"] == "no singular vectors are kept: analyse with a --top-k above 0"


@pytest.fixture(scope="module")
def grok(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("grok") / "grok.spectra"
    spectrascope.analyze(GROK, path)
    return path


def test_the_shipped_run(grok: Path, cli: Any, tmp_path: Path) -> None:
    """Vectors settle: agreement with the end rises from chance to one."""
    rows = cli("sva", grok, "--format", "json").json["rows"]
    for matrix in ("mlp.up.weight", "mlp.down.weight"):
        course = [row["score"] for row in rows if row["matrix"] == matrix]
        assert course[0] < 0.05
        assert course[-2] > 5 * course[0]
        assert course[-1] == pytest.approx(1, abs=1e-5)
    for arguments, name in (([], "scores.png"), (["--matrix", "mlp.up*"], "diagonal.png")):
        assert cli("sva", grok, *arguments, "--plot", tmp_path / name).code == 0
        assert (tmp_path / name).stat().st_size > 5000
    table = cli("sva", grok).out.splitlines()
    assert table[0].startswith("singular vector agreement, 13 steps, 0 to 2880")
    assert len(table) == 2 + len({row["matrix"] for row in rows})
    assert len(cli("sva", grok, "--all").out.splitlines()) == 1 + len(rows)
    csv = cli("sva", grok, "--format", "csv").out.splitlines()
    assert csv[0] == "step,reference,matrix,score,baseline,diagonal,reason"
