"""A class without a loop: its defaults, and the results of the same training in a loop."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import agileml
from agileml.application import InputError
from agileml.config.text import ConfigError
from agileml.events.observed import LossScaleChanged
from tests.agileml.apps.loop.scripts import BODY, HEAD, loop, script, values
from tests.agileml.process.engine_rig import reference
from tests.faults.fault_rig import FaultRig, job

ROOM = "tests.agileml.apps.loop.test_training_class"


class Products(agileml.Training):
    """Whether two numbers have the same sign."""

    def __init__(self, hidden: int = 24) -> None:
        self.hidden = hidden

    def build(self) -> nn.Module:
        return nn.Sequential(nn.Linear(12, self.hidden), nn.ReLU(), nn.Linear(self.hidden, 2))

    def datasets(self) -> Any:
        x = np.random.default_rng(0).normal(size=(640, 12)).astype(np.float32)
        y = (x[:, 0] * x[:, 1] > 0).astype(np.int64)
        return (x, y), (x[:100], y[:100])


class Whole(Products):
    """All methods."""

    def loss(self, module: nn.Module, batch: Any) -> Tensor:
        return cross_entropy(module(batch[0]), batch[1], label_smoothing=0.1)

    def evaluate(self, module: nn.Module, batch: Any) -> Mapping[str, Any]:
        right = module(batch[0]).argmax(1) == batch[1]
        return {"error": 1 - right.float().mean(), "mode": (float(module.training), 1.0)}

    def optimizer(self, module: nn.Module) -> torch.optim.Optimizer:
        biases = [p for p in module.parameters() if p.ndim < 2]
        weights = [p for p in module.parameters() if p.ndim > 1]
        return torch.optim.SGD(
            [{"params": weights, "weight_decay": 0.01}, {"params": biases}], lr=0.2, momentum=0.9
        )

    def schedule(self, optimizer: torch.optim.Optimizer) -> Any:
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)


def config(name: str, **model: Any) -> dict[str, Any]:
    return {"application": f"{ROOM}:{name}", "model": {"batch_size": 64, **model}, "clocks": 40, "slices": 8}


def test_two_methods_are_enough(tmp_path: Path) -> None:
    trainer = agileml.Trainer(config("Products"), clocks=300, sequential=True, out=str(tmp_path / "out"))
    result = trainer.run(Products(hidden=48))
    assert result.metrics["test_loss"] < 0.5
    assert set(result.metrics) == {"test_loss", "test_accuracy"}
    module = result.module()
    assert module[0].weight.shape == (48, 12)


def test_a_config_names_the_class_and_machines_that_die_do_not_change_a_bit(tmp_path: Path) -> None:
    plan = [{"at_clock": 5, "join": 2}, {"at_clock": 11, "kill": 1}, {"at_clock": 20, "kill_many": "all"}]
    found = job(config("Whole", arguments={"hidden": 16}), plan=plan)
    ran = FaultRig(found, tmp_path).finish()
    assert ran.sha256 == reference(found)


def test_metrics_of_its_own_are_measured_while_it_trains(tmp_path: Path) -> None:
    result = agileml.run(config("Whole", evaluate_every="pass"), sequential=True, out=str(tmp_path / "out"))
    evaluated = [row for row in result.history if "error" in row]
    assert [row["clock"] for row in evaluated] == [10, 20, 30]
    assert all(row["mode"] == 0.0 for row in evaluated)
    assert set(result.metrics) == {"error", "mode"}


def test_a_loop_that_does_the_same_ends_with_the_same_bits(tmp_path: Path) -> None:
    head = HEAD.replace("nn.BatchNorm1d(24), ", "").replace("nn.Dropout(0.1), ", "")
    optimizer = """
optimizer = torch.optim.SGD([{"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 0.01},
                             {"params": [p for p in model.parameters() if p.ndim < 2]}], lr=0.2, momentum=0.9)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)
"""
    prepare = """
trainer = agileml.Trainer()
model, optimizer, loader = trainer.prepare(model, optimizer, (x, y), batch_size=64, schedule=schedule)
"""
    body = BODY.replace("batch[1])", "batch[1], label_smoothing=0.1)") + "schedule.step()\n"
    path = script(tmp_path, head=head, optimizer=optimizer, prepare=prepare, rest=loop(body))
    looped = agileml.run(values(path, clocks=40), sequential=True, out=str(tmp_path / "loop"))
    classed = agileml.run(config("Whole"), sequential=True, out=str(tmp_path / "class"))
    assert looped.summary["params_sha256"] == classed.summary["params_sha256"]


class Nothing(agileml.Training):
    """Neither method."""


class NoMapping(Products):
    def evaluate(self, module: nn.Module, batch: Any) -> Any:
        return 3.0


SCALED_BODY = """
with torch.autocast("cpu", torch.float16):
    loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
optimizer.zero_grad()
assert scaler.get_scale() in [2.0**n for n in range(40)]
"""


def test_a_grad_scaler_of_a_loop_is_the_section_of_a_class(tmp_path: Path) -> None:
    """float16 that overflows again and again: what is skipped is decided by the clock, with the loop left as it was."""
    optimizer = """
optimizer = torch.optim.AdamW(model.parameters())
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**30, growth_interval=3)
"""
    path = script(
        tmp_path,
        head=HEAD.replace("nn.BatchNorm1d(24), nn.ReLU(), nn.Dropout(0.1)", "nn.ReLU()"),
        optimizer=optimizer,
        prepare="""
trainer = agileml.Trainer()
model, optimizer, loader = trainer.prepare(model, optimizer, (x, y), batch_size=64, scaler=scaler)
""",
        rest=loop(SCALED_BODY),
    )
    machines = job(values(path), plan=[{"at_clock": 9, "kill": 1}, {"at_clock": 20, "join": 1}])
    machines["model"] |= {"device": "cpu"}  # whose autocast the loop names
    by_loop = FaultRig(machines, tmp_path / "rig").finish()
    scale = {"initial": 2.0**30, "interval": 3}
    wanted = machines | {
        "application": f"{ROOM}:Products",
        "model": {"batch_size": 64, "autocast": "float16", "loss_scale": scale, "device": "cpu"},
    }
    assert by_loop.sha256 == reference(wanted)
    assert len(by_loop.of(LossScaleChanged)) > 10


def test_classes_that_are_not_whole_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"Nothing lacks build\(\) and datasets\(\)"):
        agileml.run(config("Nothing"), sequential=True)
    with pytest.raises(ConfigError, match="expected the arguments of Products"):
        agileml.run(config("Products", arguments={"depth": 3}), sequential=True)
    with pytest.raises(ConfigError, match=r"model.loss"):
        agileml.run(config("Products", loss="mse"), sequential=True)
    with pytest.raises(InputError, match="returned float, expected a mapping of metrics"):
        agileml.run(config("NoMapping", evaluate_every=3), sequential=True)
