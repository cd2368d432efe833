"""The arrows of the design hold, heavy imports stay where they belong, and the public names are what they are."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from conftest import GROK, ROOT
from safetensors.numpy import save_file

import spectrascope

PACKAGE = ROOT / "spectrascope"
# From the command line down: a module may import from what stands further down only.
LAYERS = [
    {"__main__"},
    {"cli"},
    {"landscape"},
    {"report", "pipeline", "inspection"},
    {"machines"},
    {"run"},
    {"job", "fetching"},
    {"reuse"},
    {"metrics", "store", "checkpoints"},
    {"workers", "cluster"},
    {"decompose", "matrices", "selection", "copies", "remarks", "steps", "progress"},
    {"words", "skipping", "architectures"},
    {"roles"},
    {"tensors", "arrays"},
    {"errors"},
]
TORCH = {"checkpoints", "arrays", "decompose", "workers", "landscape"}


def part(path: Path) -> str:
    """The part of the design that a module belongs to: its file or folder right below the package."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def modules() -> list[Path]:
    return [path for path in sorted(PACKAGE.rglob("*.py")) if path != PACKAGE / "__init__.py"]


def imports(path: Path) -> set[str]:
    """What a module imports: names of other packages, and parts of this one with a leading dot."""
    found: set[str] = set()
    inside = path.relative_to(PACKAGE).parts[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add(str(node.module).split(".")[0])
        elif isinstance(node, ast.ImportFrom):
            home = [*inside[: len(inside) - node.level + 1], *(node.module or "").split(".")]
            found |= {f".{home[0]}"} if home[0] else {f".{alias.name}" for alias in node.names}
    return found - {".__version__"}


def layer(name: str) -> int:
    return next(depth for depth, names in enumerate(LAYERS) if name in names)


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_arrows_point_down(path: Path) -> None:
    me = part(path)
    for name in imports(path):
        if name.startswith(".") and name != f".{me}":
            assert layer(name[1:]) > layer(me), f"{me} imports {name}"


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_heavy_imports_stay_at_home(path: Path) -> None:
    found = imports(path)
    assert "h5py" not in found or part(path) == "store"
    assert "torch" not in found or part(path) in TORCH
    assert "matplotlib" not in found or path.name == "figures.py"
    assert "typer" not in found or part(path) == "cli"
    if part(path) == "metrics":
        assert not found & {"pathlib", "os", "torch", ".store", ".checkpoints"}


def loaded(program: str, cwd: Path) -> set[str]:
    """Which of the heavy libraries a program has loaded when it ends."""
    check = (
        "import sys; print('loaded', *[n for n in ('torch', 'matplotlib', 'h5py', 'safetensors') if n in sys.modules])"
    )
    wrapped = f"import atexit\natexit.register(lambda: exec({check!r}, {{}}))\n{program}"
    done = subprocess.run([sys.executable, "-c", wrapped], cwd=cwd, capture_output=True, text=True, timeout=60)
    return set(done.stdout.splitlines()[-1].split()[1:])


def test_importing_the_package_is_light(tmp_path: Path) -> None:
    assert loaded("import spectrascope; dir(spectrascope); spectrascope.SpectrascopeError", tmp_path) == set()


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["rank", "x.spectra"],
        ["rank", "x.spectra", "--format", "json"],
        ["rank", "x.spectra", "--plot", "rank.png"],
        ["spectrum", "x.spectra", "mlp.up.weight", "--plot", "sv.png"],
        ["align", "x.spectra"],
        ["align", "x.spectra", "--plot-scores", "scores.png"],
        ["sva", "x.spectra", "--format", "csv"],
        ["export", "x.spectra", "--to", "all.h5"],
    ],
    ids=" ".join,
)
def test_reports_from_the_store_load_no_torch(arguments: list[str], store: Path) -> None:
    program = f"from spectrascope.cli import main\nmain({arguments!r})"
    found = loaded(program, store.parent)
    assert "torch" not in found
    assert ("matplotlib" in found) == any(argument.startswith("--plot") for argument in arguments)


@pytest.mark.parametrize("command", ["analyze", "show"])
def test_no_torch_is_loaded_for_files_that_it_did_not_write(command: str, tmp_path: Path) -> None:
    """Its import takes longer than the analysis of a small checkpoint."""
    half = np.random.default_rng(0).standard_normal((20, 8)).astype(ml_dtypes.bfloat16)
    save_file({"a.weight": half, "b.int": np.arange(4)}, tmp_path / "step1.safetensors")
    np.savez(tmp_path / "step2.npz", **{"a.weight": half.astype(np.float16)})
    found = loaded(f"from spectrascope.cli import main\nmain([{command!r}, '.'])", tmp_path)
    assert "torch" not in found
    assert "safetensors" in found


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store") / "x.spectra"
    spectrascope.analyze(GROK, path, steps="last")
    return path


def test_public_names() -> None:
    assert sorted(spectrascope.__all__) == spectrascope.__all__
    for name in spectrascope.__all__:
        assert getattr(spectrascope, name).__doc__, f"{name} has no docstring"
    with pytest.raises(AttributeError, match="has no attribute 'nope'"):
        _ = spectrascope.nope


def test_every_module_says_what_it_is() -> None:
    for path in modules():
        assert ast.get_docstring(ast.parse(path.read_text())), path


def test_files_stay_small() -> None:
    for path in modules():
        assert len(path.read_text().splitlines()) <= 400, path
