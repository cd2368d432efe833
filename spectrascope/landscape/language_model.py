"""A built-in task for causal language models of `transformers`: the mean loss of a token on a text of the user's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from ..checkpoints import is_on_the_hub
from ..errors import RequestError, TaskError
from .task import Task

NAME = "hf-lm"
# A window of a model that reads longer ones; attention takes the square of it.
LONGEST_WINDOW = 1024


def language_model_task(source: str, text: Path, tokens: int) -> Task:
    """The task for the model whose config.json and tokenizer lie beside a checkpoint, or in its repository.

    The first `tokens` tokens of the text are read in windows as long as the model's, 1,024 at most; each token but the
    first of a window is predicted from those before it. Raises RequestError where transformers, the text, config.json
    or the tokenizer is not there.
    """
    try:
        from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        raise RequestError(f"--task {NAME} needs transformers: pip install 'spectrascope[hf]'") from error
    place, revision = _place(source)
    config = _from(place, "config.json", lambda: AutoConfig.from_pretrained(place, revision=revision))
    tokenizer = _from(place, "a tokenizer", lambda: AutoTokenizer.from_pretrained(place, revision=revision))
    window = min(getattr(config, "max_position_embeddings", None) or LONGEST_WINDOW, LONGEST_WINDOW)
    windows = _windows(tokenizer, text, tokens, window)

    def evaluate(model: torch.nn.Module) -> dict[str, float]:
        device = next(model.parameters()).device
        total = torch.zeros((), dtype=torch.float64)
        for ids in windows:
            logits = model(input_ids=ids[None].to(device)).logits[0, :-1].float().cpu()
            total += torch.nn.functional.cross_entropy(logits, ids[1:], reduction="sum").double()
        return {"loss": float(total) / sum(len(ids) - 1 for ids in windows)}

    build: Any = AutoModelForCausalLM.from_config
    return Task(NAME, lambda: StoredNames(build(config).float()), evaluate)


class StoredNames(torch.nn.Module):
    """A model of transformers whose weights have the names that its files have, which may be older than the model's."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: Any, **named: Any) -> Any:
        return self.model(*inputs, **named)

    def state_dict(self, *arguments: Any, **options: Any) -> dict[str, torch.Tensor]:
        """Views of the model's weights. Raises TaskError where a file holds them in another shape than as views."""
        own: dict[str, torch.Tensor] = self.model.state_dict()
        try:
            from transformers.core_model_loading import revert_weight_conversion
        except ImportError:  # before transformers 5 names were the same
            return own
        stored: dict[str, torch.Tensor] = revert_weight_conversion(self.model, dict(own))
        memory = {tensor.untyped_storage().data_ptr() for tensor in own.values()}
        copies = [name for name, tensor in stored.items() if tensor.untyped_storage().data_ptr() not in memory]
        if copies:
            raise TaskError(f"--task {NAME}: transformers computes {copies[0]} as it saves; write a task of your own")
        return stored

    def named_parameters(self, *arguments: Any, **options: Any) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """Those of the model in its order, under the names in files."""
        names: dict[int, list[str]] = {}
        for name, tensor in self.state_dict().items():
            names.setdefault(tensor.untyped_storage().data_ptr(), []).append(name)
        for _, parameter in self.model.named_parameters():
            for name in names[parameter.untyped_storage().data_ptr()]:
                yield name, parameter


def _windows(tokenizer: Any, text: Path, tokens: int, window: int) -> list[torch.Tensor]:
    try:
        content = text.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise RequestError(f"--text {text}: cannot be read ({getattr(error, 'strerror', None) or error})") from error
    ids = torch.tensor(tokenizer(content, add_special_tokens=False)["input_ids"][:tokens], dtype=torch.long)
    windows = [part for part in ids.split(window) if len(part) > 1]
    if not windows:
        raise RequestError(f"--text {text}: {len(ids)} tokens are too few, two at least are needed")
    return windows


def _place(source: str) -> tuple[str, str | None]:
    """What transformers calls the model: a repository and its revision, or a directory."""
    if is_on_the_hub(source):
        from ..checkpoints.hub import parse

        address = parse(source)
        return address.repository, address.revision
    path = Path(source)
    return str(path if path.is_dir() else path.resolve().parent), None


def _from(place: str, what: str, read: Any) -> Any:
    try:
        return read()
    except Exception as error:  # transformers raises whatever its readers raise
        first_line = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise TaskError(f"--task {NAME}: {what} is not in {place}, or cannot be read ({first_line})") from error
