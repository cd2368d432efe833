"""`spectrascope show`: what would be analysed, and what is skipped and why."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ..errors import NothingAnalysed
from ..report.rows import Row
from ..report.tables import Table, Words, shape
from ..words import counted, coverage_words, human_bytes, listed
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


def show(
    sources: SourcesArgument,
    steps: StepsOption = "all",
    step_regex: StepRegexOption = None,
    match: MatchOption = None,
    skip: SkipOption = None,
    trust_pickle: TrustPickleOption = False,
    weights: WeightsOption = "auto",
    revisions: RevisionsOption = None,
    heads: HeadsOption = None,
    kv_heads: KvHeadsOption = None,
    pairs: Annotated[
        bool, typer.Option("--pairs", help="List the pairs of consecutive matrices that `align` reports.")
    ] = False,
    format: FormatOption = Format.table,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> int:
    """List the matrices that would be analysed, the tensors that are skipped and why, and the share covered.

    Headers are read, and square tables that may be masks, but nothing is decomposed. With --revisions, the revisions of
    a repository on the Hub, and how much there is to fetch.
    """
    output = Output(format, quiet)
    paths = paths_meant(sources)
    if revisions:
        return _show_revisions(paths, revisions, steps, step_regex, output)
    from ..inspection import inspect

    try:
        found = inspect(paths, steps, step_regex, match or (), skip or (), trust_pickle, weights, heads, kv_heads)
    except NothingAnalysed as error:
        for cause in error.causes:
            output.fail(cause)
        raise
    if pairs:
        return _show_pairs(found, ", ".join(sources), output)
    code = output.rows(
        "show",
        ", ".join(sources),
        found.matrices + (_as_rows(found.skipped) if format in (Format.csv, Format.jsonl) else []),
        columns=["matrix", "shape", "dtype", "role", "guessed", "tied", "made_of", "steps", "reason"],
        tables=lambda: _tables(found, len(found.steps)),
        warnings=found.warnings,
        failures=found.failures,
        skipped=found.skipped,
        steps=found.steps,
        coverage=found.coverage,
    )
    output.say(coverage_words(len(found.matrices), found.coverage))
    return code


def _show_revisions(
    sources: list[str], revisions: list[str], steps: str, step_regex: str | None, output: Output
) -> int:
    from ..inspection import list_revisions

    try:
        found = list_revisions(sources, revisions, steps, step_regex)
    except NothingAnalysed as error:
        for cause in error.causes:
            output.fail(cause)
        raise
    code = output.rows(
        "show",
        ", ".join(sources),
        found.revisions,
        columns=["revision", "step", "commit", "bytes", "to_fetch", "files", "reason"],
        tables=lambda: [_revisions_table(found.revisions)],
        warnings=found.warnings,
        failures=found.failures,
        steps=found.steps,
    )
    to_fetch = [row["to_fetch"] or 0 for row in found.revisions]
    output.say(
        f"{counted(len(found.revisions), 'revision')}, {human_bytes(sum(to_fetch))} to fetch, "
        f"at most {human_bytes(2 * max(to_fetch, default=0))} on the disk at a time"
    )
    return code


def _revisions_table(rows: list[Row]) -> Table:
    table = Table([Words("revision"), "step", Words("commit"), "size", "to fetch", Words("files")])
    for row in rows:
        sizes = ["-" if row[name] is None else human_bytes(row[name]) for name in ("bytes", "to_fetch")]
        files = row["reason"] or listed(row["files"], 3)
        table.lines.append([row["revision"], str(row["step"]), row["commit"][:12], *sizes, files])
    return table


def _show_pairs(found: Any, source: str, output: Output) -> int:
    names = {row[end] for row in found.pairs for end in ("from", "to")}
    apart = [row["matrix"] for row in found.matrices if row["matrix"] not in names]
    columns = ["pair", "kind", "from", "from_side", "from_rows", "to", "to_side", "to_rows"]
    code = output.rows(
        "show",
        source,
        found.pairs,
        columns=[*columns, "heads", "guessed", "steps", "reason"],
        tables=lambda: [_pairs_table(found)],
        warnings=found.warnings,
        failures=found.failures,
        families=found.families,
        steps=found.steps,
        in_no_pair=apart,
    )
    if apart:
        output.say(f"in no pair: {listed(apart, 12)}")
    return code


def _pairs_table(found: Any) -> Table:
    table = Table([Words("pair"), Words("kind"), Words("from"), Words("to"), "heads", Words("note")])
    table.title = f"{counted(len(found.pairs), 'pair')}, family: {', '.join(found.families)}"
    for row in found.pairs:
        sides = [" ".join(filter(None, (row[f"{end}_side"], row[f"{end}_rows"]))) for end in ("from", "to")]
        notes = ["guessed" if row["guessed"] else "", row["reason"] or "", _some(row["steps"], len(found.steps))]
        heads = "-" if row["heads"] is None or row["reason"] else str(row["heads"])
        table.lines.append([row["pair"], row["kind"], *sides, heads, "; ".join(filter(None, notes))])
    return table


def _some(steps: int, count: int) -> str:
    return f"in {steps} of {count} checkpoints" if steps < count else ""


def _as_rows(skipped: list[Row]) -> list[Row]:
    """Skipped tensors as rows beside those of matrices, for formats that hold one list."""
    return [
        {
            "matrix": one["name"],
            "shape": one["shape"],
            "dtype": one["dtype"],
            "role": None,
            "guessed": False,
            "tied": [],
            "made_of": None,
            "steps": None,
            "reason": one["reason"],
        }
        for one in skipped
    ]


def _tables(found: Any, count: int) -> list[Table]:
    span = counted(count, "checkpoint")
    if found.steps:
        span += f", step {found.steps[0]}" + (f" to {found.steps[-1]}" if count > 1 else "")
    matrices = Table([Words("matrix"), "shape", Words("dtype"), Words("role"), Words("note")], title=span)
    for row in found.matrices:
        matrices.lines.append([row["matrix"], shape(row["shape"]), row["dtype"], _role(row), _note(row, count)])
    tables = [matrices]
    if found.skipped:
        skipped = Table([Words("skipped"), "shape", Words("dtype"), Words("reason")])
        for row in found.skipped:
            skipped.lines.append([row["name"], shape(row["shape"]) or "-", row["dtype"], row["reason"]])
        tables.append(skipped)
    return tables


def _role(row: dict[str, Any]) -> str:
    return f"{row['role']} (guessed)" if row["guessed"] else str(row["role"])


def _note(row: dict[str, Any], count: int) -> str:
    notes = [row["made_of"]] if row["made_of"] else []
    notes += [f"tied: {', '.join(row['tied'])}"] if row["tied"] else []
    return "; ".join(filter(None, [*notes, _some(row["steps"], count)]))
