"""The one sink for what a command says: results to stdout, everything else to stderr, in lines."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import SpectrascopeError
from ..report.formats import to_csv, to_json, to_jsonl
from ..report.rows import Row
from ..report.tables import Table, printable, render
from ._options import Format

MOST_WARNINGS = 20


def print_error(text: str) -> None:
    """One line on stderr, on a terminal folded at words. Control characters in names and paths are shown as escapes."""
    line = f"spectrascope: {printable(text)}"
    if sys.stderr.isatty():
        width = shutil.get_terminal_size().columns
        line = textwrap.fill(line, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    print(line, file=sys.stderr)


class Output:
    """What a command says, in the format that was asked for."""

    def __init__(self, format: Format = Format.table, quiet: bool = False) -> None:
        self.format = format
        self.quiet = quiet
        self._said: set[str] = set()

    def say(self, line: str) -> None:
        """A note on stderr, unless --quiet."""
        if not self.quiet:
            print_error(line)

    def warn(self, line: str) -> None:
        """A warning on stderr, once, unless --quiet."""
        if not self.quiet and line not in self._said:
            self._said.add(line)
            self.say(f"warning: {line}")

    def fail(self, line: str) -> None:
        """A failure on stderr, once, also with --quiet."""
        if line not in self._said:
            self._said.add(line)
            print_error(line)

    def rows(
        self,
        command: str,
        source: str,
        rows: Sequence[Row],
        columns: Sequence[str],
        tables: Callable[[], list[Table]],
        warnings: Sequence[str] = (),
        failures: Sequence[Row] = (),
        **more: Any,
    ) -> int:
        """Write a report: the rows to stdout, warnings and failures to stderr. Gives the exit code."""
        for warning in warnings[:MOST_WARNINGS]:
            self.warn(warning)
        if len(warnings) > MOST_WARNINGS:
            self.warn(f"and {len(warnings) - MOST_WARNINGS} more; --format json lists all")
        for failure in failures:
            self.fail(failure_line(failure))
        if self.format is Format.json:
            self.write(to_json(command, source, rows, warnings, failures, **more))
        elif self.format is Format.jsonl:
            self.write(to_jsonl(rows))
        elif self.format is Format.csv:
            self.write(to_csv(rows, columns))
        else:
            self.write("\n".join(render(table, self.terminal_width) for table in tables()))
        return 3 if failures else 0

    @property
    def terminal_width(self) -> int | None:
        """The columns of the terminal that stdout is, None if it is none."""
        return shutil.get_terminal_size().columns if sys.stdout.isatty() else None

    def write(self, text: str) -> None:
        """Results. A reader that has gone away, such as `head`, is no error."""
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except OSError as error:
            # Python flushes stdout once more at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            if not isinstance(error, BrokenPipeError):
                raise SpectrascopeError(f"standard output cannot be written to ({error.strerror or error})") from error


def failure_line(failure: Row) -> str:
    """The path, where in it, and the cause."""
    where = [failure["path"]]
    if failure["matrix"] is not None:
        where.append(f"step {failure['step']}: {failure['matrix']}")
    return ": ".join([*where, failure["reason"]])
