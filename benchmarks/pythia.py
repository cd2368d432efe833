"""Checkpoints of Pythia's shapes with random weights: `python benchmarks/pythia.py 160m float16 FILE`."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

# width and layers; the vocabulary is 50,304 rows and the MLP four times as wide throughout
SIZES = {"70m": (512, 6), "160m": (768, 12), "410m": (1024, 24)}
VOCABULARY = 50304


def shapes(size: str) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the weights of GPT-NeoX, as Hugging Face names them."""
    width, layers = SIZES[size]
    found: dict[str, tuple[int, ...]] = {"gpt_neox.embed_in.weight": (VOCABULARY, width)}
    for layer in range(layers):
        at = f"gpt_neox.layers.{layer}"
        found |= {
            f"{at}.attention.query_key_value.weight": (3 * width, width),
            f"{at}.attention.query_key_value.bias": (3 * width,),
            f"{at}.attention.dense.weight": (width, width),
            f"{at}.attention.dense.bias": (width,),
            f"{at}.mlp.dense_h_to_4h.weight": (4 * width, width),
            f"{at}.mlp.dense_h_to_4h.bias": (4 * width,),
            f"{at}.mlp.dense_4h_to_h.weight": (width, 4 * width),
            f"{at}.mlp.dense_4h_to_h.bias": (width,),
        }
    return found | {"embed_out.weight": (VOCABULARY, width)}


def write(size: str, dtype: str, path: Path) -> Path:
    """Write a checkpoint of independent normal weights."""
    generator = torch.Generator().manual_seed(0)
    weights = {
        name: (0.02 * torch.randn(*shape, generator=generator)).to(getattr(torch, dtype))
        for name, shape in shapes(size).items()
    }
    save_file(weights, path)
    return path


if __name__ == "__main__":
    write(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
