"""The command line: one module per command, each of which parses, calls the library and renders.

app.py         the Typer application and its entry point: errors become exit codes here only
_options.py    options that several commands share
_output.py     the one sink for what a command says: results to stdout, everything else to stderr
_store.py      opening a store for a report
_progress.py   progress of an analysis, on stderr
"""

from .app import main

__all__ = ["main"]
