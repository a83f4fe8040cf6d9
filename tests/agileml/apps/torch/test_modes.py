"""Train mode and eval mode: each part of a module keeps its own, and only what is in train mode changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import agileml
from agileml.application import Settings, Unit
from agileml.apps.torch.export import torch_state
from agileml.apps.torch.module import TorchModule
from agileml.apps.torch.objective import evaluating
from agileml.core.parameters.optimizer import optimizer
from agileml.core.sequential import run_sequential

X = (np.random.default_rng(1).normal(size=(64, 4)) * 3 + 5).astype(np.float32)
Y = (X[:, 0] > 5).astype(np.int64)
JOB = {
    "application": "torch",
    "clocks": 8,
    "slices": 2,
    "machines": {"reliable": 1, "transient": 1, "max": 2},
}


def build() -> nn.Sequential:
    return nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))


def frozen() -> nn.Sequential:
    net = build()
    net[0].eval()
    return net


def ran(make: Callable[[], nn.Module], tmp_path: Path, **model: Any) -> nn.Module:
    app = TorchModule(build=make, dataset=((X, Y), (X[:20], Y[:20])))
    job = {**JOB, "model": {"batch_size": 32, **model}, "out": str(tmp_path / "out")}
    return agileml.run(job, app, sequential=True).module()


def test_the_statistics_of_a_frozen_batch_norm_stay_through_an_evaluation(tmp_path: Path) -> None:
    found = ran(frozen, tmp_path, evaluate_every=2)
    assert torch.equal(found[0].running_mean, torch.zeros(4))
    assert torch.equal(found[0].running_var, torch.ones(4))
    assert int(found[0].num_batches_tracked) == 0 and int(found[2].num_batches_tracked) == 8
    assert found[2].running_mean.abs().max() > 0.01


@pytest.mark.parametrize("is_from_pretrained", [False, True])
def test_a_module_that_trains_as_a_whole_is_as_before(is_from_pretrained: bool, tmp_path: Path) -> None:
    found = ran(lambda: build().train(not is_from_pretrained), tmp_path, evaluate_every=2)
    assert int(found[0].num_batches_tracked) == int(found[2].num_batches_tracked) == 8


def test_a_frozen_batch_norm_has_the_step_of_plain_torch() -> None:
    app = TorchModule(Settings(model={"batch_size": 32}, slices=1), build=frozen, dataset=(X, Y))
    found = run_sequential(app, optimizer=optimizer("sgd", learning_rate=0.1), clocks=1)
    torch.manual_seed(0)
    plain = frozen()
    sgd = torch.optim.SGD(plain.parameters(), lr=0.1)
    x, y = app.data.train.take(app.minibatches.numbers(Unit(0, 0), app.load(0)))
    cross_entropy(plain(x), y).backward()
    sgd.step()
    ours = torch_state(found, plain)
    for name, theirs in plain.state_dict().items():
        torch.testing.assert_close(ours[name], theirs, rtol=1e-5, atol=1e-6, msg=name)


def test_a_loop_sets_the_modes_itself(tmp_path: Path) -> None:
    """Also around an evaluation, and in a loop that leaves the whole model in eval mode."""
    seen: list[tuple[bool, bool]] = []

    def training(*, is_whole: bool) -> Callable[[], None]:
        def train() -> None:
            trainer = agileml.Trainer()
            model = build()
            made = torch.optim.SGD(model.parameters(), lr=0.1)
            model, made, loader = trainer.prepare(model, made, (X, Y), batch_size=32)
            trainer.evaluate_on((X[:20], Y[:20]), measure, every=1)
            for _ in trainer.passes(4):
                model.train(not is_whole)
                model[0].eval()
                for inputs, target in loader:
                    seen.append((model[0].training, model[2].training))
                    cross_entropy(model(inputs), target).backward()
                    made.step()
                    made.zero_grad()

        return train

    def measure(model: nn.Module, batch: Any) -> Mapping[str, Any]:
        assert not any(part.training for part in model.modules())
        return {"error": cross_entropy(model(batch[0]), batch[1])}

    for is_whole in (False, True):
        seen.clear()
        trainer = agileml.Trainer(JOB, sequential=True, out=str(tmp_path / str(is_whole)))
        found = trainer.run(training(is_whole=is_whole)).module()
        assert set(seen) == {(False, not is_whole)}
        assert torch.equal(found[0].running_mean, torch.zeros(4))
        assert int(found[2].num_batches_tracked) == (0 if is_whole else 8)


class Merged(nn.Module):
    """Does something when its mode changes, as adapters do that merge their weights for evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[bool] = []

    def train(self, mode: bool = True) -> Merged:
        self.calls.append(mode)
        super().train(mode)
        return self


def test_modes_are_put_back_by_the_parts_own_methods() -> None:
    net = nn.Sequential(nn.Dropout(), Merged(), nn.Sequential(nn.Dropout(), nn.Dropout()))
    net[0].eval()
    net[2].eval()
    net[2][1].train()
    before = [part.training for part in net.modules()]
    with evaluating(net):
        assert not any(part.training for part in net.modules())
    assert [part.training for part in net.modules()] == before
    assert net[1].calls == [False, True]
