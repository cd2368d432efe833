"""Steps in names, and what --steps selects."""

from __future__ import annotations

import re

import pytest

from spectrascope.checkpoints.steps import compile_step_regex, step_in_name
from spectrascope.errors import RequestError
from spectrascope.steps import select_steps

PYTHIA = [0, *[2**i for i in range(10)], *range(1000, 144_000, 1000)]


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("checkpoint-500", 500),
        ("step_100", 100),
        ("step1000", 1000),
        ("step_0009.safetensors", 9),
        ("epoch=3-step=1200.ckpt", 1200),
        ("epoch=3.ckpt", 3),
        ("ckpt_iter_40_epoch_2.pt", 40),
        ("global_step7", 7),
        ("model-checkpoint-12-epoch-3.pt", 12),
        ("step1000-tokens4B", 1000),
        ("ckpt-77.pt", 77),
        ("Iteration 5.pth", 5),
        ("000500.pt", 500),
        ("checkpoint-final", None),
        ("checkpoint_old", None),
        ("steps_100", 100),
        ("global_steps7.pt", 7),
        ("checkpoint-99999999999999999999.pt", None),
        ("runs", None),
        ("resnet50.pt", None),
        ("model-00001-of-00002.safetensors", None),
        ("model.safetensors", None),
    ],
)
def test_step_in_name(name: str, step: int | None) -> None:
    assert step_in_name(name) == step


def test_step_regex() -> None:
    assert step_in_name("vgg16_b256_n40.pt", re.compile(r"_n(\d+)")) == 40
    assert step_in_name("b2_a9.pt", re.compile(r"b(\d)_a(?P<step>\d)")) == 9
    assert step_in_name("x.pt", re.compile(r"_n(\d+)")) is None
    with pytest.raises(RequestError, match="not a number"):
        step_in_name("x_na.pt", re.compile(r"_n(\w)"))
    with pytest.raises(RequestError, match="not a regular expression"):
        compile_step_regex("(")


@pytest.mark.parametrize(
    ("wanted", "chosen"),
    [
        ("all", PYTHIA),
        ("last", [143_000]),
        ("0,512", [0, 512]),
        ("0,1000-3000,last", [0, 1000, 2000, 3000, 143_000]),
        ("4:16", [4, 8, 16]),
        ("every:60", PYTHIA[::60]),
        ("log:1", [0, 143_000]),
        ("log:3", [0, 1, 256, 143_000]),  # 1, 378.2, 143,000: 256 is nearest to 378
    ],
)
def test_selection(wanted: str, chosen: list[int]) -> None:
    assert select_steps(PYTHIA, wanted) == chosen


def test_logarithmic_steps_are_available_ones() -> None:
    chosen = select_steps(PYTHIA, "log:20")
    assert set(chosen) <= set(PYTHIA)
    assert (chosen[0], chosen[-1]) == (0, 143_000)
    assert 15 < len(chosen) <= 21
    assert select_steps([3, 5], "log:20") == [3, 5]


@pytest.mark.parametrize("wanted", ["log:0", "log:x", "every:", "soon", "", "5,", "-3", "7", "1-4"])
def test_what_is_no_selection(wanted: str) -> None:
    with pytest.raises(RequestError, match=r"--steps|there is no step 7|no step is in 1-4; there are 0, 5"):
        select_steps([0, 5], wanted)
