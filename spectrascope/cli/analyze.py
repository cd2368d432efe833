"""`spectrascope analyze`: decompose a trajectory into a store, then report ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import NothingAnalysed, RequestError
from ..report.rows import failures_among, rank_rows
from ..words import counted
from ._options import (
    DebugOption,
    Format,
    FormatOption,
    HeadsOption,
    KvHeadsOption,
    MatchOption,
    QuietOption,
    RevisionsOption,
    SkipOption,
    SourcesArgument,
    StepRegexOption,
    StepsOption,
    TrustPickleOption,
    WeightsOption,
    paths_meant,
)
from ._output import Output
from ._progress import AnalysisProgress
from .rank import COLUMNS, rank_table


def analyze(
    sources: SourcesArgument,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="STORE", help="The store's directory; ./NAME.spectra by default."),
    ] = None,
    steps: StepsOption = "all",
    step_regex: StepRegexOption = None,
    match: MatchOption = None,
    skip: SkipOption = None,
    top_k: Annotated[int, typer.Option("--top-k", min=0, help="Singular vectors to keep of either side.")] = 100,
    values_only: Annotated[
        bool, typer.Option("--values-only", help="Singular values without vectors: less time, a small store.")
    ] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:i.")] = "auto",
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Matrices at a time; one per core by default."),
    ] = None,
    trust_mtime: Annotated[
        bool,
        typer.Option("--trust-mtime", help="Files of unchanged size and time are unchanged: do not read them."),
    ] = False,
    trust_pickle: TrustPickleOption = False,
    weights: WeightsOption = "auto",
    revisions: RevisionsOption = None,
    dask: Annotated[
        str | None,
        typer.Option(
            "--dask", metavar="ADDRESS", help="Analyse on the workers of this dask scheduler, which share the disk."
        ),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave in the Hub's cache what is fetched from there.")] = False,
    heads: HeadsOption = None,
    kv_heads: KvHeadsOption = None,
    format: FormatOption = Format.table,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> int:
    """Decompose every weight matrix of a trajectory into a store, and report effective ranks.

    Only what is missing or has changed is computed. A run that was stopped goes on where it was.
    """
    output = Output(format, quiet)
    if out is None and (len(sources) > 1 or "-" in sources):
        raise RequestError("several sources, or paths on standard input, need a store: name one with -o")
    from ..pipeline import analyze as run
    from ..pipeline import default_store

    store = out or default_store(sources[0])
    with AnalysisProgress(output) as progress:
        try:
            trajectory = run(
                paths_meant(sources),
                store,
                steps=steps,
                step_regex=step_regex,
                match=match or (),
                skip=skip or (),
                top_k=0 if values_only else top_k,
                device=device,
                workers=workers,
                trust_mtime=trust_mtime,
                trust_pickle=trust_pickle,
                weights=weights,
                heads=heads,
                kv_heads=kv_heads,
                revisions=revisions or (),
                keep=keep,
                dask=dask,
                progress=progress,
            )
        except KeyboardInterrupt:
            output.fail(f"interrupted; what is finished is in {store}, and the same command goes on from there")
            return 130
        except NothingAnalysed as error:
            for cause in error.causes:
                output.fail(cause)
            raise
    failed = sum(failure["step"] not in trajectory.steps for failure in trajectory.failures)
    if failed:
        output.say(f"{len(trajectory.steps)} of {counted(len(trajectory.steps) + failed, 'checkpoint')} analysed")
    rows = rank_rows(trajectory, trajectory.steps, trajectory.matrices)
    return output.rows(
        "analyze",
        ", ".join(sources),
        rows,
        columns=COLUMNS,
        tables=lambda: [rank_table(rows, trajectory.steps, False, output)],
        warnings=trajectory.warnings,
        failures=failures_among(trajectory, trajectory.steps, trajectory.matrices),
    )
