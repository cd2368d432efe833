"""What a person should know of the weights of a checkpoint: which are refused, and that they are averages."""

from __future__ import annotations

from collections.abc import Iterable

from .words import counted, listed

AVERAGED = "these are averaged (EMA) weights, not the live ones"


def describe_refused(refused: Iterable[tuple[str, str]]) -> str | None:
    """One line on the (name, reason) pairs of the refused tensors of a checkpoint, None where there are none."""
    reasons: dict[str, list[str]] = {}
    for name, reason in refused:
        reasons.setdefault(reason, []).append(name)
    if not reasons:
        return None
    parts = [f"{listed(names, 2)}: {reason}" for reason, names in list(reasons.items())[:2]]
    parts += ["and others for other reasons; `spectrascope show` lists all"] if len(reasons) > 2 else []
    return f"{counted(sum(map(len, reasons.values())), 'weight')} refused: {'; '.join(parts)}"


def few_directions(there: int, needed: int) -> str:
    """What to know of the score of a matrix of low rank."""
    return f"{there} of {needed} directions are above the rounding noise; the score is their mean"
