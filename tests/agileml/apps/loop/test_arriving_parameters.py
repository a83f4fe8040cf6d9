"""Evaluations of the user's own while parameters arrive: none is read before it is here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import agileml
from agileml.application import ArrivingTables, Settings, Unit
from agileml.apps.loop.module import ScriptModule
from agileml.apps.loop.source import FunctionSource
from agileml.apps.loop.training import TrainingModule
from agileml.apps.torch.module import TorchModule

X = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
Y = (X[:, 0] > 0).long()


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def measure(module: nn.Module, batch: Any) -> Mapping[str, Any]:
    return {"test_loss": cross_entropy(module(batch[0]), batch[1])}


class Signs(agileml.Training):
    def build(self) -> nn.Module:
        return build()

    def datasets(self) -> Any:
        return (X, Y), (X, Y)

    def evaluate(self, module: nn.Module, batch: Any) -> Mapping[str, Any]:
        return measure(module, batch)


def train() -> None:
    trainer = agileml.Trainer()
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = trainer.prepare(model, optimizer, (X, Y), batch_size=16)
    trainer.evaluate_on((X, Y), measure, every=1)
    for inputs, target in loader:
        cross_entropy(model(inputs), target).backward()
        optimizer.step()
        optimizer.zero_grad()


MODEL = {"batch_size": 16, "evaluate_every": 1}
KINDS: dict[str, Callable[[], TorchModule]] = {
    "module": lambda: TorchModule(Settings(model=MODEL), build=build, dataset=((X, Y), (X, Y))),
    "class": lambda: TrainingModule(Settings(model=MODEL), Signs),
    "loop": lambda: ScriptModule(Settings(), FunctionSource(train)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_an_evaluation_waits_for_the_parameters(kind: str) -> None:
    app = KINDS[kind]()
    tables = {table.name: np.array(app.initial(table)) for table in app.tables()}
    share = app.load(0)

    def streamed(clock: int) -> Mapping[str, tuple[float, float]]:
        late = {name: np.full_like(table, np.nan) for name, table in tables.items()}

        def wait(name: str, start: int, stop: int) -> None:
            late[name].reshape(-1)[start:stop] = tables[name].reshape(-1)[start:stop]

        arriving = ArrivingTables(late, wait)
        return app.process_streaming([Unit(clock, 0)], [share], arriving, lambda *_: None).metrics

    streamed(0)  # the uses of parameters are learnt
    expected = app.process_many([Unit(1, 0)], [share], {}, tables)
    assert expected is not None and expected.metrics
    assert streamed(1) == expected.metrics
    app.ended()
