"""Schedules of the rate: torch's own rates, also where a schedule is made of others, or one sentence."""

from pathlib import Path
from textwrap import indent
from typing import IO

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import agileml
from agileml.application import InputError, Settings, Unit
from agileml.apps.loop.module import ScriptModule
from agileml.apps.loop.optimizers import TorchSchedule
from tests.agileml.apps.loop.scripts import BODY, OPTIMIZER, PREPARE, loop, script, values


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))


SCHEDULES = {
    "step": lambda o: lr_scheduler.StepLR(o, 7),
    "of a tensor": lambda o: lr_scheduler.StepLR(o, 7),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 40),
    "warm restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 9),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda step: 1 / (1 + step)),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.4, 60, cycle_momentum=False),
    "chained": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.StepLR(o, 9), lr_scheduler.ExponentialLR(o, 0.99)]
    ),
    "warm-up, then cosine": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, total_iters=5), lr_scheduler.CosineAnnealingLR(o, 40)], [5]
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_have_the_rates_of_torch(name: str) -> None:
    net = model()
    rate = torch.tensor(0.1, dtype=torch.float64) if name == "of a tensor" else 0.1
    optimizer = torch.optim.SGD(net.parameters(), lr=rate)
    schedule = SCHEDULES[name](optimizer)
    factors = TorchSchedule(schedule, optimizer)
    ahead = factors.factor(50)
    found, wanted = [], []
    for step in range(51):
        found.append(float(optimizer.param_groups[0]["initial_lr"]) * factors.factor(step))
        wanted.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        schedule.step()
    np.testing.assert_allclose(found, wanted, rtol=1e-12)
    assert factors.factor(50) == ahead


class Experiment:
    """Holds what nobody can copy."""

    def __init__(self, file: IO[str]) -> None:
        self.file = file

    def factor(self, step: int) -> float:
        return 1 / (1 + step)


class Factor(Experiment):
    __call__ = Experiment.factor


def test_a_schedule_may_call_a_method_of_an_object_that_cannot_be_copied(tmp_path: Path) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with open(tmp_path / "log", "w") as file:
        by_method = lr_scheduler.LambdaLR(optimizer, Experiment(file).factor)
        chained = lr_scheduler.ChainedScheduler([by_method])
        assert [TorchSchedule(each, optimizer).factor(3) for each in (by_method, chained)] == [0.25, 0.25]
        with pytest.raises(InputError, match=r"LambdaLR cannot be copied \(TypeError: cannot pickle"):
            TorchSchedule(lr_scheduler.LambdaLR(optimizer, Factor(file)), optimizer)


def test_schedules_of_more_than_the_clock_are_refused() -> None:
    net = model()
    optimizer = torch.optim.SGD([{"params": [p]} for p in net.parameters()], lr=0.1, momentum=0.9)
    with pytest.raises(InputError, match="type ReduceLROnPlateau"):
        TorchSchedule(lr_scheduler.ReduceLROnPlateau(optimizer), optimizer)
    with pytest.raises(InputError, match="over another optimizer"):
        TorchSchedule(lr_scheduler.StepLR(torch.optim.SGD(net.parameters()), 3), optimizer)
    unlike = TorchSchedule(
        lr_scheduler.LambdaLR(optimizer, [lambda step: 0.5**step, *[lambda step: 1.0] * 3]), optimizer
    )
    with pytest.raises(InputError, match="by different factors"):
        unlike.factor(1)
    with pytest.raises(InputError, match="changes more than the learning rate"):
        TorchSchedule(lr_scheduler.OneCycleLR(optimizer, 0.4, 60), optimizer).factor(3)


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_that_has_taken_steps_is_refused(name: str) -> None:
    """As one that a script loads from a checkpoint of its own: a machine that joins, and a run that resumes, would take
    these steps twice."""
    optimizer = torch.optim.SGD(model().parameters(), lr=0.1)
    schedule = SCHEDULES[name](optimizer)
    optimizer.step()
    schedule.step()
    schedule.step()
    with pytest.raises(InputError, match="found a schedule that has taken 2 steps, as one that is loaded"):
        TorchSchedule(schedule, optimizer)


GRADUAL = """
class Gradual(torch.optim.lr_scheduler.LRScheduler):
    def __init__(self, optimizer, then):
        self.then = then
        super().__init__(optimizer)
    def get_lr(self):
        if self.last_epoch < 2:
            return [rate / 2 for rate in self.base_lrs]
        self.then.step()
        return self.then.get_last_lr()
schedule = Gradual(optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9))
"""
BY_PASS = PREPARE.replace("=64", '=320, schedule=schedule, schedule_every="pass"')
PASSES = "for number in trainer.passes():\n" + indent(loop(), "    ") + "    schedule.step()\n"


def test_a_schedule_of_the_users_may_be_made_of_others_and_be_stepped_once_a_pass(tmp_path: Path) -> None:
    path = script(tmp_path, optimizer=OPTIMIZER + GRADUAL, prepare=BY_PASS, rest=PASSES)
    result = agileml.run(values(path, clocks=8), sequential=True, out=str(tmp_path / "out"))
    rates = [row["learning_rate"] for row in result.history]
    assert rates == pytest.approx([*[0.025] * 4, *[0.0225] * 2, *[0.02025] * 2])


SAVED = """
rates = torch.optim.lr_scheduler
warm = rates.LinearLR(optimizer, 0.1, total_iters=3)
schedule = rates.SequentialLR(optimizer, [warm, rates.CosineAnnealingLR(optimizer, 20)], [3])
"""


def test_a_loop_may_save_the_state_of_its_schedule(tmp_path: Path) -> None:
    """As checkpoints of a script's own do: it is what plain torch has after as many steps, and loads there."""
    saved = tmp_path / "saved.pt"
    rest = loop(BODY + f"schedule.step()\ntorch.save(schedule.state_dict(), {str(saved)!r})\n")
    prepare = PREPARE.replace("=64", "=64, schedule=schedule")
    app = ScriptModule(
        Settings(model={"script": script(tmp_path, optimizer=OPTIMIZER + SAVED, prepare=prepare, rest=rest)})
    )
    tables, share = {table.name: app.initial(table) for table in app.tables()}, app.load(0)
    for clock in range(6):  # what follows a step runs with the next batch
        app.process(Unit(clock, 0), share, tables)
    app.ended()
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.05, momentum=0.9)
    plain = {"torch": torch, "optimizer": optimizer}
    exec(SAVED, plain)
    for _ in range(5):
        optimizer.step()
        plain["schedule"].step()
    assert torch.load(saved) == plain["schedule"].state_dict()


CAUTIOUS = """
scaler.scale(1000 * nn.functional.cross_entropy(model(batch[0]), batch[1])).backward()
before = scaler.get_scale()
scaler.step(optimizer)
scaler.update()
if scaler.get_scale() >= before:
    schedule.step()
optimizer.zero_grad()
"""


def test_a_loop_may_leave_the_schedules_step_out_where_the_optimizer_took_none(tmp_path: Path) -> None:
    """A GradScaler skips steps, which many loops look out for; rates go by the clock all the same."""
    text = (
        OPTIMIZER.replace("0.05", "0.00005")
        + SAVED
        + 'scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)\n'
    )
    prepare = PREPARE.replace("=64", "=64, schedule=schedule, scaler=scaler")
    path = script(tmp_path, optimizer=text, prepare=prepare, rest=loop(CAUTIOUS))
    result = agileml.run(values(path, clocks=20), sequential=True, out=str(tmp_path / "out"))
    assert 0 < result.summary["skipped_clocks"] < 20
    assert len({row["learning_rate"] for row in result.history}) == 20


def at_clocks(path: str, *clocks: int) -> None:
    """One machine goes through the loop with batches of these clocks, of which a pass has two."""
    app = ScriptModule(Settings(model={"script": path}, slices=1))
    try:
        tables, share = {table.name: app.initial(table) for table in app.tables()}, app.load(0)
        for clock in clocks:
            app.process(Unit(clock, 0), share, tables)
    finally:
        app.ended()


EXPONENTIAL = OPTIMIZER + "schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)\n"


def test_a_loop_that_leaves_the_step_of_a_pass_out_is_refused(tmp_path: Path) -> None:
    """Rates follow from the number of the pass, so those of the run would be others than in plain torch."""
    late = PASSES.replace("    schedule.step()", "    if number >= 2: schedule.step()")
    path = script(tmp_path, optimizer=EXPONENTIAL, prepare=BY_PASS, rest=late)
    with pytest.raises(
        InputError, match="found no call between the passes 0 and 1, expected one for each pass"
    ):
        at_clocks(path, 0, 1, 2)
    at_clocks(path, 3, 4)  # a machine that joins has not seen all of the pass


FIRST = "for number in trainer.passes():\n    if number: schedule.step()\n" + indent(loop(), "    ")
LAST_BATCH = BODY.replace("optimizer.step", "if trainer.clock % 2: schedule.step()\noptimizer.step")
ONCE_A_PASS = {
    "behind it": PASSES,
    "with its last batch": "for number in trainer.passes():\n" + indent(loop(LAST_BATCH), "    "),
    "before the next one": FIRST,
}


@pytest.mark.parametrize("name", ONCE_A_PASS)
def test_a_loop_may_step_its_schedule_anywhere_in_a_pass(name: str, tmp_path: Path) -> None:
    """Also where the machine joins, and where the run goes back to a pass before."""
    path = script(tmp_path, optimizer=EXPONENTIAL, prepare=BY_PASS, rest=ONCE_A_PASS[name])
    at_clocks(path, 0, 1, 2, 3, 4, 1, 2, 3, 4)
    at_clocks(path, 4, 5, 6)
