"""What did training do to the weights? Singular spectra of checkpoint trajectories.

    import spectrascope
    run = spectrascope.analyze("runs/grok", "grok.spectra")
    sigma = run.singular_values("mlp.up.weight")     # (steps, R)
    spectrascope.effective_rank(sigma)               # (steps,)
    spectrascope.align(run, ["q_k"])                 # rows: step, pair, score, baseline, ...

Importing this package imports neither torch nor matplotlib: names below are loaded when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .errors import (
        CheckpointError,
        NothingAnalysed,
        RequestError,
        SpectrascopeError,
        StoreDamaged,
        StoreError,
        StoreLocked,
        StoreUnwritable,
    )
    from .metrics.agreement import agreement, agreement_diagonal, subspace_overlap
    from .metrics.alignment import alignment, random_baseline
    from .metrics.rank import (
        effective_rank,
        frobenius_norm,
        norm_effective_rank,
        nuclear_norm,
        numerical_rank,
        rank_99,
        spectral_entropy,
        spectral_norm,
        stable_rank,
    )
    from .pipeline import analyze
    from .report.agreement_rows import sva
    from .report.alignment_rows import align
    from .store import Trajectory, open

_HOME = {
    "analyze": "pipeline",
    "align": "report.alignment_rows",
    "sva": "report.agreement_rows",
    **dict.fromkeys(["alignment", "random_baseline"], "metrics.alignment"),
    **dict.fromkeys(["agreement", "agreement_diagonal", "subspace_overlap"], "metrics.agreement"),
    "open": "store",
    "Trajectory": "store",
    **dict.fromkeys(
        [
            "spectral_entropy",
            "effective_rank",
            "norm_effective_rank",
            "stable_rank",
            "spectral_norm",
            "frobenius_norm",
            "nuclear_norm",
            "rank_99",
            "numerical_rank",
        ],
        "metrics.rank",
    ),
    **dict.fromkeys(
        [
            "SpectrascopeError",
            "RequestError",
            "CheckpointError",
            "NothingAnalysed",
            "StoreError",
            "StoreLocked",
            "StoreDamaged",
            "StoreUnwritable",
        ],
        "errors",
    ),
}

__all__ = [
    "CheckpointError",
    "NothingAnalysed",
    "RequestError",
    "SpectrascopeError",
    "StoreDamaged",
    "StoreError",
    "StoreLocked",
    "StoreUnwritable",
    "Trajectory",
    "agreement",
    "agreement_diagonal",
    "align",
    "alignment",
    "analyze",
    "effective_rank",
    "frobenius_norm",
    "norm_effective_rank",
    "nuclear_norm",
    "numerical_rank",
    "open",
    "random_baseline",
    "rank_99",
    "spectral_entropy",
    "spectral_norm",
    "stable_rank",
    "subspace_overlap",
    "sva",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'spectrascope' has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
