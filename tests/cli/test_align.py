"""`align` as a user sees it: the oracle, the cases, and rows with a reason instead of gaps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from conftest import GROK, STORE, assert_plain, mat
from reference import ORACLE, recipe, svd
from safetensors.torch import save_file

RECIPES = [key for key in ORACLE if key.startswith("recipe_float64")]
WRONG_IN_REFERENCE = "_reverse_model.linear"  # it reads the half of the columns that reads forward (SPEC section 3)


def orthogonal(n: int, k: int, seed: int) -> Any:
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((n, k)))[0]


@pytest.fixture
def align(tmp_path: Path, cli: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Analyse state dicts, the steps of a run, and give the rows of `align`."""
    monkeypatch.chdir(tmp_path)

    def run(*state_dicts: dict[str, torch.Tensor], config: Any = None, options: Any = (), analyze: Any = ()) -> Any:
        for step, tensors in enumerate(state_dicts):
            path = Path("run", f"step{step}", "pytorch_model.bin")
            path.parent.mkdir(parents=True)
            torch.save(tensors, path)
            if config is not None:
                (path.parent / "config.json").write_text(json.dumps(config))
        done = cli("analyze", "run", "-o", STORE, "--format", "json", *analyze)
        assert done.code in (0, 3), done.err
        found = cli("align", STORE, "--format", "json", *options)
        assert_plain(found)
        assert found.code == done.code
        return found.json["rows"]

    return run


def pair_of(rows: list[Any], name: str, step: int = 0) -> Any:
    (row,) = [row for row in rows if (row["pair"], row["step"]) == (name, step)]
    return row


def names_of(key: str, names: list[str]) -> list[str]:
    """How a pair of the oracle, A_B_align, may be written here."""
    one, other = next((a, b) for a in names for b in names if key in (f"{a}_{b}_align", f"{a}_{b}_qk_align"))
    if key.endswith("qk_align"):
        return [f"{one}[q,head]->{other}[k,head]"]
    if one.endswith("in_proj_weight"):
        return [f"{one}[v]->{other}"]
    return [f"{one}->{other}", f"{one}->{other}[{'reverse' if 'reverse' in one else 'forward'}]"]


@pytest.mark.parametrize("name", RECIPES)
def test_the_oracle(name: str, align: Any) -> None:
    entry = ORACLE[name]
    heads = ["--heads", "4"] if "tfmr" in name else []
    rows = align(recipe(entry, 0), recipe(entry, 1), analyze=heads)
    assert not any(row["guessed"] for row in rows)
    params = [param[0] for param in entry["_params_[name,seed_step0,shape]"]]
    keys = [key for key in entry if key.endswith("_align") and WRONG_IN_REFERENCE not in key]
    by_name = {(row["pair"].replace("model.", ""), row["step"]): row for row in rows}
    for key in keys:
        expected = entry[key]
        written = [one.replace("model.", "") for one in names_of(key, params)]
        for step in (0, 1):
            (row,) = [by_name[one, step] for one in written if (one, step) in by_name]
            assert row["score"] == pytest.approx(score_of(expected, step, key), abs=1e-6), key
            if step == 1:
                np.testing.assert_allclose(row["diagonal"][:10], diagonal_of(expected), atol=1e-6)
    # Beside them there is nothing but what the reference omits or gets wrong.
    others = {"lstm_bi": 2 + 2, "lstm_uni": 1, "tfmr": 1}
    assert len(rows) == 2 * (len(keys) + next((n for word, n in others.items() if word in name), 0))


def score_of(expected: Any, step: int, key: str) -> float:
    scores = np.array(expected["score_per_step(inter_layer_alignment_score)"][step])
    if scores.ndim == 2:
        return float(scores[1, 1])  # the centre of a 3x3 window
    if scores.ndim == 1:
        return float(scores.mean() if key.endswith("qk_align") else scores[2])  # over heads; the gate g
    return float(scores)


def diagonal_of(expected: Any) -> Any:
    if "per_slice_diag_last_step_first10" in expected:
        slices = np.array(expected["per_slice_diag_last_step_first10"])
        return slices[2] if "gate_slice2_score_last" in expected else slices.mean(axis=0)
    return expected.get("centre_diag_last_step_first10", expected.get("diag_last_step_first10"))


def test_values_to_output_per_head_of_the_oracle(align: Any, cli: Any) -> None:
    entry, expected = (
        ORACLE["recipe_float64/tfmr_d128_h4_ff512_vocab12"],
        ORACLE["derived_thesis/vo_per_head_step0_tfmr"],
    )
    rows = align(recipe(entry, 0), analyze=["--heads", "4"])
    layer = "transformer_encoder.layers.0.self_attn"
    (row,) = [row for row in rows if row["kind"] == "v_o"]
    assert row["score"] == pytest.approx(expected["score_mean_over_heads"], abs=1e-6)
    diagonals = np.array(expected["per_head_diag10"])
    np.testing.assert_allclose(row["per_head"], diagonals.mean(axis=1), atol=1e-6)
    np.testing.assert_allclose(row["diagonal"][:10], diagonals.mean(axis=0), atol=1e-6)
    for head in range(4):
        name = f"*{layer}.in_proj_weight[v,{head}]->*{layer}.out_proj[{head}]".replace("*", "model.")
        one = cli("align", STORE, "--pair", name, "--format", "json").json["rows"]
        np.testing.assert_allclose(one[0]["diagonal"][:10], diagonals[head], atol=1e-6)
        assert one[0]["per_head"] is None


def cut(matrix: Any, gate: int, hidden: int) -> Any:
    return matrix[gate * hidden : (gate + 1) * hidden]


@pytest.mark.parametrize("step", [0, 1])
def test_the_reverse_direction_is_read_by_the_second_half(step: int, align: Any) -> None:
    """The reference reads the first half of the Linear for both, and leaves out the last ih to hh (SPEC section 3)."""
    weights = recipe(ORACLE["recipe_float64/lstm_bi_in5_hid12_out14"], step)
    rows = align(weights)
    for end, half in (("", slice(0, 12)), ("_reverse", slice(12, 24))):
        word = "reverse" if end else "forward"
        into = svd(weights["model.linear.weight"][:, half])[2]
        for kind in ("ih", "hh"):
            u = cut(svd(weights[f"model.lstm.weight_{kind}_l3{end}"])[0], 2, 12)
            expected = np.abs((u[:, :12] * into).sum(axis=0))
            row = pair_of(rows, f"model.lstm.weight_{kind}_l3{end}->model.linear.weight[{word}]")
            np.testing.assert_allclose(row["diagonal"], expected, atol=1e-6)
        u = cut(svd(weights[f"model.lstm.weight_ih_l3{end}"])[0], 2, 12)[:, :12]
        expected = np.abs((u * svd(weights[f"model.lstm.weight_hh_l3{end}"])[2]).sum(axis=0))
        row = pair_of(rows, f"model.lstm.weight_ih_l3{end}->model.lstm.weight_hh_l3{end}")
        np.testing.assert_allclose(row["diagonal"], expected, atol=1e-6)


def test_gates(align: Any, cli: Any) -> None:
    torch.manual_seed(0)
    model = torch.nn.ModuleDict(
        {"lstm": torch.nn.LSTM(6, 5, 2), "gru": torch.nn.GRU(6, 5), "out": torch.nn.Linear(5, 4)}
    )
    rows = align(model.state_dict())
    assert not any(row["guessed"] or row["reason"] for row in rows)
    for module, gates, default in (("lstm", "ifgo", "g"), ("gru", "rzn", "n")):
        u = svd(model[module].weight_ih_l0.detach())[0]
        v = svd(model[module].weight_hh_l0.detach())[2]
        name = f"{module}.weight_ih_l0->{module}.weight_hh_l0"
        for gate in gates:
            expected = np.abs((cut(u, gates.index(gate), 5)[:, :5] * v[:, :5]).sum(axis=0))
            shown = cli("align", STORE, "--lstm-gate", gate, "--format", "json").json["rows"]
            np.testing.assert_allclose(pair_of(shown, name)["diagonal"], expected, atol=1e-6)
            if gate == default:
                np.testing.assert_allclose(pair_of(rows, name)["diagonal"], expected, atol=1e-6)
        share = 1 / len(gates)
        assert pair_of(rows, name)["baseline"] == pytest.approx(np.sqrt(share * 2 / (np.pi * 5)))
    for gate in ("x", "if", ""):
        assert cli("align", STORE, "--lstm-gate", gate).code == 2
    rows = cli("align", STORE, "--lstm-gate", "r", "--format", "json").json["rows"]
    reasons = {row["reason"] for row in rows if row["pair"].startswith("lstm")}
    assert reasons == {"an LSTM has no gate r; it has i, f, g, o"}


def test_case_53_gpt2_stores_its_weights_input_first(case: Path, cli: Any) -> None:
    random = np.random.default_rng(0)

    def q(n: int, k: int) -> Any:
        return np.linalg.qr(random.standard_normal((n, k)))[0]

    u = q(6, 3)
    w1, w2 = (u * [3, 2, 1]) @ q(6, 3).T, (q(6, 3) * [3, 2, 1]) @ u.T
    (case / "gpt2").mkdir()
    (case / "linear").mkdir()

    def transposed(array: Any) -> torch.Tensor:
        return torch.tensor(array.T.copy(), dtype=torch.float32)

    gpt2 = {"h.0.mlp.c_fc.weight": transposed(w1), "h.0.mlp.c_proj.weight": transposed(w2)}
    gpt2 |= {"h.0.mlp.c_fc.bias": torch.zeros(6), "h.0.mlp.c_proj.bias": torch.zeros(6)}
    save_file(gpt2, case / "gpt2" / "model.safetensors")
    (case / "gpt2" / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    linear = {"l0.weight": torch.tensor(w1, dtype=torch.float32), "l1.weight": torch.tensor(w2, dtype=torch.float32)}
    save_file(linear, case / "linear" / "model.safetensors")
    for name in ("gpt2", "linear"):
        cli("analyze", case / name, "-o", f"{name}.spectra", "--quiet")
        (row,) = cli("align", f"{name}.spectra", "--format", "json").json["rows"]
        np.testing.assert_allclose(row["diagonal"][:3], [1, 1, 1], atol=1e-6)
        assert row["score"] == pytest.approx(1, abs=1e-6)
        assert row["diagonal"][3:] == [None] * 3  # past the rank there is nothing to align


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("conv1d", [True, False])
def test_bias_or_shape_tell_which_axis_is_the_output(conv1d: bool, with_bias: bool, align: Any) -> None:
    """Without config.json: GPT-2's c_attn is (d, 3 d), nanoGPT's (3 d, d)."""
    shapes = {"attn.c_attn": (24, 8), "attn.c_proj": (8, 8), "mlp.c_fc": (32, 8), "mlp.c_proj": (8, 32)}
    weights = {name: mat([3.0, 2.0, 1.0], *shape, seed=i) for i, (name, shape) in enumerate(shapes.items())}
    stored = {f"h.0.{name}.weight": (w.T.contiguous() if conv1d else w) for name, w in weights.items()}
    if with_bias:
        stored |= {f"h.0.{name}.bias": torch.zeros(shape[0]) for name, shape in shapes.items()}
    rows = align(stored, analyze=["--heads", "2"])
    u, v = svd(weights["mlp.c_fc"])[0], svd(weights["mlp.c_proj"])[2]
    expected = np.abs((u[:, :3] * v[:, :3]).sum(axis=0))
    row = pair_of(rows, "h.0.mlp.c_fc.weight->h.0.mlp.c_proj.weight")
    np.testing.assert_allclose(row["diagonal"][:3], expected, atol=1e-6)
    assert not any(row["guessed"] for row in rows)


def test_case_54_fused_projections(case: Path, cli: Any) -> None:
    heads, size, d = 2, 4, 8
    q, k, v = mat([4.0, 2.0], 8, 8, seed=1), mat([3.0], 8, 8, seed=2), mat([1.0] * 8, 8, 8, seed=3)
    by_head = [part.view(heads, size, d) for part in (q, k, v)]
    name = "gpt_neox.layers.0.attention.query_key_value.weight"
    save_file({name: torch.cat(by_head, 1).reshape(3 * d, d)}, case / "model.safetensors")
    config = {"model_type": "gpt_neox", "num_attention_heads": 2, "hidden_size": 8}
    (case / "config.json").write_text(json.dumps(config))
    (case / "gpt2").mkdir()
    fused = {"h.0.attn.c_attn.weight": torch.cat([q, k, v]).T.contiguous(), "h.0.attn.c_attn.bias": torch.zeros(24)}
    save_file(fused, case / "gpt2" / "model.safetensors")
    (case / "gpt2" / "config.json").write_text(json.dumps({"model_type": "gpt2", "n_head": 2, "n_embd": 8}))
    for path, matrix in ((case / "model.safetensors", name), (case / "gpt2", "h.0.attn.c_attn.weight")):
        cli("analyze", path, "-o", f"{path.stem}.spectra", "--quiet")
        for part, values in (("q", [4, 2]), ("k", [3]), ("v", [1] * 8)):
            found = cli("spectrum", f"{path.stem}.spectra", f"{matrix}[{part}]", "--format", "json").json["rows"]
            np.testing.assert_allclose(found[0]["singular_values"], values + [0] * (8 - len(values)), atol=1e-6)
        rows = cli("align", f"{path.stem}.spectra", "--format", "json").json["rows"]
        (row,) = [row for row in rows if row["kind"] == "q_k"]
        expected = [
            np.abs((svd(q[h * 4 : h * 4 + 4])[0][:, 0] * svd(k[h * 4 : h * 4 + 4])[0][:, 0]).sum()) for h in range(2)
        ]
        np.testing.assert_allclose(row["per_head"], expected, atol=1e-6)
    (case / "config.json").unlink()
    cli("analyze", case / "model.safetensors", "-o", "no-config.spectra", "--quiet")
    assert cli("rank", "no-config.spectra", "--format", "json").json["rows"][0]["shape"] == [24, 8]
    assert len(cli("rank", "no-config.spectra", "--format", "json").json["rows"]) == 1


def test_case_57_depthwise_filters_are_in_no_pair(align: Any) -> None:
    dw = torch.zeros(4, 1, 3, 3)
    dw[0], dw[1], dw[2] = 1 / 3, 2 / 3, 1.0
    pointwise = mat([2.0, 1.0], 8, 4).view(8, 4, 1, 1)
    tensors = {"c0.weight": pointwise.transpose(0, 1).contiguous(), "dw.weight": dw, "pw.weight": pointwise}
    rows = align(tensors | {"full.weight": mat([3.0, 1.0], 8, 36).view(8, 4, 3, 3)})
    assert rows
    assert not any("dw.weight" in row["pair"] for row in rows)
    assert all(row["guessed"] for row in rows)


def test_case_4_pairs_cross_the_borders_of_shards(case: Path, cli: Any) -> None:
    names = [f"model.layers.{i}.mlp.up.weight" for i in range(12)]
    shards = {"model-00001-of-00002.safetensors": names[0::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, members in shards.items():
        save_file({name: mat([1.0 + int(name.split(".")[2])], 5, 4) for name in members}, case / file)
    index = {"weight_map": {name: file for file, members in shards.items() for name in members}}
    (case / "model.safetensors.index.json").write_text(json.dumps(index))
    cli("analyze", case, "-o", STORE, "--quiet")
    rows = cli("align", STORE, "--format", "json").json["rows"]
    assert [row["pair"] for row in rows] == [f"{names[i]}->{names[i + 1]}" for i in range(11)]
    assert all("different widths: 5 for" in row["reason"] and row["score"] is None for row in rows)


def mlp(seed: int = 0, sizes: Any = (6, 8, 8, 5)) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        f"layers.{i}.weight": torch.randn(sizes[i + 1], sizes[i], generator=generator) for i in range(len(sizes) - 1)
    }


def test_a_row_with_a_reason_and_never_a_gap(align: Any) -> None:
    broken = mlp()
    broken["layers.1.weight"] = torch.zeros(8, 8)
    non_finite = mlp()
    non_finite["layers.2.weight"][0, 0] = float("nan")
    shorter = {name: weight for name, weight in mlp().items() if name != "layers.2.weight"}
    wider = mlp(sizes=(6, 9, 8, 5)) | {"layers.1.weight": torch.randn(8, 8)}
    rows = align(mlp(), broken, non_finite, shorter, wider)
    first, second = "layers.0.weight->layers.1.weight", "layers.1.weight->layers.2.weight"
    assert {(row["step"], row["pair"]) for row in rows} == {
        (step, name) for step in range(5) for name in (first, second)
    }
    assert all((row["score"] is None) == bool(row["reason"]) for row in rows)
    assert "layers.1.weight: zero matrix" in pair_of(rows, first, 1)["reason"]
    assert "layers.1.weight: zero matrix" in pair_of(rows, second, 1)["reason"]
    assert pair_of(rows, first, 2)["score"] is not None
    assert pair_of(rows, second, 2)["reason"] == "layers.2.weight: non-finite: 1 NaN of 40 entries"
    assert pair_of(rows, second, 3)["reason"] == "layers.2.weight is not there at this step"
    assert "of different widths: 9 for layers.0.weight, 8 for layers.1.weight" in pair_of(rows, first, 4)["reason"]


def test_equal_singular_values_are_said(align: Any) -> None:
    weights = {"layers.0.weight": mat([2.0, 2.0, 1.0], 6, 6), "layers.1.weight": mat([3.0, 2.0, 1.0], 6, 6, seed=1)}
    (row,) = align(weights)
    assert row["score"] is not None
    assert row["reason"] == "sigma_1 and sigma_2 of layers.0.weight are equal to 1e-6: their vectors are not unique"


def test_a_masked_matrix_counts_the_directions_that_are_left(align: Any) -> None:
    weights = mlp()
    weights["layers.1.weight"][:, 3:] = 0
    row = pair_of(align(weights), "layers.0.weight->layers.1.weight")
    assert [value is None for value in row["diagonal"]] == [False] * 3 + [True] * 3
    assert row["score"] == pytest.approx(np.mean(row["diagonal"][:3]))


def test_few_vectors(align: Any, cli: Any) -> None:
    rows = align(mlp(), analyze=["--top-k", "2"])
    assert all(len(row["diagonal"]) == 2 and "--top-k" in row["reason"] for row in rows)
    cli("analyze", "run", "-o", "none.spectra", "--top-k", "0", "--quiet")
    rows = cli("align", "none.spectra", "--format", "json").json["rows"]
    assert all(row["score"] is None and "--top-k above 0" in row["reason"] for row in rows)


def test_a_head_of_zeros(align: Any) -> None:
    names = ("q_proj", "k_proj", "v_proj", "o_proj")
    weights = {f"layers.0.self_attn.{name}.weight": torch.randn(16, 16) for name in names}
    weights["layers.0.self_attn.q_proj.weight"][4:8] = 0
    weights |= {f"layers.0.mlp.{name}_proj.weight": torch.randn(16, 16) for name in ("gate", "up", "down")}
    (row,) = [row for row in align(weights, analyze=["--heads", "4"]) if row["kind"] == "q_k"]
    assert [value is None for value in row["per_head"]] == [False, True, False, False]
    assert row["score"] == pytest.approx(np.mean([value for value in row["per_head"] if value is not None]))
    assert row["reason"] == "without head 1, a zero matrix in layers.0.self_attn.q_proj.weight"


PAIRS_FILE = """
[[pair]]
from = "blocks.*.up"
to = "blocks.*.down"
kind = "inside"

[[pair]]
from = "rnn"
from_rows = "6:12"
to = "blocks.0.up.weight"

[[pair]]
from = "table"
from_side = "right"
to = "blocks.0.up"
"""


def test_pairs_of_a_file(align: Any, cli: Any) -> None:
    torch.manual_seed(0)
    weights = {f"blocks.{i}.{name}.weight": torch.randn(6, 6) for i in range(11) for name in ("up", "down")}
    weights |= {"rnn.weight": torch.randn(18, 6), "table.weight": torch.randn(30, 6)}
    Path("pairs.toml").write_text(PAIRS_FILE)
    rows = align(weights, options=["--pairs", "pairs.toml"])
    expected = [f"blocks.{i}.up.weight->blocks.{i}.down.weight" for i in range(11)]
    assert [row["pair"] for row in rows] == [
        *expected,
        "rnn.weight[6:12]->blocks.0.up.weight",
        "table.weight->blocks.0.up.weight",
    ]
    v = svd(weights["blocks.0.up.weight"])[2]
    rnn, table = svd(weights["rnn.weight"])[0][6:12], svd(weights["table.weight"])[2]
    for name, u in (("rnn.weight[6:12]", rnn), ("table.weight", table)):
        diagonal = pair_of(rows, f"{name}->blocks.0.up.weight")["diagonal"]
        np.testing.assert_allclose(diagonal, np.abs((u * v).sum(axis=0)), atol=1e-6)
    assert not any(row["guessed"] or row["reason"] for row in rows)
    some = cli("align", STORE, "--pairs", "pairs.toml", "--pair", "inside", "--format", "json").json["rows"]
    assert len(some) == 11


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("pairs = 3", "holds a list of [[pair]]"),
        ("[[pair]]\nfrom = 3\nto = 'b'", "every value is text"),
        ("[[pair]]\nfrom = 'a'", "needs `from` and `to`"),
        ("[[pair]]\nfrom = 'a*'\nto = 'b**'", "there are not as many"),
        ("[[pair]]\nfrom = 'layers.0'\nto = 'layers.1'\nfrom_side = 'up'", "a side is left or right, not 'up'"),
        ("[[pair]]\nfrom = 'layers.0'\nto = 'layers.1'\nto_rows = '3'", "rows are a slice"),
        ("[[pair]]\nfrom = 'layers.0'\nto = 'layers.1'\nto_rows = '5:2'", "rows are a slice"),
        ("[[pair]]\nfrom = 'layers.0'\nto = 'layers.1'\nwhat = '3'", "'what' is not a key"),
        ("[[pair]]\nfrom = 'nope'\nto = 'layers.1'", "no matrix is 'nope'"),
        ("[[pair", "is not TOML"),
    ],
)
def test_a_file_that_is_no_list_of_pairs(text: str, said: str, align: Any, cli: Any) -> None:
    align(mlp())
    Path("pairs.toml").write_text(text)
    found = cli("align", STORE, "--pairs", "pairs.toml")
    assert found.code == 2
    assert said in found.err
    assert "pairs.toml" in found.err or "--pairs" in found.err
    assert found.out == ""


def test_a_listed_pair_whose_other_side_is_missing(align: Any) -> None:
    Path("pairs.toml").write_text("[[pair]]\nfrom = 'layers.*'\nto = 'other.*'")
    rows = align(mlp(), options=["--pairs", "pairs.toml"])
    assert [row["reason"] for row in rows] == [f"there is no matrix other.{i}" for i in range(3)]


def test_pairs_by_name_kind_and_head(align: Any, cli: Any) -> None:
    names = ("q_proj", "k_proj", "v_proj", "o_proj")
    weights = {f"layers.0.self_attn.{name}.weight": torch.randn(16, 16) for name in names}
    weights["layers.0.self_attn.k_proj.weight"] = torch.randn(8, 16)
    weights["layers.0.self_attn.v_proj.weight"] = torch.randn(8, 16)
    weights |= {f"layers.0.mlp.{name}_proj.weight": torch.randn(16, 16) for name in ("gate", "up", "down")}
    align(weights, analyze=["--heads", "4"])

    def asked(glob: str) -> Any:
        return cli("align", STORE, "--pair", glob, "--format", "json")

    assert len(asked("mlp").json["rows"]) == 2
    assert len(asked("*.mlp.up_proj->*").json["rows"]) == 1
    assert len(asked("*").json["rows"]) == len(cli("align", STORE, "--format", "json").json["rows"])
    (whole,) = asked("q_k").json["rows"]
    attention = "layers.0.self_attn"
    for head in range(4):  # two heads to a group of keys
        (one,) = asked(f"{attention}.q_proj[{head}]->{attention}.k_proj[{head // 2}]").json["rows"]
        assert one["score"] == pytest.approx(whole["per_head"][head])
    missing = asked("q_proj->k_proj")
    assert missing.code == 2
    assert "no pair is 'q_proj->k_proj'" in missing.err
    assert "q_k" in missing.err


def test_the_whole_matrix(align: Any, cli: Any) -> None:
    weights = mlp()
    align(weights)
    name = "layers.0->layers.1"
    (row,) = cli("align", STORE, "--pair", name, "--matrix", "--format", "json").json["rows"]
    expected = np.abs(svd(weights["layers.0.weight"])[0].T @ svd(weights["layers.1.weight"])[2])
    np.testing.assert_allclose(row["matrix"], expected, atol=1e-6)
    np.testing.assert_allclose(row["diagonal"], np.diag(expected), atol=1e-6)
    found = cli("align", STORE, "--pair", name, "--step", "0", "--matrix", "--plot", "full.png")
    assert found.code == 0
    assert Path("full.png").stat().st_size > 1000
    several = cli("align", STORE, "--matrix", "--plot", "full.png")
    assert several.code == 2
    assert "add --pair and --step" in several.err
    assert cli("align", STORE, "--matrix").code == 2


def test_figures_and_seeds(align: Any, cli: Any) -> None:
    align(mlp(), mlp(1))
    for seed in (1, 2):
        save_file(mlp(seed), f"step0-seed{seed}.safetensors")
        cli(
            "analyze",
            f"step0-seed{seed}.safetensors",
            "-o",
            f"seed{seed}.spectra",
            "--quiet",
            "--step-regex",
            r"step(\d)",
        )
    for options in (["--plot", "one.png", "--pair", "layers.0->*"], ["--plot-scores", "s.png"], ["--plot", "all.png"]):
        done = cli("align", STORE, *options)
        assert done.code == 0, done.err
        assert Path(next(option for option in options if option.endswith("png"))).stat().st_size > 1000
    rows = cli("align", "seed1.spectra", "seed2.spectra", "--aggregate", "--format", "json").json["rows"]
    each = [cli("align", f"seed{seed}.spectra", "--format", "json").json["rows"] for seed in (1, 2)]
    for row, one, other in zip(rows, *each, strict=True):
        assert (row["pair"], row["seeds"], row["baseline"]) == (one["pair"], 2, one["baseline"])
        assert row["score"] == pytest.approx((one["score"] + other["score"]) / 2)
        assert row["score_std"] == pytest.approx(abs(one["score"] - other["score"]) / 2**0.5)
    assert cli("align", "seed1.spectra", "seed2.spectra").code == 2


def test_grokking_aligns_the_embedding_with_attention(cli: Any, tmp_path: Path) -> None:
    """Thesis 4.4, Figure 4.2(d): at the end of training, of the shipped run with seed 0."""
    cli("analyze", GROK, "-o", tmp_path / STORE, "--heads", "4", "--quiet")
    rows = cli("align", tmp_path / STORE, "--format", "json").json["rows"]
    assert not any(row["guessed"] or row["reason"] for row in rows)
    for part, score in (("query", 0.1033), ("key", 0.1214), ("value", 0.5302)):
        row = pair_of(rows, f"embed.weight->attn.{part}.weight", 2880)
        assert row["score"] == pytest.approx(score, abs=1e-3)
        assert row["baseline"] == pytest.approx(0.0705, abs=1e-4)
        assert row["score"] > 1.4 * row["baseline"]
        first = pair_of(rows, f"embed.weight->attn.{part}.weight", 0)
        assert first["score"] == pytest.approx(first["baseline"], rel=0.4)


@pytest.mark.parametrize("seed", range(5))
def test_permuted_and_negated_hidden_units_change_nothing(seed: int, align: Any, cli: Any) -> None:
    """The same function computed by other weights: alignment is the same to what float32 vectors hold."""
    generator = torch.Generator().manual_seed(seed)
    weights = mlp(seed, sizes=(7, 12, 9, 5))
    order = torch.randperm(12, generator=generator)
    signs = (torch.randint(0, 2, (12,), generator=generator) * 2 - 1).float()
    moved = dict(weights)
    moved["layers.0.weight"] = (weights["layers.0.weight"] * signs[:, None])[order]
    moved["layers.1.weight"] = (weights["layers.1.weight"] * signs)[:, order]
    rows = align(weights, moved)
    for name in ("layers.0.weight->layers.1.weight", "layers.1.weight->layers.2.weight"):
        before, after = pair_of(rows, name, 0), pair_of(rows, name, 1)
        np.testing.assert_allclose(after["diagonal"], before["diagonal"], atol=2e-6)
        assert after["score"] == pytest.approx(before["score"], abs=1e-6)
    agreement = cli("sva", STORE, "--format", "json").json["rows"]
    last = {row["matrix"]: row["score"] for row in agreement if row["step"] == 1}
    assert last == pytest.approx(dict.fromkeys(weights, 1.0), abs=1e-6)


def attention(seed: int = 0) -> dict[str, torch.Tensor]:
    """One layer of Llama's names: four heads of queries, two of keys and values."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {"q_proj": (16, 16), "k_proj": (8, 16), "v_proj": (8, 16), "o_proj": (16, 16)}
    weights = {f"layers.0.self_attn.{name}.weight": torch.randn(*s, generator=generator) for name, s in shapes.items()}
    return weights | {
        f"layers.0.mlp.{name}_proj.weight": torch.randn(16, 16, generator=generator) for name in ("gate", "up", "down")
    }


def test_heads_given_later_add_blocks_and_nothing_is_lost(
    align: Any, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = align(attention())
    assert {row["kind"]: bool(row["reason"]) for row in rows}["q_k"]
    decomposed: list[tuple[int, ...]] = []
    from spectrascope import job

    original = job.decompose_blocks
    monkeypatch.setattr(job, "decompose", lambda *_: pytest.fail("decomposed again"))
    monkeypatch.setattr(job, "decompose_blocks", lambda *a: decomposed.append(tuple(a[0].shape)) or original(*a))
    assert cli("analyze", "run", "-o", STORE, "--heads", "4", "--quiet").code == 0
    assert sorted(decomposed) == [(2, 4, 16), (2, 4, 16), (4, 4, 16), (4, 16, 4)]
    with_heads = cli("align", STORE, "--format", "json").json["rows"]
    assert not any(row["reason"] for row in with_heads)
    decomposed.clear()
    for options in ([], ["--heads", "4"]):  # neither forgets them
        assert cli("analyze", "run", "-o", STORE, "--quiet", *options).code == 0
        assert cli("align", STORE, "--format", "json").json["rows"] == with_heads
    assert decomposed == []
    assert cli("analyze", "run", "-o", STORE, "--heads", "2", "--quiet").code == 0
    (row,) = [row for row in cli("align", STORE, "--format", "json").json["rows"] if row["kind"] == "q_k"]
    assert len(row["per_head"]) == 2


def test_directions_are_no_heads(align: Any, cli: Any) -> None:
    torch.manual_seed(0)
    model = torch.nn.ModuleDict({"rnn": torch.nn.LSTM(6, 5, bidirectional=True), "out": torch.nn.Linear(10, 4)})
    align(model.state_dict())
    found = cli("rank", STORE, "--heads-table")
    assert found.code == 2
    assert "the store has no heads" in found.err


def test_heads_that_divide_nothing_are_said(align: Any, cli: Any) -> None:
    align(attention())
    found = cli("analyze", "run", "-o", STORE, "--heads", "5")
    assert found.code == 0
    assert "--heads 5 divides no attention layer; `spectrascope show --pairs` says why" in found.err
    assert "--heads" not in cli("analyze", "run", "-o", STORE, "--heads", "4").err


def test_heads_table(align: Any, cli: Any) -> None:
    weights = attention()
    align(weights, analyze=["--heads", "4"])
    rows = cli("rank", STORE, "--heads-table", "--format", "json").json["rows"]
    names = [row["matrix"] for row in rows]
    expected = {"q": 4, "k": 2, "v": 2, "o": 4}
    assert len(names) == sum(expected.values())
    for part, count in expected.items():
        for head in range(count):
            name = f"layers.0.self_attn.{part}_proj.weight"
            whole = weights[name].double().numpy()
            block = whole[:, 4 * head : 4 * head + 4] if part == "o" else whole[4 * head : 4 * head + 4]
            (row,) = [row for row in rows if row["matrix"] == f"{name}[{head}]"]
            sigma = svd(block)[1]
            assert row["spectral_norm"] == pytest.approx(sigma[0], rel=1e-10)
            assert row["stable_rank"] == pytest.approx((sigma**2).sum() / sigma[0] ** 2, rel=1e-9)
            assert row["shape"] == list(block.shape)
    some = cli("rank", STORE, "--heads-table", "--matrix", "*q_proj*", "--format", "json").json["rows"]
    assert len(some) == 4
    assert not any("[0]" in row["matrix"] for row in cli("rank", STORE, "--format", "json").json["rows"])
    align_less = cli("analyze", "run", "-o", "plain.spectra", "--quiet")
    assert align_less.code == 0
    found = cli("rank", "plain.spectra", "--heads-table")
    assert found.code == 2
    assert "the store has no heads: analyse with --heads N" in found.err


def test_a_store_of_the_first_version_opens(cli: Any) -> None:
    store = Path(__file__).parent.parent / "data" / "version1.spectra"
    found = cli("align", store, "--format", "json")
    assert (found.code, found.json["rows"]) == (0, [])
    assert "no pair of matrices follows from the names" in found.err


def test_what_is_left_out_makes_no_new_neighbours(align: Any, cli: Any) -> None:
    rows = align(mlp(sizes=(6, 8, 8, 8, 5)), analyze=["--skip", "layers.1.weight"])
    assert {row["pair"]: row["reason"] for row in rows} == {
        "layers.0.weight->layers.1.weight": "layers.1.weight: not in the store: left out by --match or --skip",
        "layers.1.weight->layers.2.weight": "layers.1.weight: not in the store: left out by --match or --skip",
        "layers.2.weight->layers.3.weight": None,
    }
    shown = cli("show", "run", "--pairs", "--skip", "layers.1.weight", "--format", "json").json["rows"]
    assert [row["pair"] for row in shown] == [row["pair"] for row in rows]
    assert cli("align", STORE, "--pair", "layers.2->*").code == 0


def test_altered_vectors_are_no_numbers(align: Any, cli: Any) -> None:
    align(mlp(sizes=(6, 40, 40, 5)))
    (path,) = Path(STORE).glob("*.h5")
    with h5py.File(path, "r") as file:
        place = file["left"].id.get_offset()
    original = path.read_bytes()
    for offset in (0, 4 * 6 + 2, 4 * 41):  # of the first vectors of a matrix
        content = bytearray(original)
        content[place + offset] ^= 0x40
        path.write_bytes(content)
        for command in ("align", "sva"):
            found = cli(command, STORE, "--format", "json")
            assert found.code == 1, (offset, command)
            assert "are not those that were written; analyse again" in found.err
            assert found.out == ""
    path.write_bytes(original)
    assert cli("align", STORE).code == 0
    repacked = path.with_name("repacked")
    with h5py.File(path, "r") as old, h5py.File(repacked, "w") as new:
        new.attrs.update(old.attrs)
        for name in old:
            packed = new.create_dataset(name, data=old[name][()], compression="gzip")
            packed.attrs.update(old[name].attrs)
    repacked.replace(path)
    found = cli("align", STORE)
    assert found.code == 1
    assert "repacked by another program" in found.err


def test_a_nan_elsewhere_is_no_failure_of_a_pair(align: Any, cli: Any) -> None:
    broken = mlp(sizes=(6, 8, 8, 8, 5))
    broken["layers.3.weight"][0, 0] = float("nan")
    align(broken)
    assert cli("align", STORE, "--pair", "layers.0->*").code == 0
    assert cli("align", STORE, "--pair", "layers.2->*").code == 3


def test_names_are_data(align: Any, cli: Any) -> None:
    weights = attention() | {
        "a->b.weight": torch.randn(5, 4),
        "layers.0.self_attn.q_proj.weight[head]": torch.randn(4, 16),
    }
    rows = align(weights, analyze=["--heads", "4"])
    (row,) = [row for row in rows if row["kind"] == "q_k"]
    assert row["score"] is None
    name = "layers.0.self_attn.q_proj.weight"
    assert row["reason"] == f"the blocks of {name} have the name of a tensor, {name}[head]"
    Path("pairs.toml").write_text("[[pair]]\nfrom = 'a->b'\nto = 'a->b'\nto_side = 'left'")
    options = ["--pairs", "pairs.toml", "--matrix", "--plot", "a.png"]
    assert cli("align", STORE, *options).code == 0


def test_no_figure_without_a_number(align: Any, cli: Any) -> None:
    weights = mlp()
    weights["layers.1.weight"][:] = 0
    align(weights)
    for options in (["--plot-scores", "x.png"], ["--plot", "x.png", "--pair", "layers.0->*"]):
        found = cli("align", STORE, *options)
        assert found.code == 2
        assert "there is no number to draw" in found.err
        assert not Path("x.png").exists()
    assert "--plot-scores x.txt" in cli("align", STORE, "--plot-scores", "x.txt").err


def test_pairs_of_a_file_that_differ_in_rows_alone(align: Any, cli: Any) -> None:
    entry = "[[pair]]\nfrom = 'layers.0'\nto = 'layers.1'\n"
    Path("pairs.toml").write_text(
        f"{entry}from_rows = '0:4'\nto_rows = '0:4'\n{entry}from_rows = '4:8'\nto_rows = '4:8'\n"
    )
    rows = align(mlp(), options=["--pairs", "pairs.toml"])
    assert [row["pair"] for row in rows] == [
        f"layers.0.weight[{rows}]->layers.1.weight[{rows}]" for rows in ("0:4", "4:8")
    ]
    assert rows[0]["score"] != rows[1]["score"]
    Path("pairs.toml").write_text(f"{entry}{entry}from_side = 'right'\n")
    found = cli("align", STORE, "--pairs", "pairs.toml")
    assert found.code == 2
    assert "two different pairs are layers.0.weight->layers.1.weight" in found.err
    Path("pairs.toml").write_text(f"{entry}from_rows = '0:{'9' * 5000}'\n")
    assert cli("align", STORE, "--pairs", "pairs.toml").code == 2


def test_no_mean_over_different_widths(align: Any, cli: Any) -> None:
    for name, hidden in (("a", 8), ("b", 6)):
        save_file(mlp(sizes=(6, hidden, 8, 5)), f"step0-{name}.safetensors")
        cli("analyze", f"step0-{name}.safetensors", "-o", f"{name}.spectra", "--quiet", "--step-regex", r"step(\d)")
    rows = cli("align", "a.spectra", "b.spectra", "--aggregate", "--format", "json").json["rows"]
    assert (rows[0]["score"], rows[0]["reason"]) == (None, "its width is not the same in all stores")
    assert rows[1]["seeds"] == 2


def test_few_directions_are_said(align: Any, cli: Any) -> None:
    weights = {"layers.0.weight": mat([2.0, 1.0], 16, 12), "layers.1.weight": torch.randn(9, 16)}
    (row,) = align(weights, weights | {"layers.1.weight": torch.randn(9, 16)})[:1]
    assert [value is not None for value in row["diagonal"]] == [True] * 2 + [False] * 7
    assert row["reason"] == "2 of 9 directions are above the rounding noise; the score is their mean"


def test_what_config_json_says_later_of_heads(align: Any, cli: Any) -> None:
    align(attention(), analyze=["--heads", "2"])
    config = {"model_type": "llama", "num_attention_heads": 4, "num_key_value_heads": 2}
    Path("run", "step0", "config.json").write_text(json.dumps(config))
    assert cli("analyze", "run", "-o", STORE, "--quiet").code == 0
    (row,) = cli("align", STORE, "--pair", "q_k", "--format", "json").json["rows"]
    assert len(row["per_head"]) == 4
    assert cli("analyze", "run", "-o", STORE, "--quiet", "--heads", "2").code == 2
