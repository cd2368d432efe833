"""Tables and sparklines."""

from __future__ import annotations

from spectrascope.report.tables import Table, Words, number, printable, render, sparkline


def test_sparklines() -> None:
    assert sparkline([0.0, 0.5, 1.0], True, 24) == "▁▅█"
    assert sparkline([0.0, None, 1.0], False, 24) == "_ #"
    assert len(sparkline([0.5] * 1000, True, 24)) == 24
    assert sparkline([0.1] * 999 + [1.0], True, 10)[-1] == "█", "the last value is always shown"


def test_numbers() -> None:
    assert [number(value) for value in (None, 3, 1.23456789, 1e-12, 0.0)] == ["-", "3", "1.235", "1e-12", "0"]


def test_control_characters_are_escapes() -> None:
    assert printable("a\x1b[31m\n\ud800é") == r"a\x1b[31m\n\ud800é"


def test_a_plain_table_is_never_cut() -> None:
    table = Table([Words("name"), "value"], [["x" * 500, "1"], ["[bold]y[/bold]", "22"]])
    lines = render(table, None).splitlines()
    assert lines[1].startswith("x" * 500)
    assert lines[2].split() == ["[bold]y[/bold]", "22"]
    assert all(line == line.rstrip() for line in lines)


def test_on_a_terminal_names_fold_and_numbers_stay_whole() -> None:
    table = Table([Words("name"), "value"], [["x" * 100, "123456789"]])
    lines = render(table, 40).splitlines()
    assert any("123456789" in line for line in lines)
    assert len(lines) > 3
    # Too narrow even so: nothing is cut, the terminal wraps.
    assert "123456789" in render(table, 5)
