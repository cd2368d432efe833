"""The user's model and loss: a plain Python file with `build_model` and `evaluate`."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..errors import RequestError, SpectrascopeError, TaskError

TEMPLATE = '''\
"""What spectrascope needs to know of a model: how it is built, and what its losses are."""

import torch


def build_model() -> torch.nn.Module:
    """The model, with any weights: those of checkpoints are put into it."""
    return torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))


def evaluate(model: torch.nn.Module) -> dict[str, float]:
    """Numbers that are better when smaller, by name. The model is in evaluation mode and no gradient is taken.

    It is called many times: load data once, above, and take the same data in the same order each time.
    """
    device = next(model.parameters()).device
    inputs, labels = torch.randn(256, 64, generator=torch.Generator().manual_seed(0)), torch.arange(256) % 10
    outputs = model(inputs.to(device)).cpu()
    return {
        "val/loss": torch.nn.functional.cross_entropy(outputs, labels).item(),
        "val/error": (outputs.argmax(dim=1) != labels).float().mean().item(),
    }


# Needed only where the model has batch norm: its statistics are estimated anew on these inputs.
# def calibration_batches():
#     for start in range(0, len(train_inputs), 512):
#         yield train_inputs[start : start + 512]
'''


@dataclass(frozen=True)
class Task:
    """A model and its losses. `label` is how the user named it."""

    label: str
    build_model: Callable[[], torch.nn.Module]
    evaluate: Callable[[torch.nn.Module], Mapping[str, float]]
    calibration_batches: Callable[[], Iterable[Any]] | None = None

    def model(self, device: str) -> torch.nn.Module:
        """A model of this task on a device, in evaluation mode and without gradients. Raises TaskError."""
        with self._calling("build_model"):
            model = self.build_model()
        if not isinstance(model, torch.nn.Module):
            raise TaskError(f"{self.label}: build_model gives a {type(model).__name__}, not a torch.nn.Module")
        return model.to(device).eval().requires_grad_(False)

    def losses(self, model: torch.nn.Module) -> dict[str, float]:
        """What `evaluate` says of a model, in evaluation mode; NaN and infinity as they are. Raises TaskError."""
        model.eval()
        with torch.no_grad(), self._calling("evaluate"):
            found = self.evaluate(model)
        if not isinstance(found, Mapping) or not found:
            raise TaskError(f"{self.label}: evaluate gives {found!r:.80}, not a mapping of names to numbers")
        try:
            return {str(name): float(value) for name, value in found.items()}
        except (TypeError, ValueError, OverflowError) as error:
            raise TaskError(f"{self.label}: evaluate gives {found!r:.80}, of which not all are numbers") from error

    def feed(self, model: torch.nn.Module, inputs: Callable[[Any], Any]) -> None:
        """Call a model on all calibration batches, of each of which `inputs` gives what the model takes.

        Raises TaskError where the task gives none, or one that the model does not take.
        """
        is_fed = False
        for batch in self.batches():
            is_fed = True
            with self._calling("the model, on a calibration batch,"):
                model(inputs(batch))
        if not is_fed:
            raise TaskError(
                f"{self.label}: calibration_batches gives nothing; it is called for every set of weights, and has to "
                "give its batches each time"
            )

    def batches(self) -> Iterable[Any]:
        """Inputs for the statistics of batch norm. Raises TaskError where the task has none."""
        if self.calibration_batches is None:
            raise TaskError(
                f"{self.label}: the model has batch norm, whose statistics are estimated anew: add a function "
                "calibration_batches() that gives inputs, or leave them interpolated with --no-recalibrate"
            )
        with self._calling("calibration_batches"):
            yield from self.calibration_batches()

    @contextmanager
    def _calling(self, function: str) -> Any:
        try:
            with redirect_stdout(sys.stderr):  # results alone go to stdout
                yield
        except (SpectrascopeError, KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # sys.exit too
            raise TaskError(f"{self.label}: {function} raised {_cause(error)}") from error


def load_task(text: str) -> Task:
    """The task in `path/to/task.py`, `package.module`, or, of either, an object in it: `task.py:name`.

    Raises RequestError where there is none, and TaskError where it cannot be imported or lacks a function.
    """
    place, colon, name = text.rpartition(":") if not Path(text).exists() else (text, "", "")
    place = place if colon else text
    if not place or (colon and not name):
        raise RequestError(f"--task {text!r} names no task: give task.py, package.module, or task.py:name")
    found: Any = _import_file(Path(place)) if place.endswith(".py") else _import_module(place)
    if colon:
        if not hasattr(found, name):
            raise RequestError(f"--task {text}: {place} has no {name}")
        found = getattr(found, name)
    for function in ("build_model", "evaluate"):
        if not callable(getattr(found, function, None)):
            raise TaskError(f"{text} has no function {function}; `spectrascope task init` writes a template")
    return Task(text, found.build_model, found.evaluate, getattr(found, "calibration_batches", None))


def _import_file(path: Path) -> Any:
    if not path.is_file():
        raise RequestError(f"--task {path}: no such file; `spectrascope task init` writes a template")
    spec = importlib.util.spec_from_file_location(f"spectrascope_task_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickles look there
    sys.path.insert(0, str(path.resolve().parent))  # a task imports what lies beside it, perhaps later
    with _importing(str(path)):
        spec.loader.exec_module(module)
    return module


def _import_module(name: str) -> Any:
    sys.path.insert(0, "")
    try:
        with _importing(name):
            return importlib.import_module(name)
    except TaskError as error:
        cause = error.__cause__
        if isinstance(cause, ModuleNotFoundError) and cause.name and name.startswith(cause.name):
            raise RequestError(f"--task {name}: neither a file that ends in .py nor a module that is found") from error
        raise


@contextmanager
def _importing(label: str) -> Iterator[None]:
    try:
        with redirect_stdout(sys.stderr):
            yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # sys.exit too
        raise TaskError(f"{label}: cannot be imported: {_cause(error)}") from error


def _cause(error: BaseException) -> str:
    """What was raised, and the line of the user's own that did it."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "spectrascope/" not in frame.filename]
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    if isinstance(error, SyntaxError) and error.lineno:
        return f"{type(error).__name__}: {error.msg} (line {error.lineno})"
    first_line = (str(error).strip().splitlines() or [""])[0][:200]
    return f"{type(error).__name__}{': ' * bool(first_line)}{first_line}{where}"
