"""The README is true: its commands run, it names every command, and its pictures are there."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT
from hub_server import Hub, write_revisions
from hub_server import environment as hub_environment

from spectrascope.cli.app import COMMANDS

README = (ROOT / "README.md").read_text() if (ROOT / "README.md").exists() else ""


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory as the README's reader has it: a clone."""
    home = tmp_path_factory.mktemp("readme")
    for run in ("grok", "digits"):
        shutil.copytree(ROOT / "fixtures" / run, home / "fixtures" / run)
    shutil.copy(ROOT / "fixtures" / "digits.py", home / "fixtures")
    scripts = home / "bin"
    scripts.mkdir()
    for name, module in (("spectrascope", "-m spectrascope"), ("dask", "-m dask"), ("python", "")):
        (scripts / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {module} "$@"\n')
        (scripts / name).chmod(0o755)
    return home


# Repositories that the README names, here with tiny models in them, and the names of their revisions.
REPOSITORIES = {
    **dict.fromkeys(("EleutherAI/pythia-70m", "EleutherAI/pythia-160m", "EleutherAI/pythia-12b"), "step{}"),
    "EleutherAI/pythia-2.8b": "step{}",
    "allenai/OLMo-1B": "step{}-tokens4B",
}


def run(script: str, home: Path, hub: Hub) -> subprocess.CompletedProcess[str]:
    environment = hub_environment(hub, home / "hub")
    environment |= {"PATH": f"{home / 'bin'}:{environment['PATH']}"}
    script = f"trap 'kill $(jobs -p) 2> /dev/null; wait' EXIT\n{script}"
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=home,
        env=environment,
        capture_output=True,
        text=True,
        timeout=400,
    )


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    """The Hub as the README's reader has it, as far as names go."""
    revisions = write_revisions(tmp_path_factory.mktemp("revisions"), [0, 1, 1000, 143000])
    with Hub() as hub:
        for repository, name in REPOSITORIES.items():
            for revision, files in revisions.items():
                hub.add(repository, name.format(revision.removeprefix("step")), files)
        yield hub


def test_the_shell_examples_run_in_order(home: Path, hub: Hub) -> None:
    examples = [block for block in blocks("sh") if "make " not in block and "pip install" not in block]
    assert examples
    script = "\n".join(line for block in examples for line in block.splitlines())
    if shutil.which("jq") is None:
        script = re.sub(r"\| jq [^|\n]*", "| cat", script)
    script = re.sub(r"^dask (\w+)", r"dask \1 --host 127.0.0.1 --no-dashboard", script, flags=re.MULTILINE)
    script = script.replace("dask scheduler --host", "dask scheduler --port 0 --host")
    done = run(script, home, hub)
    assert done.returncode == 0, done.stderr
    for figure in re.findall(r"--plot(?:-scores)? (\S+)", script):
        assert (home / figure).stat().st_size > 1000


def test_the_python_examples_run(home: Path) -> None:
    for block in blocks("python"):
        done = subprocess.run([sys.executable, "-c", block], cwd=home, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stderr


def test_every_command_is_in_the_readme() -> None:
    for command in COMMANDS:
        assert f"spectrascope {command}" in README


def test_the_pictures_are_there() -> None:
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", README)
    assert pictures
    for picture in pictures:
        assert (ROOT / picture).is_file()


def test_the_changelog_names_this_version() -> None:
    from spectrascope import __version__

    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text()
