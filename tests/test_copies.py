"""Copies among checkpoints, stale tensors and frozen ones are told apart."""

from __future__ import annotations

from spectrascope.copies import describe_copies


def test_one_step_says_nothing() -> None:
    assert describe_copies({}) == []
    assert describe_copies({0: {"a": "1", "b": "1"}}) == []


def test_training_says_nothing() -> None:
    assert describe_copies({0: {"a": "1"}, 1: {"a": "2"}, 2: {"a": "3"}}) == []


def test_copied_checkpoints_are_named_as_a_whole() -> None:
    hashes = {0: {"a": "3", "b": "6"}, 1: {"a": "1", "b": "4"}, 3: {"a": "3", "b": "6"}}
    assert describe_copies(hashes, {0: "x", 1: "y", 3: "x"}) == [
        "steps 0 and 3 hold identical content: they are copies of one checkpoint"
    ]
    # The matrices that were analysed may be equal where the rest of the files is not.
    assert describe_copies(hashes, {0: "x", 1: "y", 3: "z"}) == [
        "steps 0 and 3 hold identical matrices: every one that was analysed is the same"
    ]


def test_a_stale_tensor_is_named_with_its_steps() -> None:
    found = describe_copies(
        {0: {"a": "1", "b": "1"}, 1: {"a": "2", "b": "2"}, 2: {"a": "2", "b": "3"}, 3: {"a": "2", "b": "4"}}
    )
    assert found == ["a is the same at steps 1, 2 and 3 while other matrices changed"]


def test_a_frozen_tensor_is_no_defect() -> None:
    assert describe_copies({0: {"a": "1", "b": "1"}, 1: {"a": "1", "b": "2"}, 2: {"a": "1", "b": "3"}}) == [
        "a is frozen: the same at every step"
    ]


def test_a_frozen_tensor_beside_copied_checkpoints() -> None:
    found = describe_copies({0: {"a": "1", "b": "1"}, 1: {"a": "1", "b": "2"}, 2: {"a": "1", "b": "1"}})
    assert [line.split(":")[0] for line in found] == ["steps 0 and 2 hold identical matrices", "a is frozen"]


def test_tensors_that_appear_late() -> None:
    found = describe_copies({0: {"a": "1"}, 1: {"a": "2", "b": "1"}, 2: {"a": "3", "b": "1"}})
    assert found == ["b is the same at steps 1 and 2 while other matrices changed"]
