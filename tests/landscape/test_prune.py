"""Pruning at the command line: what is kept, what becomes of losses and spectra, and what is written."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import ROOT, assert_plain, mat
from reference import ORACLE
from safetensors.torch import load_file, save_file

from spectrascope import job
from spectrascope.arrays import from_torch
from spectrascope.landscape.components import count_of_top, keep_components, keep_filters
from spectrascope.landscape.edits import matrix_in
from spectrascope.matrices import plan
from spectrascope.tensors import TensorInfo

DIGITS = ROOT / "fixtures" / "digits"
TASK = f"{ROOT / 'fixtures' / 'digits.py'}:conv"
LAST = DIGITS / "conv" / "trunk-0" / "split-0320" / "seed-0" / "last.safetensors"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def rows(found: Any, kind: str) -> list[Any]:
    """The rows of losses, or of matrices that were pruned."""
    return [row for row in found.json["rows"] if kind in row and (kind != "kept" or row["kept"] is not None)]


def perceptron(seed: int = 8) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    layers = [torch.nn.Linear(*pair) for pair in pairwise([12, 15, 15, 15, 5])]
    return {f"model.layers.{i}.weight": layer.weight.detach() for i, layer in enumerate(layers)}


@pytest.mark.parametrize("keep", ["top", "bottom"])
def test_oracle(keep: str, cli: Any) -> None:
    torch.save(perceptron(), "m.pt")
    found = cli("prune", "m.pt", "--svd", "--keep", keep, "-o", "out.safetensors")
    assert_plain(found)
    assert found.code == 0
    pruned = load_file("out.safetensors")
    for name, expected in ORACLE[f"prune/mlp_torchseed8_keep_bottom_{keep == 'bottom'}"].items():
        sigma = np.linalg.svd(pruned[name].double().numpy(), compute_uv=False)
        assert len(sigma) == expected["R"]
        assert int((sigma > 1e-6 * sigma[0]).sum()) == expected["nonzero_svs_after"]
    assert torch.equal(pruned["model.layers.3.weight"], perceptron()["model.layers.3.weight"])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(12, 7), (7, 12), (8, 8)])
def test_top_and_bottom_are_the_matrix(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    matrix = from_torch(mat(np.linspace(4, 1, min(shape)), *shape, dtype=np.float64).to(dtype))
    u, sigma, vt = np.linalg.svd(matrix.astype(np.float64), full_matrices=False)
    short = (u.T if shape[0] < shape[1] else vt).astype(np.float32)
    top = keep_components(matrix, short, 3, "top")
    bottom = keep_components(matrix, short, 3, "bottom")
    assert top.dtype == bottom.dtype == matrix.dtype
    unit = torch.finfo(dtype).eps if dtype is not torch.float64 else 1e-7  # that of the vectors
    np.testing.assert_allclose(top.astype(float), (u[:, :3] * sigma[:3]) @ vt[:3], atol=4 * unit)
    np.testing.assert_allclose(top.astype(float) + bottom.astype(float), matrix.astype(float), atol=4 * unit)
    assert np.array_equal(keep_components(matrix, short, min(shape), "top"), matrix)
    assert np.array_equal(keep_components(matrix, short, 0, "bottom"), matrix)
    assert not keep_components(matrix, short, min(shape), "bottom").any()
    assert not keep_components(matrix, short, 0, "top").any()
    with pytest.raises(ValueError, match="2 singular vectors are given of 3"):
        keep_components(matrix, short[:2], 3, "top")


def test_how_many_components_a_share_is() -> None:
    assert [count_of_top(*one) for one in [(15, 0.5), (12, 0.5), (30, 0.1), (7, 0), (7, 1), (1000, 0.001)]] == [
        *(8, 6, 3, 0, 7, 1)
    ]
    assert count_of_top(7, 1e-12) == 1
    with pytest.raises(ValueError, match="from 0 to 1"):
        count_of_top(7, 1.1)


def test_filters_of_a_depthwise_convolution_by_their_norms() -> None:
    filters = np.array([[1.0, 0], [0, 3], [2, 0]])
    assert np.array_equal(keep_filters(filters, 2, "top"), [[0, 0], [0, 3], [2, 0]])
    assert np.array_equal(keep_filters(filters, 2, "bottom"), [[1, 0], [0, 0], [0, 0]])


@pytest.mark.parametrize(
    "tensors",
    [
        {"fc.weight": (6, 4)},
        {"conv.weight": (6, 4, 3, 3)},
        {"c0.weight": (4, 2, 3, 3), "dw.weight": (4, 1, 3, 3)},
        {"upconv.weight": (4, 6, 2, 2)},
        {"h.0.attn.c_attn.weight": (4, 12), "h.0.attn.c_proj.weight": (4, 4), "h.0.mlp.c_fc.weight": (4, 16)},
        {"layers.0.mlp.experts.gate_up_proj": (3, 4, 8), "layers.0.mlp.experts.down_proj": (3, 4, 4)},
    ],
    ids=lambda tensors: "+".join(tensors),
)
def test_a_matrix_goes_back_to_where_it_came_from(tensors: dict[str, tuple[int, ...]]) -> None:
    random = np.random.default_rng(0)
    arrays = {name: random.standard_normal(shape) for name, shape in tensors.items()}
    infos = {name: TensorInfo(name, shape, "float64") for name, shape in tensors.items()}
    found = [one for one in plan(infos, {}, lambda name, index: arrays[name]).matrices if one.rows is None]
    assert {one.tensor for one in found} == set(tensors)
    back = {name: np.zeros_like(array) for name, array in arrays.items()}
    for matrix in found:
        values = matrix_in(arrays[matrix.tensor], matrix)
        matrix.put(values, back[matrix.tensor])
        assert np.array_equal(matrix_in(back[matrix.tensor], matrix), values)
    assert all(np.array_equal(back[name], arrays[name]) for name in tensors)


def test_what_is_reported_without_a_task(cli: Any) -> None:
    save_file({"a.weight": mat([4.0, 3, 2, 1], 9, 4), "b.weight": mat([1.0], 5, 9)}, "m.safetensors")
    found = cli("prune", "m.safetensors", "--svd", "--fraction", "0.5", "--format", "json")
    assert_plain(found)
    assert (found.code, found.json["command"], found.json["source"]) == (0, "prune", "m.safetensors")
    pruned, last = found.json["rows"]
    assert set(pruned) == {"step", "keep", "fraction", "matrix", "kept", "sparsity", "energy", "score", "reason"}
    assert (pruned["matrix"], pruned["kept"], pruned["sparsity"]) == ("a.weight", 2, 0)
    assert pruned["energy"] == pytest.approx(25 / 30, rel=1e-6)
    assert pruned["score"] == pytest.approx(1, abs=1e-5)
    assert pruned["reason"] == "2 of 4 directions are above the rounding noise; the score is their mean"
    assert (last["matrix"], last["kept"], last["reason"]) == (
        "b.weight",
        None,
        "left alone: the last matrix",
    )
    bottom = cli("prune", "m.safetensors", "--svd", "--keep", "bottom", "--format", "json").json["rows"][0]
    assert bottom["energy"] == pytest.approx(5 / 30, rel=1e-6)
    assert bottom["score"] == pytest.approx(0, abs=1e-5)
    assert (bottom["kept"], bottom["reason"]) == (2, pruned["reason"])
    both = cli("prune", "m.safetensors", "--svd", "--include-last", "--format", "csv").out.splitlines()
    assert both[0].startswith("step,keep,fraction,matrix,kept,sparsity,energy,score,metric")
    assert [line.split(",")[3:5] for line in both[1:]] == [["a.weight", "2"], ["b.weight", "3"]]


def test_the_only_matrix_is_pruned(cli: Any) -> None:
    save_file({"a.weight": mat([4.0, 3, 2, 1], 9, 4)}, "m.safetensors")
    (row,) = cli("prune", "m.safetensors", "--magnitude", "0.25", "--format", "json").json["rows"]
    assert (row["kept"], row["sparsity"]) == (9, 0.75)


def test_masks_from_one_checkpoint_to_another(cli: Any) -> None:
    """The weights kept are the largest, elsewhere the same places are; a random mask has as many in each matrix."""
    kept = cli("prune", LAST, "--magnitude", "0.1", "--masks", "m.safetensors", "-o", "p.safetensors", "-f", "json")
    assert kept.code == 0
    masks, before, after = load_file("m.safetensors"), load_file(LAST), load_file("p.safetensors")
    assert set(masks) == {"0.weight", "3.weight", "6.weight"}
    assert sum(int(mask.sum()) for mask in masks.values()) == round(0.1 * (144 + 4608 + 9216))
    smallest = min(float(before[name][mask].abs().min()) for name, mask in masks.items())
    assert smallest >= max(float(before[name][~mask].abs().max()) for name, mask in masks.items())
    assert set(after) == set(before)
    for name, tensor in before.items():
        assert torch.equal(after[name], tensor * masks[name] if name in masks else tensor)
    other = DIGITS / "conv" / "trunk-0" / "step0000.safetensors"
    for options in (["--apply-mask", "m.safetensors"], ["--random-like", "m.safetensors", "--seed", "1"]):
        found = cli("prune", other, *options, "--masks", "again.safetensors", "--format", "json")
        counts = [row["kept"] for row in rows(found, "kept")]
        assert counts == [row["kept"] for row in rows(kept, "kept")]
        again = load_file("again.safetensors")
        assert all(torch.equal(again[name], masks[name]) for name in masks) == (options[0] == "--apply-mask")


def test_masks_that_do_not_fit_are_named_at_once(cli: Any) -> None:
    ones = {"0.weight": torch.ones(16, 1, 3, 3, dtype=torch.bool), "3.weight": torch.ones(4, dtype=torch.bool)}
    save_file(ones | {"nope": torch.ones(2, dtype=torch.bool)}, "m.safetensors")
    found = cli("prune", LAST, "--apply-mask", "m.safetensors")
    assert (found.code, found.out) == (2, "")
    for words in ("nope is in no matrix", "6.weight has no mask", "the mask of 3.weight is (4,)"):
        assert words in found.err
    assert "0.weight" not in found.err
    save_file({"0.weight": torch.ones(2)}, "floats.safetensors")
    assert (
        "masks are boolean tensors, and 0.weight is there"
        in cli("prune", LAST, "--apply-mask", "floats.safetensors").err
    )


def test_figures_4_4_and_4_12(cli: Any) -> None:
    """Measured: top half 0.045, bottom half 2.89 against 0.025; SVA 0.87, 0.27, 0.13 against 0.26, 0.01, 0.04."""
    found = cli("prune", LAST, "--task", TASK, "--svd", "--both", "--format", "json")
    loss = {row["keep"]: row for row in rows(found, "metric") if row["metric"] == "train/loss"}
    assert loss["top"]["before"] == loss["bottom"]["before"] == pytest.approx(0.0247, abs=0.002)
    assert loss["top"]["after"] - loss["top"]["before"] < 0.1
    assert loss["bottom"]["after"] > 2
    magnitude = cli(
        *("prune", LAST, "--task", TASK, "--magnitude", "0.1", "--masks", "m.safetensors", "--format", "json")
    )
    random = cli("prune", LAST, "--task", TASK, "--random-like", "m.safetensors", "--seed", "1", "--format", "json")
    scores = [[row["score"] for row in rows(one, "kept")] for one in (magnitude, random)]
    assert all(large > 3 * small for large, small in zip(*scores, strict=True))
    (large, small) = (rows(one, "metric")[0]["after"] for one in (magnitude, random))
    assert large < 0.3 < 1 < small
    assert all(row["recalibrated"] for row in rows(random, "metric"))


def test_batch_norm_is_estimated_anew_after_pruning(cli: Any) -> None:
    """Measured: 0.14 with new statistics, 1.5 with those of the full weights."""
    command = ["prune", LAST, "--task", TASK, "--magnitude", "0.1", "--format", "json"]
    anew, stale = (rows(cli(*command, *more), "metric")[0] for more in ([], ["--no-recalibrate"]))
    assert anew["after"] < 0.5 * stale["after"]
    assert (anew["recalibrated"], stale["recalibrated"]) == (True, False)


def test_a_trajectory(cli: Any) -> None:
    trunk = DIGITS / "conv" / "trunk-0"
    found = cli("prune", trunk, "--task", TASK, "--svd", "--both", "--plot", "fig4_4.png", "--format", "jsonl")
    assert_plain(found)
    lines = [json.loads(line) for line in found.out.splitlines()]
    steps = sorted({line["step"] for line in lines})
    assert steps == [0, 10, 20, 40, 80, 160, 320, 600]
    assert len(lines) == len(steps) * 2 * (4 + 4)
    assert Path("fig4_4.png").stat().st_size > 20_000
    assert cli("prune", trunk, "--magnitude", "0.1", "--plot", "sva.png").code == 0
    assert Path("sva.png").stat().st_size > 10_000


def test_a_sweep_from_a_store_decomposes_nothing(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["prune", LAST, "--svd", "--sweep", "0.25:1:0.25", "--task", TASK, "--format", "json"]
    first = cli(*command, "--store", "x.spectra", "--plot", "curve.png")
    assert Path("curve.png").stat().st_size > 20_000
    monkeypatch.setattr(job, "decompose", lambda *arguments: pytest.fail("decomposed again"))
    assert cli(*command, "--store", "x.spectra").json["rows"] == first.json["rows"]
    losses = [row for row in first.json["rows"] if row["metric"] == "train/loss"]
    assert [row["fraction"] for row in losses] == [0.25, 0.5, 0.75, 1]
    assert losses[3]["after"] == losses[3]["before"]
    assert losses[0]["after"] > losses[1]["after"] > losses[3]["after"]
    each = rows(cli(*command[:3], "--each", *command[5:], "--store", "x.spectra"), "metric")
    assert {row["matrix"] for row in each} == {"0.weight", "3.weight", "6.weight"}
    assert all(row["after"] < losses[1]["after"] + 0.02 for row in each if row["metric"] == "train/loss")


def test_what_cannot_be_decomposed_is_left_and_said(cli: Any) -> None:
    broken = mat([1.0, 0.5], 6, 4)
    broken[0, 0] = float("nan")
    save_file({"a.weight": mat([2.0, 1], 6, 4), "b.weight": broken, "c.weight": mat([1.0], 6, 4)}, "m.safetensors")
    found = cli("prune", "m.safetensors", "--svd", "-o", "out.safetensors", "--format", "json")
    assert found.code == 3
    assert found.json["failures"][0]["matrix"] == "b.weight"
    (row,) = [row for row in found.json["rows"] if row["matrix"] == "b.weight"]
    assert row["kept"] is None
    assert row["reason"].startswith("non-finite: 1 NaN")
    assert torch.equal(load_file("out.safetensors")["b.weight"].isnan(), broken.isnan())
    found = cli("prune", "m.safetensors", "--magnitude", "0.5")
    assert (found.code, "m.safetensors: b.weight holds NaN" in found.err) == (1, True)


def test_what_is_written_is_all_of_the_model(cli: Any) -> None:
    """Wrappers are gone, whole numbers are as they were, what is made of parts is left alone, and all can be read."""
    norm = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(4, 6))
    stored = {f"_orig_mod.norm.{name}": value for name, value in norm.state_dict().items()}
    stored |= {"_orig_mod.a.weight": mat([2.0, 1], 6, 4).bfloat16(), "_orig_mod.z.weight": mat([2.0, 1], 6, 4)}
    torch.save({"model": stored | {"_orig_mod.n": torch.tensor(3)}, "optimizer": {"m": torch.ones(2)}}, "m.pt")
    found = cli("prune", "m.pt", "--magnitude", "0.5", "-o", "out.safetensors", "--format", "json")
    assert {row["matrix"]: row["reason"] for row in found.json["rows"] if row["kept"] is None} == {
        "norm.weight": "left alone: weight norm of original1",
        "z.weight": "left alone: the last matrix",
    }
    written = load_file("out.safetensors")
    assert set(written) == {name.removeprefix("_orig_mod.") for name in [*stored, "_orig_mod.n"]}
    assert (written["a.weight"].dtype, int(written["a.weight"].count_nonzero()), int(written["n"])) == (
        *(torch.bfloat16, 12, 3),
    )


def test_tied_weights_are_pruned_alike(cli: Any) -> None:
    shared = mat([3.0, 2, 1], 6, 4)
    torch.save({"embed.weight": shared, "fc.weight": mat([1.0], 4, 4), "lm_head.weight": shared}, "m.pt")
    assert cli("prune", "m.pt", "--magnitude", "0.5", "-o", "out.safetensors").code == 0
    written = load_file("out.safetensors")
    assert torch.equal(written["embed.weight"], written["lm_head.weight"])
    assert int(written["embed.weight"].count_nonzero()) < 24


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "one of --svd, --magnitude, --random-like, --apply-mask says how to prune: none is given"),
        (["--svd", "--magnitude", "0.1"], "--svd and --magnitude are given"),
        (["--magnitude", "0.1", "--both"], "--both is of --svd"),
        (["--magnitude", "1.5"], "from 0 to 1"),
        (["--svd", "--sweep", "0:1:0.1"], "give a --task"),
        (["--svd", "--sweep", "1:0:0.1", "--task", TASK], "fractions between 0 and 1"),
        (["--svd", "--sweep", "nope", "--task", TASK], "FROM:TO:BY"),
        (["--svd", "--masks", "m.safetensors"], "--masks are of weights"),
        (["--svd", "-o", "out.pt"], "the suffix names the format"),
        (["--svd", "--both", "-o", "out.safetensors"], "one checkpoint pruned in one way"),
        (["--svd", "--plot", "x.png"], "this is neither"),
        (["--magnitude", "0.1", "--text", "x"], "belong together"),
        (["--apply-mask", "nope.safetensors"], "no such file"),
    ],
)
def test_wrong_requests(options: list[str], words: str, cli: Any) -> None:
    more = ["--task", TASK] if "--text" in options else []
    found = cli("prune", LAST, *options, *more)
    assert_plain(found)
    assert (found.code, found.out) == (2, "")
    assert words in found.err


def test_perturb(cli: Any) -> None:
    found = cli("perturb", LAST, "--scale", "0.5", "--seed", "3", "-o", "out.safetensors", "--format", "json")
    assert_plain(found)
    *moved, last = found.json["rows"]
    assert [row["matrix"] for row in moved] == ["0.weight", "3.weight", "6.weight"]
    assert all(row["norm_after"] == pytest.approx(row["norm_before"], rel=1e-5) for row in moved)
    assert all(row["cosine"] == pytest.approx(1.25**-0.5, abs=0.04) for row in moved)
    assert (last["matrix"], last["cosine"]) == ("11.weight", None)
    assert last["reason"].startswith("left alone: the last matrix")
    before, after = load_file(LAST), load_file("out.safetensors")
    changed = [name for name in before if not torch.equal(before[name], after[name])]
    assert changed == ["0.weight", "3.weight", "6.weight"]
    assert cli("perturb", LAST, "--scale", "0.5", "--seed", "3", "-o", "out2").code == 0
    assert Path("out2.safetensors").read_bytes() == Path("out.safetensors").read_bytes()
    assert cli("perturb", LAST, "--scale", "0.5", "-o", "x.pt").code == 2
    assert cli("perturb", LAST, "--scale", "0.5").code == 2


def test_a_pruned_file_holds_what_was_evaluated(cli: Any) -> None:
    """The statistics of batch norm too: put into the model as they are, they give the loss that was reported."""
    found = cli("prune", LAST, "--task", TASK, "--magnitude", "0.1", "-o", "p.safetensors", "--format", "json")
    (after,) = [row["after"] for row in rows(found, "metric") if row["metric"] == "train/loss"]
    again = cli("lmc", "p.safetensors", LAST, "--task", TASK, "--no-recalibrate", "--points", "2", "--format", "json")
    assert rows(again, "metric")[0]["curve"][0] == pytest.approx(after, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_directions_that_were_dropped_are_no_directions(dtype: torch.dtype, cli: Any) -> None:
    save_file({"a.weight": mat(np.linspace(4, 1, 20), 30, 20, dtype=np.float64).to(dtype)}, "m.safetensors")
    for keep, score, there in (("top", 1, 5), ("bottom", 0, None)):
        found = cli("prune", "m.safetensors", "--svd", "--fraction", "0.25", "--keep", keep, "--format", "json")
        (row,) = found.json["rows"]
        assert row["score"] == pytest.approx(score, abs=0.03)
        assert (there is None) == (row["reason"] is None)


def test_the_file_itself_is_never_written_over(cli: Any) -> None:
    save_file({"a.weight": mat([2.0, 1], 6, 4), "b.weight": mat([1.0], 6, 6)}, "m.safetensors")
    before = Path("m.safetensors").read_bytes()
    Path("link.safetensors").symlink_to("m.safetensors")
    for command in (
        ["prune", "m.safetensors", "--svd", "-o", "m.safetensors"],
        ["prune", "m.safetensors", "--magnitude", "0.5", "--masks", "link.safetensors"],
        ["prune", "m.safetensors", "--magnitude", "0.5", "-o", "x.safetensors", "--masks", "x.safetensors"],
        ["perturb", "m.safetensors", "--scale", "1", "-o", "link.safetensors"],
    ):
        found = cli(*command)
        assert_plain(found)
        assert (found.code, found.out) == (2, "")
        assert "name another file" in found.err or "cannot both be" in found.err
    assert Path("m.safetensors").read_bytes() == before


def test_codes_are_written_as_they_are(cli: Any) -> None:
    weights = {"a.weight": torch.ones(4, 4).to(torch.float8_e4m3fn), "b.weight": mat([2.0, 1], 6, 4)}
    weights |= {"c.weight": torch.ones(4, 4, dtype=torch.int8), "c.SCB": torch.ones(4), "d.weight": mat([1.0], 6, 6)}
    save_file(weights | {"u": torch.tensor([7], dtype=torch.uint16)}, "m.safetensors")
    for command in (["prune", "m.safetensors", "--magnitude", "0.5"], ["perturb", "m.safetensors", "--scale", "1"]):
        assert cli(*command, "-o", "out.safetensors").code == 0
        written = load_file("out.safetensors")
        assert set(written) == {*weights, "u"}
        for name in ("a.weight", "c.weight", "c.SCB", "d.weight"):
            assert written[name].dtype == weights[name].dtype
            assert torch.equal(written[name].float(), weights[name].float())
        assert not torch.equal(written["b.weight"], weights["b.weight"])
    torch.save({"a.weight": mat([1.0], 4, 4), "s": torch.eye(3).to_sparse()}, "m.pt")
    found = cli("prune", "m.pt", "--svd", "-o", "out.safetensors")
    assert (found.code, "s is stored as sparse_coo, which is not read; save tensor.to_dense()" in found.err) == (
        2,
        True,
    )


def test_the_last_matrix_may_be_made_of_parts(cli: Any) -> None:
    head = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(4, 6))
    stored = {"a.weight": mat([2.0, 1], 6, 4), "b.weight": mat([2.0, 1], 6, 6)}
    torch.save(stored | {f"head.{name}": value for name, value in head.state_dict().items()}, "m.pt")
    found = cli("prune", "m.pt", "--svd", "--format", "json")
    assert {row["matrix"]: row["kept"] for row in found.json["rows"]} == {
        "a.weight": 2,
        "b.weight": 3,
        "head.weight": None,
    }


def test_one_bad_step_is_a_failure_and_the_others_go_on(cli: Any) -> None:
    for step in range(4):
        weights = {"a.weight": mat([2.0, 1], 6, 4, seed=step), "b.weight": mat([1.0], 6, 6)}
        if step == 2:
            weights["a.weight"][0, 0] = float("nan")
        save_file(weights, f"step{step}.safetensors")
    Path("step0.safetensors").write_bytes(Path("step0.safetensors").read_bytes()[:-50])
    found = cli("prune", ".", "--magnitude", "0.5", "--format", "json")
    assert_plain(found)
    assert found.code == 3
    assert {row["step"] for row in found.json["rows"]} == {1, 3}
    assert {(one["step"], one["matrix"]) for one in found.json["failures"]} == {(0, None), (2, "a.weight"), (2, None)}
    assert "a.weight holds NaN, which has no magnitude" in found.err


def test_a_perturbed_stack_moves_matrix_by_matrix(cli: Any) -> None:
    stack = (
        torch.randn(3, 8, 6, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 100, 1])[:, None, None]
    )
    broken = mat([1.0], 6, 6)
    broken[0, 0] = float("nan")
    weights = {"mlp.experts.down_proj": stack, "nan.weight": broken, "zero.weight": torch.zeros(3, 3)}
    torch.save(weights | {"x.weight": mat([1.0], 4, 4)}, "m.pt")
    found = cli("perturb", "m.pt", "--scale", "0.5", "--seed", "3", "-o", "out.safetensors", "--format", "json")
    assert found.code == 3
    by_name = {row["matrix"]: row for row in found.json["rows"]}
    for expert in range(3):
        row = by_name[f"mlp.experts.down_proj[{expert}]"]
        assert row["norm_after"] == pytest.approx(row["norm_before"], rel=1e-5)
        assert row["cosine"] == pytest.approx(1.25**-0.5, abs=0.1)
    assert by_name["nan.weight"]["reason"] == "left alone: it holds NaN or Inf"
    assert by_name["zero.weight"]["reason"].startswith("zero matrix")
    assert torch.equal(load_file("out.safetensors")["nan.weight"].isnan(), broken.isnan())
    assert cli("perturb", "m.pt", "--scale", "inf", "-o", "out.safetensors").code == 2
    torch.save({"half.weight": torch.full((4, 4), 6e4).half(), "x.weight": mat([1.0], 4, 4)}, "h.pt")
    over = cli("perturb", "h.pt", "--scale", "5", "--no-rescale", "-o", "out.safetensors")
    assert (over.code, "half.weight: left alone: the step exceeds the range of float16" in over.err) == (3, True)
    assert load_file("out.safetensors")["half.weight"].isfinite().all()
