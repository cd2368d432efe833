"""The oracle, and its weights: what the thesis' public reference code computed on generated input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

FOLDER = Path(__file__).parent / "oracle"
ORACLE: dict[str, Any] = json.loads((FOLDER / "oracle.json").read_text())
ORACLE_INPUTS = np.load(FOLDER / "oracle_inputs.npz")


def recipe(entry: Any, step: int) -> dict[str, torch.Tensor]:
    """The weights of a step (0 or 1) of one of the oracle's recipes."""

    def random(seed: int, shape: list[int]) -> torch.Tensor:
        return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

    return {
        name: random(seed, shape) + (0.1 * random(seed + 1000, shape) if step else 0)
        for name, seed, shape in entry["_params_[name,seed_step0,shape]"]
    }


def svd(matrix: Any) -> tuple[Any, Any, Any]:
    """U, sigma and V in float64, with vectors as columns."""
    u, sigma, vt = np.linalg.svd(np.asarray(matrix, dtype=np.float64), full_matrices=False)
    return u, sigma, vt.T
