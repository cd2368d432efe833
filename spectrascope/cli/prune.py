"""`spectrascope prune`: keep a part of the weights, and see what becomes of losses and spectra."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import NothingAnalysed, RequestError
from ..report.figures import require_plottable
from ..report.rows import Row
from ..report.tables import Table, Words, number
from ._options import (
    LARGEST_SEED,
    DebugOption,
    Format,
    FormatOption,
    PlotOption,
    QuietOption,
    SourcesArgument,
    StepRegexOption,
    StepsOption,
    TrustPickleOption,
    WeightsOption,
    paths_meant,
)
from ._output import Output
from ._progress import AnalysisProgress
from ._task import DeviceOption, NoRecalibrateOption, OptionalTaskOption, TextOption, TokensOption, runner_of

if TYPE_CHECKING:
    from ..landscape.prune import Masks, Method

COLUMNS = [
    *("step", "keep", "fraction", "matrix", "kept", "sparsity", "energy", "score"),
    *("metric", "before", "after", "recalibrated", "reason"),
]
MOST_OF_A_SWEEP = 1000


class Keep(StrEnum):
    """Which components of a matrix are kept."""

    top = "top"
    bottom = "bottom"


def prune(
    sources: SourcesArgument,
    svd: Annotated[bool, typer.Option("--svd", help="Keep the top components of every matrix.")] = False,
    magnitude: Annotated[
        float | None, typer.Option(metavar="SHARE", help="Keep this share of the weights, the largest of all matrices.")
    ] = None,
    random_like: Annotated[
        Path | None,
        typer.Option("--random-like", metavar="MASKS", help="Keep as many weights of each tensor as these masks."),
    ] = None,
    apply_mask: Annotated[
        Path | None, typer.Option("--apply-mask", metavar="MASKS", help="Keep the weights that these masks keep.")
    ] = None,
    keep: Annotated[Keep, typer.Option(help="With --svd: the top components, or all but those.")] = Keep.top,
    both: Annotated[bool, typer.Option("--both", help="With --svd: once the one, and once the other.")] = False,
    fraction: Annotated[
        float | None, typer.Option(min=0, max=1, help="With --svd: the share that are top components, 0.5.")
    ] = None,
    sweep: Annotated[
        str | None, typer.Option(metavar="FROM:TO:BY", help="With --svd: losses at many fractions, e.g. 0.05:1:0.05.")
    ] = None,
    each: Annotated[bool, typer.Option("--each", help="With --svd: losses with one matrix pruned at a time.")] = False,
    include_last: Annotated[
        bool, typer.Option("--include-last", help="Prune the last matrix too, which is left alone otherwise.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, max=LARGEST_SEED, help="With --random-like.")] = 0,
    task: OptionalTaskOption = None,
    text: TextOption = None,
    tokens: TokensOption = 10_000,
    store: Annotated[
        Path | None,
        typer.Option("--store", metavar="STORE", help="Spectra of these checkpoints; what it lacks is added."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write the pruned checkpoint: .safetensors.")
    ] = None,
    masks: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write which weights are kept: .safetensors of booleans.")
    ] = None,
    plot: PlotOption = None,
    steps: StepsOption = "all",
    step_regex: StepRegexOption = None,
    weights: WeightsOption = "auto",
    no_recalibrate: NoRecalibrateOption = False,
    device: DeviceOption = "cpu",
    trust_pickle: TrustPickleOption = False,
    format: FormatOption = Format.table,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> int:
    """Prune checkpoints by singular values or by magnitude, and compare before and after.

    Give one of --svd, --magnitude, --random-like and --apply-mask. Losses are reported with a --task; sparsity, the
    energy that is kept and the agreement of singular vectors without one too. The last matrix is left alone.
    """
    output = Output(format, quiet)
    only_svd = {"--both": both, "--fraction": fraction is not None, "--sweep": sweep, "--each": each}
    _require_one_way({"--svd": svd, "--magnitude": magnitude, "--random-like": random_like, "--apply-mask": apply_mask})
    if not svd and (wrong := [name for name, given in only_svd.items() if given] + ["--keep"] * (keep is Keep.bottom)):
        raise RequestError(f"{wrong[0]} is of --svd")
    if task is None and (sweep or each or text):
        raise RequestError("a sweep, one matrix at a time, and a text are about losses: give a --task")
    if sweep and fraction is not None:
        raise RequestError("--sweep gives the fractions itself, and takes no --fraction")
    if masks and svd:
        raise RequestError("--masks are of weights; --svd drops components, and leaves no weight at zero")
    out, masks = _writable(out, masks)
    if plot is not None:
        require_plottable(plot)
    from ..landscape.prune import Request
    from ..landscape.prune_command import Outputs, Sources
    from ..landscape.prune_command import prune as run

    method, given = _method(svd, magnitude, random_like, apply_mask, trust_pickle)
    fractions = _fractions(sweep) if sweep else (0.5 if fraction is None else fraction,)
    fractions = fractions if magnitude is None else (magnitude,)
    keeps: tuple[Any, ...] = ("top", "bottom") if both else (keep.value,)
    asked = Request(method, fractions, keeps, given, seed, include_last, each)
    paths = paths_meant(sources)
    meant = Sources(paths, steps, step_regex, weights, trust_pickle)
    if plot and not (sweep or len(meant.references()) > 1):
        raise RequestError("--plot draws a sweep, or the steps of a trajectory: this is neither")
    runner = None if task is None else runner_of(task, text, tokens, paths[0], device, not no_recalibrate)
    with AnalysisProgress(output, "pruning") as progress:
        try:
            found = run(meant, asked, runner, store, Outputs(out, masks), progress)
        except NothingAnalysed as error:
            for cause in error.causes:
                output.fail(cause)
            raise
    if plot:
        from ..report.landscape_figures import pruning_figure

        pruning_figure(found.losses, found.matrices, plot)
    for path, what in ((plot, "figure"), (out, "pruned checkpoint"), (masks, "masks")):
        if path is not None:
            output.say(f"{what}: {path}")
    rows = [*found.losses, *found.matrices]
    code = output.rows(
        "prune",
        ", ".join(sources),
        rows,
        columns=COLUMNS,
        tables=lambda: _tables(found.losses, found.matrices),
        failures=found.failures,
    )
    return 3 if any(row["reason"] for row in found.losses) else code


def _require_one_way(ways: dict[str, Any]) -> None:
    given = [name for name, value in ways.items() if value is not None and value is not False]
    if len(given) != 1:
        what = "none is given" if not given else f"{' and '.join(given)} are given"
        raise RequestError(f"one of {', '.join(ways)} says how to prune: {what}")


def _writable(out: Path | None, masks: Path | None) -> tuple[Path | None, Path | None]:
    """The files that are meant. Raises RequestError where one cannot be written."""
    from ..landscape.saving import savable

    return (
        None if out is None else savable("-o", out),
        None if masks is None else savable("--masks", masks),
    )


def _method(
    svd: bool, magnitude: float | None, random_like: Path | None, apply_mask: Path | None, trust_pickle: bool
) -> tuple[Method, Masks]:
    """The way to prune that is asked for, and the masks that belong to it. Raises RequestError for what is no mask."""
    from ..arrays import to_torch
    from ..landscape.saving import read_masks

    path = random_like or apply_mask
    if path is None:
        return "svd" if svd else "magnitude", {}
    masks = {name: to_torch(mask) for name, mask in read_masks(path, trust_pickle).items()}
    return "random" if random_like else "mask", masks


def _fractions(sweep: str) -> tuple[float, ...]:
    """0.05:1:0.05 -> 0.05, 0.1, ..., 1, ends included. Raises RequestError."""
    try:
        start, end, by = map(float, sweep.split(":"))
        count = int(round((end - start) / by, 6)) + 1 if by > 0 else 0
    except (ValueError, OverflowError) as error:
        raise RequestError(f"--sweep is FROM:TO:BY, such as 0.05:1:0.05, not {sweep!r}") from error
    fractions = tuple(round(start + place * by, 9) for place in range(min(count, MOST_OF_A_SWEEP + 1)))
    if not 2 <= len(fractions) <= MOST_OF_A_SWEEP or not 0 <= start <= end <= 1:
        raise RequestError(f"--sweep {sweep}: from 2 to {MOST_OF_A_SWEEP} fractions between 0 and 1")
    return fractions


def _tables(losses: list[Row], matrices: list[Row]) -> list[Table]:
    return [table for table in (_losses_table(losses), _matrices_table(matrices)) if table.lines]


def _names(rows: list[Row], columns: list[str]) -> list[str]:
    """The columns that tell rows apart: those of which there is more than one value."""
    return [name for name in columns if len({row.get(name) for row in rows}) > 1]


def _losses_table(rows: list[Row]) -> Table:
    names = _names(rows, ["step", "keep", "fraction", "matrix"])
    headings = [Words(name) if name in ("keep", "matrix") else name for name in names]
    table = Table([*headings, Words("metric"), "before", "after", Words("note")])
    for row in rows:
        cells = [_cell(row[name]) for name in names]
        table.lines.append([*cells, row["metric"], number(row["before"]), number(row["after"]), row["reason"] or ""])
    return table


def _matrices_table(rows: list[Row]) -> Table:
    names = _names(rows, ["step", "keep"])
    headings = [Words(name) if name == "keep" else name for name in names]
    table = Table([*headings, Words("matrix"), "kept", "sparsity", "energy", "SVA", Words("note")])
    for row in rows:
        cells = [_cell(row[name]) for name in names]
        numbers = [number(row[name]) for name in ("kept", "sparsity", "energy", "score")]
        table.lines.append([*cells, row["matrix"], *numbers, row["reason"] or ""])
    return table


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
