"""Loops that freeze and unfreeze layers as they go: the steps of plain torch, or one sentence."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import agileml
from agileml.application import InputError, Settings
from agileml.apps.loop.module import ScriptModule
from agileml.apps.loop.source import FunctionSource

X = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
Y = (X[:, 0] > 0).long()
JOB = {"clocks": 4, "slices": 1, "machines": {"reliable": 1, "transient": 0, "max": 1}}
Trains = Callable[[int], bool]  # by the number of the pass: the lower layer is to train


def build() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))


def training(trains: Trains, *, is_frozen: bool = False, is_early: bool = False) -> Callable[[], None]:
    """A loop of 4 passes. is_frozen: at prepare(). is_early: the first pass is prepared for before the loop."""

    def train() -> None:
        trainer = agileml.Trainer()
        model = build()
        model[0].requires_grad_(not is_frozen)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        model, optimizer, loader = trainer.prepare(model, optimizer, (X, Y), batch_size=64)
        if is_early:
            model[0].requires_grad_(trains(0))
        for number in trainer.passes(4):
            model[0].requires_grad_(trains(number))
            for inputs, target in loader:
                cross_entropy(model(inputs), target).backward()
                optimizer.step()
                optimizer.zero_grad()

    return train


def in_plain_torch(trains: Trains) -> nn.Module:
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for number in range(4):
        model[0].requires_grad_(trains(number))
        cross_entropy(model(X), Y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def ran(train: Callable[[], Any], tmp_path: Path) -> agileml.Result:
    trainer = agileml.Trainer(JOB, sequential=True, out=str(tmp_path / "out"))
    return trainer.run(train)


SCHEDULES: dict[str, Trains] = {
    "frozen later": lambda number: number < 2,
    "trained later": lambda number: number >= 1,
    "in turns": lambda number: number in (0, 2),
}


@pytest.mark.parametrize(
    ("name", "is_early"), [*((name, False) for name in SCHEDULES), ("trained later", True)]
)
def test_a_layer_that_trains_in_some_passes_has_the_steps_of_plain_torch(
    name: str, is_early: bool, tmp_path: Path
) -> None:
    result = ran(training(SCHEDULES[name], is_early=is_early), tmp_path)
    plain = in_plain_torch(SCHEDULES[name])
    for (each, ours), theirs in zip(
        result.module().state_dict().items(), plain.state_dict().values(), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6, msg=each)


def test_the_process_that_tried_the_loop_writes_the_model() -> None:
    """Its trial has left the lower layer frozen, which the machines' parameters are not."""
    app = ScriptModule(source=FunctionSource(training(lambda number: number >= 1))).with_settings(
        Settings(slices=1)
    )
    tables = {table.name: copy.deepcopy(app.initial(table)) for table in app.tables()}
    app.check()
    assert not app.flat.module[0].weight.requires_grad
    model = app.as_model(tables)
    app.ended()
    assert all(torch.equal(model[name], tensor) for name, tensor in build().state_dict().items())


def test_a_layer_that_was_frozen_at_prepare_cannot_be_trained_later(tmp_path: Path) -> None:
    """No table has a place for it: it would stay as it was."""
    with pytest.raises(
        InputError, match=r"parameter '0\.weight' that needs a gradient and did not at prepare"
    ):
        ran(training(lambda number: number in (1, 2), is_frozen=True), tmp_path)
    ran(training(lambda number: False, is_frozen=True), tmp_path / "frozen")
