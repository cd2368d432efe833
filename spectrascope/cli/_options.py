"""Arguments and options that several commands share."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ..errors import RequestError


class Format(StrEnum):
    """How rows are written to stdout."""

    table = "table"
    json = "json"
    csv = "csv"
    jsonl = "jsonl"


LARGEST_SEED = 2**63 - 1
SourcesArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="SOURCE...",
        help="A directory of checkpoints, files, hf://owner/name[@revision], or - for paths on stdin.",
    ),
]
StoreArgument = Annotated[Path, typer.Argument(metavar="STORE", help="A store that `spectrascope analyze` made.")]
StoresArgument = Annotated[
    list[Path],
    typer.Argument(metavar="STORE...", help="A store that `spectrascope analyze` made; several with --aggregate."),
]
AggregateOption = Annotated[
    bool, typer.Option("--aggregate", help="Mean and standard deviation over several stores, such as seeds.")
]
FormatOption = Annotated[Format, typer.Option("--format", "-f", help="How to write the rows to stdout.")]
StepsOption = Annotated[
    str,
    typer.Option("--steps", metavar="WHICH", help="all, last, every:N, log:N, or steps and ranges: 0,100,500-2000."),
]
StepRegexOption = Annotated[
    str | None,
    typer.Option("--step-regex", metavar="REGEX", help=r"Finds the step in names, e.g. 'ckpt_(\d+)'."),
]
MatchOption = Annotated[
    list[str] | None,
    typer.Option("--match", metavar="GLOB", help="Only matrices of such names. Can be repeated."),
]
SkipOption = Annotated[
    list[str] | None,
    typer.Option("--skip", metavar="GLOB", help="No matrices of such names. Can be repeated."),
]
MatrixOption = Annotated[
    list[str] | None,
    typer.Option("--matrix", "-m", metavar="GLOB", help="Only matrices of such names. Can be repeated."),
]
PlotOption = Annotated[
    Path | None,
    typer.Option("--plot", metavar="FILE", help="Draw the figure into a file: .png, .pdf, .svg, ..."),
]
LogStepsOption = Annotated[bool, typer.Option("--log-steps", help="Steps on a logarithmic axis in the figure.")]
TrustPickleOption = Annotated[
    bool,
    typer.Option("--trust-pickle", help="Load pickles that the safe loader refuses. They can run any code."),
]
RevisionsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--revisions", metavar="GLOB", help="Of a repository on the Hub: branches and tags of such names, or re:REGEX."
    ),
]
WeightsOption = Annotated[
    str,
    typer.Option("--weights", metavar="WHICH", help="live, averaged (EMA), or auto: live ones where there are any."),
]
HeadsOption = Annotated[
    int | None,
    typer.Option("--heads", min=1, metavar="N", help="Heads of attention layers, where no config.json says it."),
]
KvHeadsOption = Annotated[
    int | None,
    typer.Option("--kv-heads", min=1, metavar="N", help="Heads of keys and values, where they are fewer."),
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no notes on stderr, only errors.")]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def paths_meant(arguments: list[str]) -> list[str]:
    """The paths that are meant: `-` stands for one path a line on standard input. Raises RequestError."""
    if "" in arguments:
        raise RequestError("an empty path; is a variable unset?")
    if "-" not in arguments:
        return arguments
    listed = [line.rstrip("\r\n") for line in sys.stdin]
    paths = [path for argument in arguments for path in (listed if argument == "-" else [argument]) if path]
    if not paths:
        raise RequestError("no path came on standard input")
    return paths
