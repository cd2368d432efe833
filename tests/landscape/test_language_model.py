"""The built-in task for causal language models, on tiny models that transformers writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import assert_plain
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, PreTrainedTokenizerFast

TEXT = "what did training do to the weights ? " * 40
WORDS = sorted(set(TEXT.split()))


def write_model(folder: Path, seed: int) -> torch.nn.Module:
    """A model and a tokenizer of words, with a mask that models of today no longer keep."""
    torch.manual_seed(seed)
    config = GPTNeoXConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
        hidden_dropout=0.5,
    )
    model = GPTNeoXForCausalLM(config).eval()
    model.save_pretrained(folder)
    tokenizer = Tokenizer(models.WordLevel({word: place for place, word in enumerate(WORDS)}, unk_token=WORDS[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    return model


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("corpus.txt").write_text(TEXT)


def expected_loss(model: Any, tokens: int) -> float:
    """Each window of 32 on its own; every token but the first of a window is predicted."""
    ids = torch.tensor([WORDS.index(word) for word in TEXT.split()[:tokens]])
    total = count = 0.0
    with torch.no_grad():
        for window in ids.split(32):
            if len(window) > 1:
                total += float(model(window[None], labels=window[None]).loss) * (len(window) - 1)
                count += len(window) - 1
    return total / count


def test_loss_between_two_language_models(cli: Any) -> None:
    ends = [write_model(Path(name), seed) for seed, name in enumerate("ab")]
    command = ["lmc", "a", "b", "--task", "hf-lm", "--text", "corpus.txt", "--tokens", "100", "--points", "3"]
    found = cli(*command, "--format", "json")
    assert_plain(found)
    (row,) = found.json["rows"]
    assert row["metric"] == "loss"
    assert row["curve"][0] == pytest.approx(expected_loss(ends[0], 100), rel=1e-5)
    assert row["curve"][2] == pytest.approx(expected_loss(ends[1], 100), rel=1e-5)
    assert cli(*command, "--format", "json").json["rows"] == [row]
    pruned = cli("prune", "a", "--task", "hf-lm", "--text", "corpus.txt", "--tokens", "100", "--svd", "-f", "json")
    (loss,) = [one for one in pruned.json["rows"] if "metric" in one]
    assert loss["before"] == row["curve"][0]


def test_masks_of_old_files_do_not_matter(cli: Any) -> None:
    from safetensors.torch import load_file, save_file

    write_model(Path("a"), 0)
    weights = load_file("a/model.safetensors")
    old = {"gpt_neox.layers.0.attention.masked_bias": torch.tensor(-1e9)}
    old |= {"gpt_neox.layers.0.attention.bias": torch.ones(1, 1, 32, 32, dtype=torch.bool).tril()}
    command = ["lmc", "a", "a", "--task", "hf-lm", "--text", "corpus.txt", "--points", "2", "--format", "json"]
    before = cli(*command).json["rows"]
    save_file(weights | old, "a/model.safetensors", metadata={"format": "pt"})
    assert cli(*command).json["rows"] == before


def test_what_is_not_there(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(Path("a"), 0)
    assert "--task hf-lm and --text FILE belong together" in cli("lmc", "a", "a", "--task", "hf-lm").err
    command = ["lmc", "a", "a", "--task", "hf-lm", "--text"]
    assert "--text nope.txt: cannot be read (No such file" in cli(*command, "nope.txt").err
    Path("short.txt").write_text("what")
    assert "1 tokens are too few" in cli(*command, "short.txt").err
    Path("a/config.json").unlink()
    found = cli(*command, "corpus.txt")
    assert (found.code, found.out) == (1, "")
    assert "config.json is not in a, or cannot be read" in found.err
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    assert "pip install 'spectrascope[hf]'" in cli(*command, "corpus.txt").err
