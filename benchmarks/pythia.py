"""Checkpoints of Pythia's shapes with random weights.

python benchmarks/pythia.py 160m float16 FILE [SEED]
python benchmarks/pythia.py --sharded 160m FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

# width, layers, heads; the MLP is four times as wide throughout
SIZES = {"70m": (512, 6, 8), "160m": (768, 12, 12), "410m": (1024, 24, 16), "2.8b": (2560, 32, 32)}
VOCABULARY = 50304


def shapes(size: str) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the weights of GPT-NeoX, as Hugging Face names them."""
    width, layers, _ = SIZES[size]
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


def write(size: str, dtype: str, path: Path, seed: int = 0) -> Path:
    """Write a checkpoint of independent normal weights."""
    generator = torch.Generator().manual_seed(seed)
    weights = {
        name: (0.02 * torch.randn(*shape, generator=generator)).to(getattr(torch, dtype))
        for name, shape in shapes(size).items()
    }
    save_file(weights, path)
    return path


def decaying(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """float16 weights whose shorter side's directions shrink tenfold, with no singular value below 1e-3 sigma_1."""
    weight = torch.randn(*shape, generator=generator)
    if weight.ndim == 2:
        if shape[0] == shape[1]:  # or the smallest would be near 0
            weight.diagonal().add_(3 * shape[0] ** 0.5)
        scale = torch.linspace(1.0, 10.0, min(shape)).reciprocal()
        weight *= scale[:, None] if shape[0] < shape[1] else scale
    return (0.02 * weight).half()


def write_sharded(size: str, folder: Path) -> Path:
    """Write a checkpoint as Hugging Face does: shards of one layer each, their index, and config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(0)
    width, layers, heads = SIZES[size]
    shards: dict[str, list[str]] = {}
    for name in shapes(size):
        shards.setdefault(name.split(".attention.")[0].split(".mlp.")[0], []).append(name)
    weight_map = {}
    for number, names in enumerate(shards.values(), 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        save_file({name: decaying(shapes(size)[name], generator) for name in names}, folder / file)
        weight_map |= dict.fromkeys(names, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    config = {
        "model_type": "gpt_neox",
        "architectures": ["GPTNeoXForCausalLM"],
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "vocab_size": VOCABULARY,
        "use_parallel_residual": True,
        "tie_word_embeddings": False,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


if __name__ == "__main__":
    if sys.argv[1] == "--sharded":
        write_sharded(sys.argv[2], Path(sys.argv[3]))
    else:
        write(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]) if sys.argv[4:] else 0)
