"""Small failing inputs from public bug reports, one test or a few per case, through the command line."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from conftest import STORE, Result, assert_plain, mat, row_of, run_cli
from safetensors.torch import save_file


def save_matrix(path: Path, *singular_values: float, seed: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({"fc.weight": mat(singular_values, 6, 4, seed)}, path)


def step_files() -> list[str]:
    return sorted(path.name for path in STORE.iterdir()) if STORE.exists() else []


def exact(matrix: torch.Tensor) -> Any:
    return np.linalg.svd(matrix.double().numpy(), compute_uv=False)


# 1. Saved steps come out as sorted text.


def test_case_01_steps_are_in_numeric_order(case: Path, analyze: Any) -> None:
    for step in (9, 10, 100, 1000, 2):
        save_matrix(case / f"checkpoint-{step}" / "model.safetensors", step, 1.0)
    for noise in ("runs", "checkpoint_old", "checkpoint-final"):
        (case / noise).mkdir()
    result = analyze(case)
    assert result.code == 0
    assert [row["step"] for row in result.json["rows"]] == [2, 9, 10, 100, 1000]
    norms = [row["spectral_norm"] for row in result.json["rows"]]
    np.testing.assert_allclose(norms, [2, 9, 10, 100, 1000], rtol=1e-6)
    for noise in ("runs", "checkpoint_old", "checkpoint-final"):
        assert result.err.count(noise) == 1
        assert sum(noise in warning for warning in result.json["warnings"]) == 1


def test_case_01_noise_that_holds_weights_is_left_out(case: Path, analyze: Any) -> None:
    save_matrix(case / "checkpoint-5" / "model.safetensors", 5.0)
    save_matrix(case / "checkpoint-final" / "model.safetensors", 7.0)
    result = analyze(case)
    assert [row["step"] for row in result.json["rows"]] == [5]
    assert [warning for warning in result.json["warnings"] if "checkpoint-final" in warning]


def test_case_01_padding_may_be_mixed(case: Path, analyze: Any) -> None:
    save_matrix(case / "step_10000" / "model.safetensors", 4.0)
    save_matrix(case / "step_0009" / "model.safetensors", 3.0)
    rows = analyze(case).json["rows"]
    assert [(row["step"], round(row["spectral_norm"], 5)) for row in rows] == [(9, 3.0), (10000, 4.0)]


# 2. Published early steps are byte for byte the final model.


def test_case_02_copies_of_a_checkpoint_are_named(case: Path, analyze: Any, cli: Any) -> None:
    for step, source in ((0, 3), (1000, 1), (2000, 2), (3000, 3)):
        path = case / f"step{step}" / "model.safetensors"
        path.parent.mkdir()
        save_file({"fc.weight": mat([3.0, 1.0, 0.5], 8, 5, seed=source)}, path)
    result = analyze(case)
    assert result.code == 0
    assert [row["step"] for row in result.json["rows"]] == [0, 1000, 2000, 3000]
    for report in (result, cli("rank", STORE, "--format", "json")):
        (warning,) = report.json["warnings"]
        assert "steps 0 and 3000 hold identical content" in warning
        assert f"warning: {warning}" in report.err


def test_case_02_twins_of_a_warm_up_are_no_error(case: Path, analyze: Any) -> None:
    for step, seed in ((0, 1), (1, 1), (2, 2)):
        save_matrix(case / f"step{step}.safetensors", 3.0, 1.0, seed=seed)
    result = analyze(case)
    assert result.code == 0
    (warning,) = result.json["warnings"]
    assert "steps 0 and 1 hold identical content" in warning


# 4. Layer numbers restart at 0 for each shard.


def test_case_04_layers_of_shards_are_in_the_order_of_the_model(case: Path, analyze: Any) -> None:
    names = [f"model.layers.{i}.mlp.up.weight" for i in range(12)]
    shards = {
        "model-00001-of-00002.safetensors": names[0::2],
        "model-00002-of-00002.safetensors": names[1::2],
    }
    for file, held in shards.items():
        save_file({name: mat([1.0 + int(name.split(".")[2])], 5, 4) for name in held}, case / file)
    index = {"weight_map": {name: file for file, held in shards.items() for name in held}}
    (case / "model.safetensors.index.json").write_text(json.dumps(index))
    result = analyze(case)
    assert result.code == 0
    assert [row["matrix"] for row in result.json["rows"]] == names
    np.testing.assert_allclose([row["spectral_norm"] for row in result.json["rows"]], range(1, 13), rtol=1e-6)


# 5. A half-downloaded model loads without complaint.


def half_downloaded(directory: Path) -> None:
    directory.mkdir(exist_ok=True)
    save_file({"a.weight": mat([1.0], 4, 3)}, directory / "model-00001-of-00002.safetensors")
    index = {"a.weight": "model-00001-of-00002.safetensors", "b.weight": "model-00002-of-00002.safetensors"}
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))


def test_case_05_an_absent_shard_is_an_error(case: Path, analyze: Any) -> None:
    half_downloaded(case)
    result = analyze(case)
    assert result.code == 1
    assert result.out == ""
    assert "model-00002-of-00002.safetensors" in result.err
    assert "model-00001-of-00002.safetensors" not in result.err
    assert step_files() == []


def test_case_05_an_absent_shard_costs_its_own_step_only(case: Path, analyze: Any) -> None:
    save_matrix(case / "step1" / "model.safetensors", 2.0)
    half_downloaded(case / "step2")
    result = analyze(case)
    assert result.code == 3
    assert [row["step"] for row in result.json["rows"]] == [1]
    (failure,) = result.json["failures"]
    assert failure["step"] == 2
    assert failure["matrix"] is None
    assert "model-00002-of-00002.safetensors" in failure["reason"]
    assert step_files() == ["step0000000001.h5"]


def test_case_05_a_stale_index_is_called_stale(case: Path, analyze: Any) -> None:
    for number, name in ((1, "a.weight"), (2, "b.weight")):
        save_file({name: mat([float(number)], 4, 3)}, case / f"model-0000{number}-of-00002.safetensors")
    index = {f"{name}.weight": f"model-0000{number}-of-00004.safetensors" for number, name in enumerate("abcd", 1)}
    (case / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    result = analyze(case)
    assert result.code == 0
    rows = {row["matrix"]: row["spectral_norm"] for row in result.json["rows"]}
    assert rows == pytest.approx({"a.weight": 1.0, "b.weight": 2.0}, rel=1e-6)
    (stale,) = [warning for warning in result.json["warnings"] if "index" in warning]
    assert "stale index" in stale
    assert "of-00004" not in result.err


# 7. The same network under different wrappers along one run.


def test_case_07_wrappers_are_stripped_alike_in_every_step(case: Path, analyze: Any, spectra: Any) -> None:
    weight = mat([2.0, 1.0], 6, 4)
    prefixes = ("", "module.", "_orig_mod.", "_orig_mod.module.", "module._orig_mod.")
    for step, prefix in enumerate(prefixes, start=1):
        tensors = {prefix + "fc.weight": weight, prefix + "module_list.0.weight": 2 * weight}
        torch.save(tensors, case / f"step{step}.pt")
    result = analyze(case)
    assert result.code == 0
    assert [(row["step"], row["matrix"]) for row in result.json["rows"]] == [
        (step, matrix) for step in range(1, 6) for matrix in ("fc.weight", "module_list.0.weight")
    ]
    for matrix, factor in (("fc.weight", 1), ("module_list.0.weight", 2)):
        for values in spectra(matrix).values():
            np.testing.assert_allclose(values[:2], [2 * factor, factor], rtol=1e-6)


# 14. Harmless files that the safe loader refuses.


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """The weights_only of every torch.load."""
    seen: list[bool] = []
    load = torch.load

    def spy(*arguments: Any, **options: Any) -> Any:
        seen.append(options.get("weights_only", True))
        return load(*arguments, **options)

    monkeypatch.setattr(torch, "load", spy)
    return seen


def test_case_14_numpy_scalars_are_harmless(case: Path, analyze: Any, spectra: Any, loads: list[bool]) -> None:
    payload = {"model": {"fc.weight": mat([2.0, 1.0], 6, 4)}, "best": np.float64(0.5), "step": np.int64(7)}
    torch.save(payload, case / "scalar.pt")
    result = analyze(case / "scalar.pt")
    assert result.code == 0
    np.testing.assert_allclose(spectra("fc.weight")[7], [2, 1, 0, 0], atol=1e-6)
    assert set(loads) == {True}


def test_case_14_numpy_scalars_of_numpy_1_are_harmless(case: Path, analyze: Any, loads: list[bool]) -> None:
    payload = {"model": {"fc.weight": mat([2.0, 1.0], 6, 4)}, "best": np.float64(0.5), "step": np.int64(7)}
    torch.save(payload, case / "scalar.pt", _use_new_zipfile_serialization=False)
    written = (case / "scalar.pt").read_bytes()
    assert b"numpy._core.multiarray\n" in written
    (case / "scalar.pt").write_bytes(written.replace(b"numpy._core.multiarray\n", b"numpy.core.multiarray\n"))
    result = analyze(case / "scalar.pt")
    assert result.code == 0
    assert [(row["step"], row["matrix"]) for row in result.json["rows"]] == [(7, "fc.weight")]
    assert set(loads) == {True}


def test_case_14_tensors_of_a_gpu_come_to_the_cpu(
    case: Path, analyze: Any, spectra: Any, loads: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(torch.serialization, "location_tag", lambda storage: "cuda:0")
        torch.save({"fc.weight": mat([2.0, 1.0], 6, 4)}, case / "gpu.pt")
    result = analyze(case / "gpu.pt", "--device", "cpu")
    assert result.code == 0
    np.testing.assert_allclose(spectra("fc.weight")[0], [2, 1, 0, 0], atol=1e-6)
    assert set(loads) == {True}


# 16. The output head is in one save and absent in the other.


def test_case_16_a_tied_head_is_analysed_once_and_named(case: Path, analyze: Any, cli: Any) -> None:
    embedding = mat([4.0, 2.0], 9, 4)
    for step in ("step1", "step2"):
        (case / step).mkdir()
        (case / step / "config.json").write_text(json.dumps({"tie_word_embeddings": True}))
    torch.save({"embed.weight": embedding, "lm_head.weight": embedding}, case / "step1" / "pytorch_model.bin")
    save_file({"embed.weight": embedding}, case / "step2" / "model.safetensors")
    result = analyze(case)
    assert result.code == 0
    assert result.json["failures"] == []
    assert [(row["step"], row["matrix"]) for row in result.json["rows"]] == [(1, "embed.weight"), (2, "embed.weight")]
    assert "lm_head" not in result.err
    shown = cli("show", case, "--format", "json").json
    (row,) = shown["rows"]
    assert (row["matrix"], row["tied"], row["steps"]) == ("embed.weight", ["lm_head.weight"], 2)
    assert [one["reason"] for one in shown["skipped"]] == ["tied to embed.weight, analysed once"]


# 18. SVD or file reading dies on 16-bit weights.


def test_case_18_16_bit_weights_are_analysed_in_full_precision(case: Path, analyze: Any, spectra: Any) -> None:
    weight = mat([2.0, 1.0, 0.25], 16, 8)
    tensors = {
        "b.weight": weight.bfloat16(),
        "h.weight": weight.half(),
        "f.weight": weight,
        "d.weight": weight.double(),
    }
    save_file(tensors, case / "model.safetensors")
    result = analyze(case)
    assert result.code == 0
    dtypes = {row["matrix"]: row["dtype"] for row in result.json["rows"]}
    assert dtypes == {"b.weight": "bfloat16", "h.weight": "float16", "f.weight": "float32", "d.weight": "float64"}
    for (name, tensor), tolerance in zip(tensors.items(), (1e-2, 1e-3, 1e-5, 1e-5), strict=True):
        values = spectra(name)[0]
        np.testing.assert_allclose(values[:3], [2, 1, 0.25], rtol=tolerance)
        np.testing.assert_allclose(values, exact(tensor), rtol=0, atol=2e-10)
    for name in ("b.weight", "h.weight", "f.weight"):
        assert row_of(result, name)["numerical_rank"] == 3


# 27. Pointer files, cut-off files and empty files.


def test_case_27_files_that_are_not_there_yet_have_a_line_each(case: Path, analyze: Any, cli: Any) -> None:
    files = {step: case / f"step{step}" / "model.safetensors" for step in (1, 2, 3, 4)}
    for step, file in files.items():
        file.parent.mkdir()
        save_file({"fc.weight": mat([float(step)], 64, 8)}, file)
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 123456\n"
    files[2].write_text(pointer)
    files[3].write_bytes(files[3].read_bytes()[:-100])
    files[4].write_bytes(b"")
    result = analyze(case)
    assert result.code == 3
    assert [(row["step"], round(row["spectral_norm"], 5)) for row in result.json["rows"]] == [(1, 1.0)]
    for step, cause in ((2, "LFS pointer"), (3, "truncated"), (4, "empty")):
        (line,) = [line for line in result.err.splitlines() if str(files[step]) in line]
        assert cause in line
        (failure,) = [failure for failure in result.json["failures"] if failure["step"] == step]
        assert cause in failure["reason"]
    assert step_files() == ["step0000000001.h5"]
    assert cli("rank", STORE).code == 0


# 29. A causal mask is treated as a weight.


def test_case_29_masks_and_tables_are_skipped_with_a_reason(case: Path, analyze: Any, cli: Any, spectra: Any) -> None:
    size = 16
    mask = torch.tril(torch.ones(size, size)).view(1, 1, size, size)
    tensors = {
        "h.0.attn.bias": mask.to(torch.uint8),
        "h.0.attn.masked_bias": torch.tensor(-1e4),
        "h.0.attn.rotary_emb.inv_freq": torch.rand(4),
        "position_ids": torch.arange(size)[None],
        "relative_position_index": torch.zeros(9, 9, dtype=torch.long),
        "h.0.mlp.weight": mat([2.0, 1.0], 8, 6),
        "h.1.attn.bias": mask,  # the same mask in float, under its usual name and under another
        "h.1.attn.triangle": mask.clone(),
        "h.1.attn.mask2d": mask.clone().view(size, size),
    }
    torch.save(tensors, case / "m.pt")
    result = analyze(case / "m.pt")
    assert result.code == 0
    assert [row["matrix"] for row in result.json["rows"]] == ["h.0.mlp.weight"]
    np.testing.assert_allclose(spectra("h.0.mlp.weight")[0], [2, 1, 0, 0, 0, 0], atol=1e-6)
    assert "100.0% of the parameters" in result.err
    skipped = {one["name"]: one["reason"] for one in cli("show", case / "m.pt", "--format", "json").json["skipped"]}
    assert set(skipped) == set(tensors) - {"h.0.mlp.weight"}
    assert skipped["h.0.attn.bias"] == "causal mask"
    assert skipped["position_ids"] == "position table"
    assert skipped["relative_position_index"].startswith("int64")
    assert all("mask" in skipped[name] for name in ("h.1.attn.bias", "h.1.attn.triangle", "h.1.attn.mask2d"))


# 30. NaN in, finite singular values out.


def test_case_30_non_finite_matrices_have_no_spectrum(case: Path, analyze: Any, cli: Any, spectra: Any) -> None:
    weight = mat([2.0, 1.0], 6, 4)
    bad = weight.clone()
    bad[0, 0] = float("nan")
    tiny = torch.tensor([[float("nan"), 1.0]])
    save_file({"ok.weight": weight, "bad.weight": bad, "tiny.weight": tiny}, case / "model.safetensors")
    first = analyze(case)
    for result in (first, analyze(case), cli("rank", STORE, "--format", "json")):
        assert result.code == 3
        for name, entries in (("bad.weight", 24), ("tiny.weight", 2)):
            row = row_of(result, name)
            assert row["reason"] == f"non-finite: 1 NaN of {entries} entries"
            metrics = set(row) - {"step", "matrix", "shape", "dtype", "sparsity", "reason"}
            assert metrics >= {"effective_rank", "spectral_norm", "numerical_rank"}
            assert {row[metric] for metric in metrics} == {None}
            (line,) = [line for line in result.err.splitlines() if name in line]
            assert "1 NaN" in line
            assert str(case) in line
        assert row_of(result, "ok.weight")["reason"] is None
        assert sorted(failure["matrix"] for failure in result.json["failures"]) == ["bad.weight", "tiny.weight"]
    np.testing.assert_allclose(spectra("ok.weight")[0], [2, 1, 0, 0], atol=1e-6)
    assert spectra("bad.weight") == {0: None}


# 32. One matrix does not converge and the whole run is lost.

LAYERS = ("l0.weight", "l1.weight", "l2.weight")
ROUTINES = ("eigh", "eigvalsh", "svd", "svdvals", "qr")


def three_layers(case: Path) -> None:
    tensors = {name: mat([3.0, 2.0, 1.0], 7, 5, seed=i) for i, name in enumerate(LAYERS)}
    save_file(tensors, case / "model.safetensors")


def assert_three_layers(spectra: Any, names: tuple[str, ...] = LAYERS) -> None:
    for name in names:
        weight = mat([3.0, 2.0, 1.0], 7, 5, seed=LAYERS.index(name))
        np.testing.assert_allclose(spectra(name)[0], exact(weight), rtol=0, atol=3e-10)


@pytest.mark.parametrize(("routine", "top_k"), [("eigh", 100), ("svd", 100), ("qr", 100), ("eigvalsh", 0)])
def test_case_32_a_routine_that_gives_up_once_is_replaced(
    case: Path, analyze: Any, spectra: Any, monkeypatch: pytest.MonkeyPatch, routine: str, top_k: int
) -> None:
    three_layers(case)
    original = getattr(np.linalg, routine)
    calls = []

    def fails_once(*arguments: Any, **options: Any) -> Any:
        calls.append(routine)
        if len(calls) == 1:
            raise np.linalg.LinAlgError("did not converge (injected)")
        return original(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(np.linalg, routine, fails_once)
        result = analyze(case, "--device", "cpu", "--top-k", top_k)
    assert calls
    assert result.code == 0
    assert result.json["failures"] == []
    (note,) = [warning for warning in result.json["warnings"] if "fallback" in warning]
    assert "did not converge (injected)" in note
    assert any(name in note for name in LAYERS)
    assert note in result.err
    assert_three_layers(spectra)


def test_case_32_a_matrix_for_which_every_routine_gives_up_is_null(
    case: Path, analyze: Any, spectra: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    three_layers(case)
    weight = mat([3.0, 2.0, 1.0], 7, 5, seed=1).double().numpy()
    gram = weight.T @ weight

    def is_about_l1(array: Any) -> bool:
        array = np.asarray(array)
        return array.shape[1] == 5 and any(np.allclose(a, gram) for a in (array[:5], array.T @ array))

    def failing(original: Any, error: type[Exception]) -> Any:
        def routine(array: Any, *arguments: Any, **options: Any) -> Any:
            if is_about_l1(array):
                raise error("did not converge (injected)")
            return original(array, *arguments, **options)

        return routine

    with monkeypatch.context() as patch:
        for name in ROUTINES:
            patch.setattr(np.linalg, name, failing(getattr(np.linalg, name), np.linalg.LinAlgError))
            patch.setattr(torch.linalg, name, failing(getattr(torch.linalg, name), torch.linalg.LinAlgError))
        result = analyze(case, "--device", "cpu")
    assert result.code == 3
    row = row_of(result, "l1.weight")
    assert row["effective_rank"] is row["spectral_norm"] is None
    assert "did not converge (injected)" in row["reason"]
    assert [failure["matrix"] for failure in result.json["failures"]] == ["l1.weight"]
    assert spectra("l1.weight") == {0: None}
    assert_three_layers(spectra, ("l0.weight", "l2.weight"))
    again = analyze(case, "--device", "cpu")  # another attempt may succeed
    assert again.code == 0
    assert_three_layers(spectra)


def test_case_32_the_command_survives_a_failure_at_the_first_call(case: Path, tmp_path: Path, spectra: Any) -> None:
    three_layers(case)
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(
        "import numpy as np\n"
        "original, calls = np.linalg.eigh, []\n"
        "def eigh(*arguments, **options):\n"
        "    calls.append(1)\n"
        "    if len(calls) == 1:\n"
        "        raise np.linalg.LinAlgError('did not converge (injected)')\n"
        "    return original(*arguments, **options)\n"
        "np.linalg.eigh = eigh\n"
    )
    paths = [str(tmp_path / "site"), *filter(None, [os.environ.get("PYTHONPATH")])]
    arguments = ("analyze", case, "-o", STORE, "--device", "cpu", "--format", "json")
    result = run_cli(*arguments, env={"PYTHONPATH": os.pathsep.join(paths)})
    assert_plain(result)
    assert result.code == 0
    (note,) = [warning for warning in result.json["warnings"] if "fallback" in warning]
    assert "did not converge (injected)" in note
    assert_three_layers(spectra)


# 34. Out of memory on an embedding of a few MB.

PEAK_OF_A_RUN = """
import re, sys
import h5py, numpy, safetensors.torch, torch, typer, rich.table
import spectrascope.pipeline
from spectrascope.cli import main
def peak():  # kB
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])
before = peak()
try:
    main(sys.argv[1:])
except SystemExit as end:
    print("peak", peak() - before, file=sys.stderr)
    raise
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak from /proc")
def test_case_34_long_and_wide_matrices_need_little_memory(case: Path, spectra: Any) -> None:
    tensors = {
        "embed.weight": mat([3.0, 2.0, 1.0], 200_000, 3),
        "head.weight": mat([3.0, 2.0, 1.0], 3, 200_000),
    }
    save_file(tensors, case / "model.safetensors")
    arguments = ["analyze", str(case), "-o", str(STORE), "--device", "cpu", "--format", "json"]
    run = [sys.executable, "-c", PEAK_OF_A_RUN, *arguments]
    done = subprocess.run(run, capture_output=True, text=True, timeout=60, check=True)
    (peak,) = re.findall(r"^peak (\d+)$", done.stderr, re.MULTILINE)
    assert int(peak) < 256 * 1024
    for name in tensors:
        np.testing.assert_allclose(spectra(name)[0], [3, 2, 1], rtol=1e-6)


# 35. Small singular values are lost in a Gram matrix.


def test_case_35_small_singular_values_are_right(case: Path, analyze: Any, spectra: Any) -> None:
    weight = mat(np.logspace(0, -6, 8), 64, 8)
    save_file({"fc.weight": weight}, case / "model.safetensors")
    assert analyze(case).code == 0
    values = spectra("fc.weight")[0]
    np.testing.assert_allclose(values, [1, 0.139, 0.0193, 2.68e-3, 3.73e-4, 5.18e-5, 7.20e-6, 1.0e-6], rtol=0.02)
    np.testing.assert_allclose(values, exact(weight), rtol=0, atol=1e-10)


# 36. Ranks turn into NaN where a singular value is exactly 0.


def test_case_36_zeros_are_no_nan(case: Path, analyze: Any, cli: Any, spectra: Any) -> None:
    tensors = {
        "zero.weight": torch.zeros(6, 4),
        "some.weight": torch.diag(torch.tensor([2.0, 2.0, 0.0, 0.0])),
        "id.weight": torch.eye(5),
        "geo.weight": mat([4.0, 2.0, 1.0], 6, 5),
    }
    save_file(tensors, case / "model.safetensors")
    first = analyze(case)
    for result in (first, cli("rank", STORE, "--format", "json")):
        assert result.code == 0  # a zero matrix is no failure
        assert result.json["failures"] == []
        ranks = {name: row_of(result, f"{name}.weight") for name in ("zero", "some", "id", "geo")}
        zero = ranks["zero"]
        assert (zero["numerical_rank"], zero["spectral_norm"], zero["frobenius_norm"]) == (0, 0, 0)
        assert zero["effective_rank"] is zero["norm_effective_rank"] is zero["stable_rank"] is None
        assert "zero matrix" in zero["reason"]
        assert ranks["some"]["effective_rank"] == pytest.approx(2.0, abs=1e-9)
        assert ranks["some"]["numerical_rank"] == 2
        assert ranks["id"]["effective_rank"] == pytest.approx(5.0, abs=1e-9)
        assert ranks["geo"]["effective_rank"] == pytest.approx(2.6005, abs=1e-4)
        assert ranks["geo"]["stable_rank"] == pytest.approx(1.3125, abs=1e-4)
        assert all(ranks[name]["reason"] is None for name in ("some", "id", "geo"))
    assert spectra("zero.weight") == {0: [0.0] * 4}


# 40. Another process holds a lock on a cache file.


def test_case_40_a_locked_cache_is_named(case: Path, analyze: Any, cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spectrascope.store.hdf5.LOCK_PATIENCE", 0.3)
    monkeypatch.delenv("HDF5_USE_FILE_LOCKING", raising=False)
    save_matrix(case / "model.safetensors", 2.0)
    before = analyze(case)
    cache = STORE / "step0000000000.h5"
    hold = (
        "import h5py, sys, time\n"
        "f = h5py.File(sys.argv[1], 'a')\n"
        "f['x'] = [1]\n"
        "f.flush()\n"
        "print('held', flush=True)\n"
        "time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", hold, str(cache)], stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        for result in (analyze(case), cli("rank", STORE, "--format", "json")):
            assert result.code == 1
            assert result.out == ""
            (line,) = [line for line in result.err.splitlines() if "locked" in line]
            assert str(cache) in line
            assert "another process" in line
            assert "another store" in line
        assert step_files() == [cache.name]
    finally:
        holder.terminate()
        holder.communicate()
    assert "HDF5_USE_FILE_LOCKING" not in os.environ
    after = cli("rank", STORE, "--format", "json")
    assert after.code == 0
    assert after.json["rows"] == before.json["rows"]
    with h5py.File(cache, "r") as file:
        assert list(file["x"]) == [1]


# 41. Names with slashes, dots and empty parts.


def test_case_41_any_name_survives_the_cache(case: Path, analyze: Any, cli: Any, spectra: Any) -> None:
    weight = mat([2.0, 1.0], 5, 4)
    names = ["enc", "enc/l0", "enc/l0/kernel", "a//b", ".", "x/", "é.weight"]
    torch.save({name: factor * weight for factor, name in enumerate(names, start=1)}, case / "m.pt")
    first = analyze(case / "m.pt")
    assert first.code == 0
    assert [row["matrix"] for row in first.json["rows"]] == names
    np.testing.assert_allclose(
        [row["spectral_norm"] for row in first.json["rows"]], [2, 4, 6, 8, 10, 12, 14], rtol=1e-6
    )
    again = analyze(case / "m.pt")
    assert again.out == first.out
    assert cli("rank", STORE, "--format", "json").json["rows"] == first.json["rows"]
    for factor, name in enumerate(names, start=1):
        np.testing.assert_allclose(spectra(name)[0][:2], [2 * factor, factor], rtol=1e-6)


# 42. A killed job leaves a cache that cannot be opened. (Kills at random times are tested elsewhere.)


@pytest.fixture(scope="module")
def killed_writer(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """What a writer that is killed leaves of an HDF5 file."""
    path = tmp_path_factory.mktemp("killed") / "cache.h5"
    kill = (
        "import h5py, os, sys, numpy as np\n"
        "f = h5py.File(sys.argv[1], 'w')\n"
        "for i in range(200): f[f'layer{i}/s'] = np.random.rand(500)\n"
        "os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", kill, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL
    return path.read_bytes()


@pytest.mark.parametrize("damage", ["killed writer", "half", "96 bytes", "0 bytes", "one byte altered"])
def test_case_42_a_damaged_cache_is_set_aside_and_made_again(
    case: Path, analyze: Any, killed_writer: bytes, damage: str
) -> None:
    tensors = {f"l{i}.weight": mat([2.0, 1.0], 60, 50, seed=i) for i in range(40)}
    save_file(tensors, case / "model.safetensors")
    cold = analyze(case)
    cache = STORE / "step0000000000.h5"
    whole = cache.read_bytes()
    with h5py.File(cache, "r") as file:
        sigma = file["singular_values"].id.get_offset()
    broken = {
        "killed writer": killed_writer,
        "half": whole[: len(whole) // 2],
        "96 bytes": whole[:96],
        "0 bytes": b"",
        "one byte altered": whole[:sigma] + bytes([whole[sigma] ^ 1]) + whole[sigma + 1 :],
    }[damage]
    cache.write_bytes(broken)
    again = analyze(case)
    assert again.code == 0
    (warning,) = [line for line in again.err.splitlines() if "warning: " in line and str(cache) in line]
    assert "set aside as step0000000000.h5.damaged" in warning
    assert again.json["rows"] == cold.json["rows"]
    assert again.json["failures"] == []
    assert cache.read_bytes() == whole
    assert (STORE / "step0000000000.h5.damaged").read_bytes() == broken


def test_case_42_a_report_leaves_a_damaged_cache_alone(case: Path, analyze: Any, cli: Any) -> None:
    for step in (1, 2):
        save_matrix(case / f"step{step}.safetensors", float(step))
    analyze(case)
    cache = STORE / "step0000000002.h5"
    cut = cache.read_bytes()[:-100]
    cache.write_bytes(cut)
    result = cli("rank", STORE, "--format", "json")
    assert result.code == 3
    assert [row["step"] for row in result.json["rows"]] == [1]
    (failure,) = result.json["failures"]
    assert (failure["path"], failure["step"], failure["matrix"]) == (str(cache), 2, None)
    assert "truncated or damaged" in failure["reason"]
    assert_plain(result)
    assert cache.read_bytes() == cut


# 43. An existing cache is emptied before its lock is met.


def test_case_43_a_cache_is_replaced_while_another_process_reads_it(case: Path, analyze: Any, cli: Any) -> None:
    save_matrix(case / "step1.safetensors", 2.0)
    assert analyze(case).code == 0
    cache = STORE / "step0000000001.h5"
    read = (
        "import h5py, sys\n"
        "f = h5py.File(sys.argv[1], 'r')\n"
        "print(len(f['catalogue']), flush=True)\n"
        "sys.stdin.readline()\n"
        "print(f['singular_values'][0])"
    )
    reader = subprocess.Popen(
        [sys.executable, "-c", read, str(cache)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert reader.stdout is not None
        assert int(reader.stdout.readline()) > 0
        save_matrix(case / "step1.safetensors", 3.0)  # changed: its file of the store is made again
        save_matrix(case / "step2.safetensors", 4.0)
        result = analyze(case)
        seen, _ = reader.communicate("go\n", timeout=30)
    finally:
        reader.kill()
    assert result.code == 0
    assert float(seen) == pytest.approx(2.0, rel=1e-6)
    rows = cli("rank", STORE, "--format", "json").json["rows"]
    assert {row["step"]: row["spectral_norm"] for row in rows} == pytest.approx({1: 3.0, 2: 4.0}, rel=1e-6)


def test_case_43_a_foreign_file_is_kept(case: Path, analyze: Any) -> None:
    save_matrix(case / "step1.safetensors", 2.0)
    STORE.mkdir()
    with h5py.File(STORE / "step0000000001.h5", "w") as file:
        file["x"] = [1, 2, 3]
    result = analyze(case)
    assert result.code == 0
    assert "set aside" in result.err
    with h5py.File(STORE / "step0000000001.h5.damaged", "r") as file:
        assert list(file["x"]) == [1, 2, 3]


def test_case_43_two_runs_at_once_on_one_store(case: Path, cli: Any) -> None:
    for step in (1, 2, 3, 4):
        save_matrix(case / f"step{step}.safetensors", float(step))
    halves = [[case / "step1.safetensors", case / "step2.safetensors"]]
    halves += [[case / "step3.safetensors", case / "step4.safetensors"]]
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda half: run_cli("analyze", *half, "-o", STORE), halves))
    assert [result.code for result in results] == [0, 0]
    result = cli("rank", STORE, "--format", "json")
    assert result.code == 0
    norms = {row["step"]: row["spectral_norm"] for row in result.json["rows"]}
    assert norms == pytest.approx({1: 1.0, 2: 2.0, 3: 3.0, 4: 4.0}, rel=1e-6)
    assert step_files() == [f"step000000000{step}.h5" for step in (1, 2, 3, 4)]


# 59. Progress bars and control codes in log files.


def assert_one_plain_table(result: Result) -> None:
    assert result.code == 0
    assert_plain(result)
    title, header, line = result.out.splitlines()
    assert title == "step 0"
    cells = dict(zip(header.split(), line.split(), strict=False))
    assert (cells["matrix"], cells["shape"]) == ("fc.weight", "6x4")
    assert (cells["sigma_1"], cells["||W||_F"]) == ("2", "2.236")
    assert 1 <= len(result.err.splitlines()) <= 5


@pytest.mark.parametrize("setting", ["", "FORCE_COLOR=1", "CI=true", "TERM=dumb", "NO_COLOR=1"])
def test_case_59_only_the_result_is_on_stdout(
    case: Path, cli: Any, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    for name in ("FORCE_COLOR", "CI", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    if setting:
        monkeypatch.setenv(*setting.split("="))
    save_matrix(case / "model.safetensors", 2.0, 1.0)
    assert_one_plain_table(cli("analyze", case, "-o", STORE))


def test_case_59_only_the_result_is_on_stdout_of_a_process(case: Path) -> None:
    save_matrix(case / "model.safetensors", 2.0, 1.0)
    assert_one_plain_table(run_cli("analyze", case, "-o", STORE, env={"FORCE_COLOR": "1", "CI": "true"}))


def test_case_59_lines_of_progress_are_few(case: Path, cli: Any) -> None:
    for step in range(100):
        save_matrix(case / f"step{step}.safetensors", 2.0, seed=step)
    result = cli("analyze", case, "-o", STORE)
    assert result.code == 0
    assert_plain(result)
    assert len(result.err.splitlines()) <= 15


# 60. JSON on stdout is mixed with warnings.


def mixed_file(case: Path) -> Path:
    bad = mat([2.0], 6, 4)
    bad[0, 0] = float("nan")
    tensors = {
        "fc.weight": mat([2.0], 6, 4),
        "bad.weight": bad,
        "zero.weight": torch.zeros(3, 3),
        "skip": torch.tensor(1),
    }
    torch.save(tensors, case / "m.pt")
    return case / "m.pt"


@pytest.mark.parametrize("option", [None, "--debug", "--quiet"])
def test_case_60_stdout_is_one_strict_json_document(case: Path, cli: Any, option: str | None) -> None:
    options = [option] if option else []
    result = cli("analyze", mixed_file(case), "-o", STORE, "--format", "json", *options)
    assert result.code == 3
    document = result.json
    assert list(document)[:3] == ["command", "version", "source"]
    assert {row["matrix"] for row in document["rows"]} == {"fc.weight", "bad.weight", "zero.weight"}
    assert [failure["matrix"] for failure in document["failures"]] == ["bad.weight"]
    assert document["warnings"]  # the file states no step
    assert "bad.weight" in result.err  # a failure is named, also with --quiet
    assert ("warning" in result.err) is (option != "--quiet")
    assert_plain(result)


def test_case_60_a_pipe_receives_json_alone(case: Path) -> None:
    verbose = {"PYTHONWARNINGS": "always"}
    result = run_cli("analyze", mixed_file(case), "-o", STORE, "--format", "json", "--debug", env=verbose)
    assert result.code == 3
    assert len(result.json["rows"]) == 3
    assert "bad.weight" in result.err


def test_case_60_every_line_of_jsonl_is_strict_json(case: Path, cli: Any) -> None:
    result = cli("analyze", mixed_file(case), "-o", STORE, "--format", "jsonl")
    rows = [Result(0, line, "").json for line in result.out.splitlines()]
    assert [row["matrix"] for row in rows] == ["fc.weight", "bad.weight", "zero.weight"]


def test_case_60_stdout_is_empty_on_failure(case: Path, analyze: Any) -> None:
    (case / "m.pt").write_bytes(b"PK nothing of the kind")
    result = analyze(case / "m.pt")
    assert (result.code, result.out) == (1, "")
    assert str(case / "m.pt") in result.err


# 62. Part of the work fails and the exit code is 0.


def test_case_62_partial_work_has_an_exit_code_of_its_own(case: Path, analyze: Any, cli: Any) -> None:
    for step in (1, 2, 3):
        save_matrix(case / f"step{step}.safetensors", float(step))
    (case / "step2.safetensors").write_bytes(b"not a checkpoint")
    for result in (analyze(case), analyze(case)):
        assert result.code == 3
        rows = {row["step"]: row["spectral_norm"] for row in result.json["rows"]}
        assert rows == pytest.approx({1: 1.0, 3: 3.0}, rel=1e-6)
        assert "2 of 3 checkpoints" in result.err
        (failure,) = result.json["failures"]
        assert failure["path"] == str(case / "step2.safetensors")
        assert failure["step"] == 2
        assert "not a valid safetensors file" in failure["reason"]
    assert cli("show", case).code == 3


def test_case_62_a_failure_is_named_also_with_quiet(case: Path, analyze: Any) -> None:
    save_matrix(case / "step1.safetensors", 1.0)
    (case / "step2.safetensors").write_bytes(b"not a checkpoint")
    result = analyze(case, "--quiet")
    assert result.code == 3
    (line,) = result.err.splitlines()
    assert str(case / "step2.safetensors") in line


@pytest.mark.parametrize("command", ["analyze", "show", "rank"])
def test_case_62_a_path_that_does_not_exist(case: Path, cli: Any, command: str) -> None:
    result = cli(command, case / "nowhere")
    assert result.code == 2
    assert result.out == ""
    (line,) = result.err.splitlines()
    assert str(case / "nowhere") in line
    assert_plain(result)


# 64. A symbol cannot be encoded.

ENCODINGS = {
    "cp1252": {"PYTHONIOENCODING": "cp1252", "PYTHONUTF8": "0"},
    "ascii": {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "LC_ALL": "C"},
}
SEVERAL_COMMANDS = """
import sys
from spectrascope.cli import main
for command in "\\n".join(sys.argv[1:]).split("\\n---\\n"):
    try:
        main(command.split("\\n"))
    except SystemExit as end:
        print("exit", end.code)
"""


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_case_64_any_encoding_can_be_printed(case: Path, encoding: str) -> None:
    save_matrix(case / "run é" / "model.safetensors", 2.0, 1.0)
    torch.save({"é.weight": mat([2.0, 1.0], 6, 4)}, case / "é.pt")
    commands = [
        ["analyze", f"{case}/run é", "-o", "1.spectra"],
        ["analyze", f"{case}/run é/"],
        ["analyze", f"{case}/é.pt", "-o", "é.spectra"],
        ["rank", "é.spectra"],
        ["analyze", "--help"],
        ["show", f"{case}/σ → nowhere"],
    ]
    arguments = [argument for command in commands for argument in ("---", *command)][1:]
    run = [sys.executable, "-c", SEVERAL_COMMANDS, *arguments]
    done = subprocess.run(run, capture_output=True, env={**os.environ, **ENCODINGS[encoding]}, timeout=60)
    out, err = done.stdout.decode("cp1252"), done.stderr.decode("cp1252")
    assert "Traceback" not in err
    assert "EncodeError" not in err
    assert "no such file or directory" in err
    assert re.findall(r"^exit (\d+)$", out, re.MULTILINE) == ["0", "0", "0", "0", "0", "2"], err
    assert "--top-k" in out
    rows = [line.split() for line in out.splitlines() if " 6x4 " in line]
    assert [row[6:8] for row in rows] == [["2", "2.236"]] * 4  # sigma_1, ||W||_F
    assert Path("run é.spectra").is_dir()


# A pipe that is closed.


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs a shell")
@pytest.mark.parametrize("reader", ["head -1", "true"])
def test_a_closed_pipe_ends_quietly(case: Path, analyze: Any, reader: str) -> None:
    # More than a pipe holds, so that the write meets the closed end.
    save_file({f"l{i}.weight": torch.eye(2) * (i + 1) for i in range(400)}, case / "model.safetensors")
    assert analyze(case).code == 0
    command = f'"$PYTHON" -m spectrascope rank {STORE} --format jsonl | {reader}; echo "${{PIPESTATUS[@]}}"'
    env = {**os.environ, "PYTHON": sys.executable}
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=env, timeout=60, check=True)
    *lines, statuses = done.stdout.splitlines()
    assert statuses == "0 0"
    assert done.stderr == ""
    if reader == "head -1":
        (line,) = lines
        assert json.loads(line)["matrix"] == "l0.weight"


# A pickle that runs code.


class Hostile:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[str, int, bool]]:
        return os.makedirs, (str(self.path), 0o777, True)


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_a_hostile_pickle_is_refused(case: Path, analyze: Any, cli: Any, zipped: bool) -> None:
    created = Path("created").absolute()
    file = case / "m.pt"
    payload = {"fc.weight": mat([2.0], 6, 4), "extra": Hostile(created)}
    torch.save(payload, file, _use_new_zipfile_serialization=zipped)
    for result in (analyze(file), cli("show", file)):
        assert result.code == 1
        assert result.out == ""
        (line,) = [line for line in result.err.splitlines() if "refused" in line]
        assert str(file) in line
        assert "os.makedirs" in line
        assert "--trust-pickle" in line
        assert_plain(result)
    assert not created.exists()
    assert step_files() == []
    assert analyze(file, "--trust-pickle").code == 0  # the explicit way round
    assert created.is_dir()


def test_a_hostile_pickle_among_others_is_left_out(case: Path, analyze: Any) -> None:
    torch.save({"fc.weight": mat([2.0], 6, 4)}, case / "step1.pt")
    torch.save({"fc.weight": mat([2.0], 6, 4), "extra": Hostile(Path("created").absolute())}, case / "step2.pt")
    result = analyze(case)
    assert result.code == 3
    assert [row["step"] for row in result.json["rows"]] == [1]
    assert [failure["step"] for failure in result.json["failures"]] == [2]
    assert not Path("created").exists()


# A store that is a file.


def test_a_store_that_is_a_file_is_left_untouched(case: Path, cli: Any) -> None:
    save_matrix(case / "model.safetensors", 2.0)
    notes = Path("notes.h5")
    with h5py.File(notes, "w") as file:
        file["x"] = [1, 2, 3]
    content, status = notes.read_bytes(), notes.stat()
    result = cli("analyze", case, "-o", notes)
    assert result.code == 2
    assert result.out == ""
    assert "notes.h5 is a file" in result.err
    assert_plain(result)
    assert notes.read_bytes() == content
    assert (notes.stat().st_mtime_ns, notes.stat().st_ino) == (status.st_mtime_ns, status.st_ino)
