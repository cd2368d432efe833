"""The Typer application. The only place that turns errors into messages and exit codes.

0 all done; 1 failed; 2 wrong usage; 3 partial (some checkpoints or matrices failed); 130 interrupted.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, NoReturn

import typer

from .. import __version__
from ..errors import NothingAnalysed, SpectrascopeError
from ._output import print_error

# One module each, in the order of `--help`.
COMMANDS = ("analyze", "show", "rank", "spectrum", "align", "sva", "lmc", "prune", "perturb", "task", "export")


def app_for(arguments: Sequence[str]) -> typer.Typer:
    """The application with the command that is asked for; with all of them where none is.

    Typer needs half a second for the options of all commands, which is longer than most reports.
    """
    app = typer.Typer(
        name="spectrascope",
        help="What did training do to the weights? Singular spectra of checkpoint trajectories.",
        epilog="Results go to stdout and nothing else does. Exit codes: 0 all done, 1 failed, 2 wrong usage, "
        "3 some checkpoints or matrices failed, 130 interrupted.",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    asked = next((argument for argument in arguments if not argument.startswith("-")), None)
    for name in (asked,) if asked in COMMANDS else COMMANDS:
        app.command()(getattr(import_module(f".{name}", __package__), str(name)))
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"spectrascope {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command line and exit. Nothing that a user can cause shows a traceback, unless --debug asks for it."""
    is_program = arguments is None
    arguments = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    _open_closed_streams()
    _never_fail_to_print()
    gc.set_threshold(100_000)  # rows are many small objects, and none of them is in a cycle
    code = _run(arguments)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    if is_program and "--debug" not in arguments:
        # Taking torch and all rows apart takes a second, and after an error a large matrix under way minutes.
        os._exit(code)
    sys.exit(code)


def _run(arguments: list[str]) -> int:
    debug = "--debug" in arguments
    logged = logging.root.manager.disable
    try:
        if not debug:
            logging.disable(logging.CRITICAL)  # of libraries, such as what is retried; we say what failed
        with warnings.catch_warnings():
            if not debug:
                warnings.simplefilter("ignore")  # those of libraries; ours go through Output
            code = app_for(arguments)(args=arguments, prog_name="spectrascope", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return 0
    except Exception as error:
        if debug:
            traceback.print_exc()
        message, code = _describe(error)
        if message:
            print_error(message)
        return code
    finally:
        logging.disable(logged)


def _describe(error: Exception) -> tuple[str, int]:
    """What to say of an error, and the exit code."""
    if isinstance(error, NothingAnalysed):
        return error.message, error.exit_code  # the command has named the causes
    if isinstance(error, SpectrascopeError):
        return str(error), error.exit_code
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror, 1
    if hasattr(error, "format_message"):  # what Typer raises for wrong usage
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "spectrascope"
        return f"{error.format_message().rstrip('.')}; see `{command} --help`", 2
    if type(error).__name__ == "Abort":
        return "", 130
    return (
        f"{type(error).__name__}: {error}. This is a fault of spectrascope; please report it with what --debug prints",
        1,
    )


def _open_closed_streams() -> None:
    """A stream that the caller closed reads and writes nothing, and no other file takes its number."""
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            with contextlib.suppress(OSError):
                os.fstat(descriptor)
                continue
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
            setattr(sys, name, os.fdopen(descriptor, "w" if descriptor else "r", closefd=False))


def _never_fail_to_print() -> None:
    """A terminal or pipe that cannot show a character shows an escape instead."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
