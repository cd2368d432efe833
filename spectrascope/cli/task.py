"""`spectrascope task`: a template of the file that `lmc` and `prune` want."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import RequestError
from ._options import DebugOption, QuietOption
from ._output import Output


def task(
    what: Annotated[str, typer.Argument(metavar="init", help="init: write a commented template.")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where; an existing file is left alone.")] = Path(
        "task.py"
    ),
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> int:
    """Write a commented template of a task: the model, and its losses, in plain Python."""
    output = Output(quiet=quiet)
    if what != "init":
        raise RequestError(f"`spectrascope task {what}` is nothing; `spectrascope task init` writes a template")
    from ..landscape.task import TEMPLATE

    try:
        with file.open("x", encoding="utf-8") as new:
            new.write(TEMPLATE)
    except FileExistsError as error:
        raise RequestError(f"{file} is there already; name another file") from error
    output.say(f"written: {file}; try it with `spectrascope lmc A B --task {file}`")
    return 0
