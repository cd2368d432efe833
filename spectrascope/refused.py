"""Weights that are there and are not read as numbers, in words: codes of few bits, functions that no file holds."""

from __future__ import annotations

from collections.abc import Iterable

from .words import counted, listed


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
