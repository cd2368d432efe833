"""`spectrascope perturb`: a random step away from a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import NothingAnalysed
from ..report.tables import Table, Words, number
from ._options import LARGEST_SEED, DebugOption, Format, FormatOption, QuietOption, TrustPickleOption
from ._output import Output


def perturb(
    checkpoint: Annotated[str, typer.Argument(metavar="CKPT", help="A checkpoint.")],
    scale: Annotated[float, typer.Option(min=0, help="Length of the step, as a share of each matrix' norm.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="Where it is written: .safetensors.")],
    seed: Annotated[int, typer.Option(min=0, max=LARGEST_SEED, help="Of the noise.")] = 0,
    no_rescale: Annotated[
        bool, typer.Option("--no-rescale", help="Leave the norms as they come, rather than those before.")
    ] = False,
    include_last: Annotated[bool, typer.Option("--include-last", help="The last matrix too.")] = False,
    skip_embeddings: Annotated[bool, typer.Option("--skip-embeddings", help="Leave embeddings alone.")] = False,
    trust_pickle: TrustPickleOption = False,
    format: FormatOption = Format.table,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> int:
    """Move every matrix but the last one by random noise of SCALE times its norm, and write the checkpoint.

    W' = W + SCALE ||W|| eps / ||eps||, then brought back to the norm of W. Train on from such checkpoints and compare
    the ends with `lmc` and `sva`.
    """
    output = Output(format, quiet)
    from ..landscape.perturbation import perturb_checkpoint
    from ..landscape.saving import savable
    from ..landscape.weights import the_only

    out = savable("-o", out)
    reference = the_only(checkpoint, trust_pickle)
    try:
        rows, failures = perturb_checkpoint(reference, out, scale, seed, not no_rescale, include_last, skip_embeddings)
    except NothingAnalysed as error:
        for cause in error.causes:
            output.fail(cause)
        raise
    output.say(f"perturbed checkpoint: {out}")
    columns = ["matrix", "norm_before", "norm_after", "cosine", "reason"]
    table = Table([Words("matrix"), "norm before", "after", "cosine", Words("note")])
    for row in rows:
        numbers = [number(row[name]) for name in ("norm_before", "norm_after", "cosine")]
        table.lines.append([row["matrix"], *numbers, row["reason"] or ""])
    return output.rows("perturb", checkpoint, rows, columns=columns, tables=lambda: [table], failures=failures)
