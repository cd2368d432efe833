"""The options that say which model and which loss, and the model that they mean."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import RequestError

if TYPE_CHECKING:
    from ..landscape.runner import Runner

TASK_HELP = "Your model and loss: task.py, package.module, task.py:name; or hf-lm, with --text."
TaskOption = Annotated[str, typer.Option("--task", metavar="FILE", help=TASK_HELP)]
OptionalTaskOption = Annotated[str | None, typer.Option("--task", metavar="FILE", help=TASK_HELP)]
TextOption = Annotated[
    Path | None, typer.Option("--text", metavar="FILE", help="With --task hf-lm: a text in UTF-8 to take the loss on.")
]
TokensOption = Annotated[int, typer.Option("--tokens", min=2, help="With --task hf-lm: how many tokens of it.")]
NoRecalibrateOption = Annotated[
    bool, typer.Option("--no-recalibrate", help="Leave the statistics of batch norm as the weights come.")
]
DeviceOption = Annotated[str, typer.Option(help="Where the model runs: cpu, cuda, cuda:1, ...")]


def runner_of(task: str, text: Path | None, tokens: int, source: str, device: str, recalibrated: bool) -> Runner:
    """The model that is meant, on its device; `source` is the first checkpoint. Raises RequestError and TaskError."""
    from ..landscape.language_model import NAME, language_model_task
    from ..landscape.runner import runner_for
    from ..landscape.task import load_task

    if (task == NAME) != (text is not None):
        raise RequestError(f"--task {NAME} and --text FILE belong together")
    found = language_model_task(source, text, tokens) if text is not None else load_task(task)
    return runner_for(found, device, recalibrated)
