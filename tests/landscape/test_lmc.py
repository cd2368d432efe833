"""Losses between checkpoints, at the command line and below it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import assert_plain, mat
from safetensors.torch import load_file, save_file

from spectrascope.landscape.batch_norm import recalibrate
from spectrascope.landscape.interpolation import interpolate
from spectrascope.landscape.task import load_task
from spectrascope.landscape.weights import put

TASK = Path(__file__).parent / "task.py"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def save(name: str, task: str, **weights: torch.Tensor) -> str:
    model = load_task(f"{TASK}:{task}").build_model()
    torch.save(model.state_dict() | {key.replace("__", "."): value for key, value in weights.items()}, name)
    return name


def normed(name: str, weight: list[float]) -> str:
    return save(name, "normed", **{"0__weight": torch.tensor([weight])})


def test_stale_statistics_are_no_barrier(cli: Any) -> None:
    """Case 46: with them estimated anew the midpoint is perfect; ends and files are as they were."""
    one, other = normed("a.pt", [1.0, 0.0]), normed("b.pt", [0.0, 1.0])
    before = Path(one).read_bytes()
    (row,) = cli("lmc", one, other, "--task", f"{TASK}:normed", "--format", "json").json["rows"]
    assert row["curve"][0] == pytest.approx(0.5858, abs=1e-3)
    assert row["curve"][5] < 1e-4
    assert (row["barrier"], row["recalibrated"]) == (0, True)
    assert row["max_deviation"] < 0
    (stale,) = cli("lmc", one, other, "--task", f"{TASK}:normed", "--no-recalibrate", "--format", "json").json["rows"]
    assert stale["curve"][5] == pytest.approx(0.0858, abs=1e-3)
    assert stale["recalibrated"] is False
    assert Path(one).read_bytes() == before
    lacking = cli("lmc", one, other, "--task", f"{TASK}:without_batches")
    assert lacking.code == 1
    assert "add a function calibration_batches()" in lacking.err


def test_statistics_are_a_cumulative_average() -> None:
    task = load_task(f"{TASK}:normed")
    model = task.model("cpu")
    put(model.state_dict() | {"0.weight": torch.tensor([[0.5, 0.5]])}, model)
    count = model[1].num_batches_tracked.clone()
    recalibrate(model, task)
    batches = [model[0](batch) for batch in task.batches()]
    assert model[1].running_var == pytest.approx(float(np.mean([batch.var().item() for batch in batches])), rel=1e-5)
    assert model[1].running_var == pytest.approx(0.5, abs=1e-2)
    assert (model[1].num_batches_tracked, model[1].momentum, model.training) == (count, 0.1, False)
    assert not any(module.training for module in model.modules())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_ends_bit_for_bit_and_whole_numbers_from_the_first(dtype: torch.dtype) -> None:
    """Case 47."""
    base = {
        "bn.num_batches_tracked": torch.tensor(3),
        "mask": torch.tensor([True, False]),
        "pos": torch.arange(4),
        "fc.weight": mat([2.0], 6, 4).to(dtype),
    }
    other = base | {"bn.num_batches_tracked": torch.tensor(8), "fc.weight": mat([4.0], 6, 4).to(dtype)}
    for alpha in np.linspace(0, 1, 11):
        found = interpolate(base, other, float(alpha))
        for name in ("bn.num_batches_tracked", "mask", "pos"):
            assert found[name].dtype == base[name].dtype
            assert torch.equal(found[name], base[name])
    assert torch.equal(interpolate(base, other, 0.0)["fc.weight"], base["fc.weight"])
    assert torch.equal(interpolate(base, other, 1.0)["fc.weight"], other["fc.weight"])
    middle = interpolate(base, other, 0.5)["fc.weight"].double()
    assert torch.allclose(middle, (base["fc.weight"].double() + other["fc.weight"].double()) / 2, atol=1e-7)
    assert interpolate({"w": torch.ones(1).half()}, {"w": torch.ones(1).double()}, 0.3)["w"].dtype == torch.float64


def test_differences_are_named_at_once(cli: Any) -> None:
    """Case 48: before any loss is computed, and nothing is broadcast."""
    one = {"embed.weight": mat([2.0], 10, 4), "fc.weight": mat([2.0], 6, 4), "scale.weight": torch.ones(1, 4)}
    torch.save(one, "a.pt")
    more = {"embed.weight": mat([2.0], 12, 4), "scale.weight": torch.ones(5, 4), "extra.weight": mat([1.0], 3, 3)}
    torch.save(one | more, "b.pt")
    found = cli("lmc", "a.pt", "b.pt", "--task", f"{TASK}:table")
    assert_plain(found)
    assert (found.code, found.out) == (2, "")
    for words in ("embed.weight is 12x4 there and 10x4", "scale.weight is 5x4 there and 1x4", "extra.weight is only"):
        assert words in found.err


def bowls(count: int, size: int = 20_000) -> list[str]:
    """Points at distance 1 from the bottom of the bowl, in right angles to each other."""
    directions = torch.linalg.qr(torch.randn(size, count, generator=torch.Generator().manual_seed(1)).double())[0]
    return [save(f"e{i}.pt", "bowl", weight=directions[:, i].float()) for i in range(count)]


def test_a_model_with_itself(cli: Any) -> None:
    """Exactly 0, although the user's model drops out half of it in training mode."""
    (one,) = bowls(1)
    (row,) = cli("lmc", one, one, "--task", f"{TASK}:bowl", "--format", "json").json["rows"]
    assert (row["barrier"], row["max_deviation"]) == (0, 0)
    assert len(set(row["curve"])) == 1


def test_points_and_table(cli: Any) -> None:
    one, other = bowls(2)
    (row,) = cli("lmc", one, other, "--task", f"{TASK}:bowl", "--points", "5", "--format", "json").json["rows"]
    assert row["alphas"] == [0, 0.25, 0.5, 0.75, 1]
    assert row["curve"] == pytest.approx([1, 0.625, 0.5, 0.625, 1], abs=1e-5)
    assert row["max_deviation"] == pytest.approx(-0.375, abs=1e-5)
    found = cli("lmc", one, other, "--task", f"{TASK}:bowl", "--plot", "barrier.png")
    assert_plain(found)
    assert found.out.splitlines()[1].split()[:3] == ["loss", "1", "1"]
    assert Path("barrier.png").stat().st_size > 5000


def test_hull_of_a_bowl(cli: Any) -> None:
    """Inside it is always better than at the ends, and beside them never."""
    ends = bowls(4)
    command = ["lmc", *ends, "--task", f"{TASK}:bowl", "--samples", "60", "--seed", "1", "--format", "json"]
    found = cli(*command)
    assert_plain(found)
    (row,) = found.json["rows"]
    assert (row["p_conv"], row["p_rand"], row["p_conv_se"], row["p_rand_se"]) == (1, 0, 0, 0)
    distances = np.array(row["distances"])
    assert np.allclose(distances[~np.eye(4, dtype=bool)], 2**0.5, atol=1e-5)
    assert np.allclose(row["singular_values"], 1, atol=1e-5)
    assert np.allclose(row["singular_values_centred"], [1, 1, 1, 0], atol=1e-3)
    assert cli(*command).json["rows"] == [row]
    assert cli("lmc", *ends, "--task", f"{TASK}:bowl", "--samples", "5").out.startswith("metric")


def test_a_loss_that_is_not_finite(cli: Any) -> None:
    weights = torch.zeros(20_000)
    one = save("a.pt", "bowl", weight=weights)
    other = save("b.pt", "bowl", weight=weights + torch.nn.functional.one_hot(torch.tensor(0), 20_000))
    found = cli("lmc", one, other, "--task", f"{TASK}:broken", "--format", "json")
    assert found.code == 3
    loss, steady = found.json["rows"]
    assert (loss["barrier"], loss["reason"]) == (None, "not finite at alpha 0.5")
    assert loss["curve"][5] is None
    assert (steady["barrier"], steady["reason"]) == (0, None)


@pytest.mark.parametrize(
    ("task", "code", "words"),
    [
        ("raising", 1, "evaluate raised ZeroDivisionError: division by zero (task.py, line"),
        ("text", 1, "of which not all are numbers"),
        ("nothing", 1, "build_model gives a int, not a torch.nn.Module"),
        ("lacking", 1, "has no function evaluate; `spectrascope task init` writes a template"),
        ("absent", 2, "has no absent"),
    ],
)
def test_tasks_that_cannot_be_used(cli: Any, task: str, code: int, words: str) -> None:
    (one,) = bowls(1)
    found = cli("lmc", one, one, "--task", f"{TASK}:{task}")
    assert_plain(found)
    assert (found.code, words in found.err) == (code, True), found.err


def test_where_a_task_comes_from(cli: Any) -> None:
    (one,) = bowls(1)
    for task, words in (
        ("nope.py", "no such file; `spectrascope task init` writes a template"),
        ("no.such.module", "neither a file that ends in .py nor a module"),
    ):
        found = cli("lmc", one, one, "--task", task)
        assert (found.code, words in found.err) == (2, True), found.err
    Path("syntax.py").write_text("def build_model(:\n")
    wrong = cli("lmc", one, one, "--task", "syntax.py")
    assert (wrong.code, "SyntaxError" in wrong.err, "line 1" in wrong.err) == (1, True, True)
    assert cli("lmc", one, "--task", f"{TASK}:bowl").code == 2


def test_template(cli: Any) -> None:
    assert cli("task", "init").code == 0
    model = load_task("task.py").build_model()
    torch.save(model.state_dict(), "a.pt")
    found = cli("lmc", "a.pt", "a.pt", "--task", "task.py", "--format", "json")
    assert [row["metric"] for row in found.json["rows"]] == ["val/loss", "val/error"]
    again = cli("task", "init")
    assert (again.code, "is there already" in again.err) == (2, True)
    assert cli("task", "begin").code == 2


def test_calibration_batches_that_are_used_up(cli: Any) -> None:
    """A generator that was made once gives nothing the second time: no losses are taken with statistics of nothing."""
    one, other = normed("a.pt", [1.0, 0.0]), normed("b.pt", [0.0, 1.0])
    for task in ("used_up", "empty"):
        found = cli("lmc", one, other, "--task", f"{TASK}:{task}")
        assert (found.code, found.out) == (1, "")
        assert "calibration_batches gives nothing; it is called for every set of weights" in found.err
    found = cli("lmc", one, other, "--task", f"{TASK}:misfit")
    assert (found.code, found.out) == (1, "")
    assert "the model, on a calibration batch, raised RuntimeError" in found.err


def test_tied_weights_move_and_count_once(cli: Any) -> None:
    """However the file stores them."""
    files = []
    for seed in range(3):
        torch.manual_seed(seed)
        weights = {"a.weight": torch.randn(4, 4), "b.weight": torch.randn(4, 4)}
        files.append(f"t{seed}.safetensors")
        save_file(weights | ({"c.weight": weights["a.weight"].clone()} if seed else {}), files[-1])
    command = ["lmc", *files[:2], "--task", f"{TASK}:tied", "--points", "3", "--layerwise", "--sva", "--format", "json"]
    rows = cli(*command).json["rows"]
    curves = {row["matrix"]: row["curve"] for row in rows if "metric" in row}
    assert all(len(set(curve)) == 3 for curve in curves.values())
    assert [row["matrix"] for row in rows if "score" in row] == ["a.weight", "b.weight"]
    (hull,) = cli("lmc", *files, "--task", f"{TASK}:tied", "--samples", "2", "--format", "json").json["rows"]
    flat = torch.stack(
        [torch.cat([load_file(file)[name].flatten() for name in ("a.weight", "b.weight")]) for file in files]
    )
    assert np.allclose(hull["distances"], torch.cdist(flat, flat), atol=1e-4)
    pruned = [
        cli("prune", file, "--task", f"{TASK}:tied", "--magnitude", "0.5", "-o", f"p{file}", "--format", "json").json
        for file in files
    ]
    kept = [[row["matrix"] for row in one["rows"] if row.get("kept") is not None] for one in pruned]
    assert kept == [["a.weight"]] * 3
    written = load_file(f"p{files[1]}")
    assert torch.equal(written["a.weight"], written["c.weight"])


def test_what_a_task_may_do(cli: Any) -> None:
    one, other = bowls(2)
    found = cli("lmc", one, other, "--task", f"{TASK}:talking", "--points", "2", "--format", "json")
    assert found.json["rows"][0]["metric"] == "loss"
    assert "said by the task" in found.err
    for task, words in (("exiting", "evaluate raised SystemExit: 0"), ("endless", "of which not all are numbers")):
        found = cli("lmc", one, other, "--task", f"{TASK}:{task}")
        assert (found.code, found.out) == (1, "")
        assert words in found.err
    assert cli("lmc", one, other, "--task", f"{TASK}:with_more", "--points", "2").code == 0
    found = cli("lmc", one, other, "--task", f"{TASK}:moody", "--samples", "2", one, "--format", "json")
    assert found.code == 3


def test_a_hull_with_a_checkpoint_that_is_not_finite(cli: Any) -> None:
    ends = [*bowls(2), save("nan.pt", "bowl", weight=torch.full((20_000,), float("nan")))]
    found = cli("lmc", *ends, "--task", f"{TASK}:bowl", "--samples", "3", "--format", "json")
    (row,) = found.json["rows"]
    assert (found.code, row["reason"], row["singular_values"]) == (3, "a checkpoint holds NaN or Inf", [None] * 3)
