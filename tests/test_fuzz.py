"""Some hundred of the examples of fuzz.py; `python tests/fuzz.py` runs ten thousand."""

from __future__ import annotations

from pathlib import Path

import pytest
from fuzz import EXAMPLES, SEEDS, Change, check, peak_memory, run, spectrascope, tree_of
from hypothesis import HealthCheck, given, settings

MEMORY = peak_memory()


@given(EXAMPLES)
@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
def test_changed_bytes_break_no_promise(example: tuple[str, list[Change]]) -> None:
    check(*example, MEMORY)


@pytest.mark.parametrize("name", SEEDS)
def test_the_files_that_are_changed_are_sound(name: str, tmp_path: Path) -> None:
    for path, content in tree_of(name).items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(content)
    code, err = spectrascope("show", tmp_path)
    expected = {"codes": 3, "deepspeed": 1, "gguf": 1, "keras": 1}
    assert code == expected.get(name, 0), err


def test_the_script_counts_what_it_runs(tmp_path: Path) -> None:
    codes = run(10, 1, tmp_path / "log")
    assert sum(codes.values()) == 10
    assert "Change" in (tmp_path / "log").read_text()
