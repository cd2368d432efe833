"""A task as a user writes one: which model, and which loss, the environment says."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import SimpleNamespace

import torch


def _whitened() -> torch.Tensor:
    x = torch.randn(4096, 2, generator=torch.Generator().manual_seed(0))
    x = x - x.mean(0)
    factor = torch.linalg.cholesky(torch.cov(x.T))
    return torch.linalg.solve(factor, x.T).T


X = _whitened()
Y = X.sum(1, keepdim=True) / 2**0.5


def _net() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(2, 1, bias=False), torch.nn.BatchNorm1d(1, affine=False))


def _error(model: torch.nn.Module) -> dict[str, float]:
    return {"mse": torch.nn.functional.mse_loss(model(X), Y).item()}


def _batches() -> Iterator[torch.Tensor]:
    yield from X.split(1024)


# Case 46: the midpoint of two directions looks bad for want of new statistics alone.
normed = SimpleNamespace(build_model=_net, evaluate=_error, calibration_batches=_batches)
without_batches = SimpleNamespace(build_model=_net, evaluate=_error)


class Bowl(torch.nn.Module):
    """The loss is the squared distance from 0: inside the hull of points at one distance it is always smaller."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(int(os.environ.get("BOWL", "20000"))))
        self.dropout = torch.nn.Dropout(0.5)
        self.register_buffer("count", torch.tensor(0))

    def forward(self) -> torch.Tensor:
        return (self.dropout(self.weight).double() ** 2).sum()


bowl = SimpleNamespace(build_model=lambda: Bowl().train(), evaluate=lambda model: {"loss": model().item()})
broken = SimpleNamespace(
    build_model=Bowl,
    evaluate=lambda model: {"loss": float("nan") if 0.4 < model.weight[0] < 0.6 else 1.0, "steady": 2.0},
)
raising = SimpleNamespace(build_model=Bowl, evaluate=lambda model: {"loss": 1 / 0})
text = SimpleNamespace(build_model=Bowl, evaluate=lambda model: {"loss": "high"})
nothing = SimpleNamespace(build_model=lambda: 3, evaluate=lambda model: {})
lacking = SimpleNamespace(build_model=Bowl)


class Table(torch.nn.Module):
    """Case 48: three names and shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.fc = torch.nn.Embedding(10, 4), torch.nn.Linear(4, 6, bias=False)
        self.scale = torch.nn.ParameterDict({"weight": torch.ones(1, 4)})


table = SimpleNamespace(build_model=Table, evaluate=lambda model: {"loss": 1 / 0})


_once = iter(list(X.split(1024)))
used_up = SimpleNamespace(build_model=_net, evaluate=_error, calibration_batches=lambda: _once)
empty = SimpleNamespace(build_model=_net, evaluate=_error, calibration_batches=lambda: [])
misfit = SimpleNamespace(build_model=_net, evaluate=_error, calibration_batches=lambda: [torch.ones(3, 5)])


class Tied(torch.nn.Module):
    """The first and the last layer share their weights."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (torch.nn.Linear(4, 4, bias=False) for _ in range(3))
        self.c.weight = self.a.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.c(self.b(self.a(x)).tanh())


tied = SimpleNamespace(build_model=Tied, evaluate=lambda model: {"loss": model(torch.eye(4)).square().sum().item()})


def _talk(model: torch.nn.Module) -> dict[str, float]:
    print("said by the task")
    return {"loss": model().item()}


def _exit(model: torch.nn.Module) -> dict[str, float]:
    raise SystemExit(0)


class WithMore(Bowl):
    """Keeps something in its state dict that is no tensor."""

    def get_extra_state(self) -> dict[str, int]:
        return {"version": 3}

    def set_extra_state(self, state: object) -> None:
        pass


_moods = iter(range(1000))


def _moody(model: torch.nn.Module) -> dict[str, float]:
    return {"loss": 1.0} | ({"sometimes": 2.0} if next(_moods) % 3 == 0 else {})


talking = SimpleNamespace(build_model=Bowl, evaluate=_talk)
exiting = SimpleNamespace(build_model=Bowl, evaluate=_exit)
endless = SimpleNamespace(build_model=Bowl, evaluate=lambda model: {"loss": 10**400})
with_more = SimpleNamespace(build_model=WithMore, evaluate=lambda model: {"loss": model().item()})
moody = SimpleNamespace(build_model=Bowl, evaluate=_moody)
