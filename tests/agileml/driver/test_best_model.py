"""The best parameters of a run stay in a file: those that were evaluated, whatever happens to machines meanwhile."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import agileml
from agileml.apps.torch.module import TorchModule
from agileml.config.job import from_values
from agileml.config.text import ConfigError
from agileml.core.protocol.commands import Finished
from agileml.driver.best_model import BestModel, BestRule, Parts
from agileml.errors import RunError
from agileml.events.observed import BestKept, Evaluated
from agileml.events.schema import Logged, from_line, to_line
from agileml.process.head import HeadState
from agileml.process.spec import RunSpec
from agileml.runs.folder import RunFolder
from agileml.session import run_job
from tests.agileml.core.fixtures import Script, make_job
from tests.faults.fault_rig import FaultRig

RNG = np.random.default_rng(1)
X = RNG.normal(size=(64, 6)).astype(np.float32)
Y = (X[:, 0] * X[:, 1] > 0).astype(np.int64)
DATA = ((X[:40], Y[:40]), (X[40:], Y[40:]))


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))


def app() -> TorchModule:
    return TorchModule(build=build, dataset=DATA)


def values(**more: Any) -> dict[str, Any]:
    job = {
        "application": "torch",
        "model": {"batch_size": 16, "evaluate_every": 5},
        # So high that the test loss has its minimum early.
        "optimizer": {
            "kind": "adamw",
            "learning_rate": 0.1,
        },
        "clocks": 33,
        "seed": 3,
        "slices": 4,
        "machines": {"reliable": 1, "transient": 2, "max": 4},
        "keep_best": {"metric": "test_loss"},
    }
    return job | more


def alone(folder: Path, **more: Any) -> agileml.Result:
    return agileml.run(values(**more), app(), sequential=True, out=str(folder))


def is_same(one: Path, other: Path) -> bool:
    first, second = load_file(one), load_file(other)
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


def test_the_best_of_what_was_evaluated_is_kept(tmp_path: Path) -> None:
    result = alone(tmp_path / "whole")
    seen = {row["clock"]: row["test_loss"] for row in result.history if "test_loss" in row}
    best = result.summary["best"]
    assert sorted(seen) == [5, 10, 15, 20, 25, 30]
    assert best == {
        "metric": "test_loss",
        "value": min(seen.values()),
        "clock": min(seen, key=lambda c: seen[c]),
    }
    assert best["clock"] < 30 and best["value"] < result.metrics["test_loss"]
    until_best = alone(tmp_path / "best", clocks=best["clock"], keep_best=None)
    assert is_same(result.folder / "best.safetensors", until_best.folder / "model.safetensors")
    assert until_best.metrics["test_loss"] == pytest.approx(best["value"], rel=1e-6)


@pytest.mark.slow
def test_the_last_parameters_may_be_the_best(tmp_path: Path) -> None:
    slow = {"kind": "sgd", "learning_rate": 0.01}
    result = alone(tmp_path / "run", optimizer=slow)
    assert result.summary["best"]["clock"] == 33
    assert result.summary["best"]["value"] == result.metrics["test_loss"]
    assert is_same(result.folder / "best.safetensors", result.folder / "model.safetensors")
    accuracy = {"metric": "test_accuracy", "mode": "max"}
    result = alone(tmp_path / "accuracy", keep_best=accuracy)
    seen = [row["test_accuracy"] for row in result.history if "test_accuracy" in row]
    assert result.summary["best"]["value"] == pytest.approx(max(*seen, result.metrics["test_accuracy"]))


class Watching:
    """Does what the driver does: judges the cuts that the controller holds."""

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        self.folder = RunFolder.create(str(folder), "run")
        spec = RunSpec("reader", from_values(config), app())
        application = spec.build()
        self.rule = BestRule("test_loss", "min")
        self.best = BestModel(self.rule, self.folder, spec.job(application).layout, application.as_model)
        self.held: set[int] = set()

    def __call__(self, rig: FaultRig, state: HeadState) -> None:
        for happened in state.events:
            self.best.on_event(happened.event)
        if state.held is not None:
            self.held.add(state.held.clock)
        judged = self.best.look(state.held, state.reported, lambda held: lambda: self._parts(rig, held))
        if judged is not None:
            rig.head.tell(judged)

    def _parts(self, rig: FaultRig, held: Finished) -> Parts:
        found = [rig.machines[name].final_blocks(p, held.clock) for p, name in enumerate(held.backup)]
        if any(part is None for part in found):
            raise RunError("not there")
        return [part for part in found if part is not None]


PLAN = [
    {"at_clock": 4, "join": 1},
    {"at_clock": 9, "kill": 1},
    {"at_clock": 14, "kill_controller": True},
    {"at_clock": 19, "notice": 1, "warning_s": 30},
    {"at_clock": 24, "kill_many": "all"},
]


@pytest.mark.parametrize("exchange", ["servers", pytest.param("allreduce", marks=pytest.mark.slow)])
@pytest.mark.parametrize("plan", [[], PLAN], ids=["quiet", "faults"])
def test_the_cuts_of_evaluated_clocks_are_held(tmp_path: Path, exchange: str, plan: list[Any]) -> None:
    """All of them where machines stay; where they die, the best of those whose cut was whole is kept."""
    config = values(
        exchange=exchange,
        deterministic=exchange == "servers",
        plan=plan,
        cuts={"every_s": 0.05, "max_clocks": 7},
    )
    watching = Watching(tmp_path / "out", config)
    ran = FaultRig(config, tmp_path, watching, application=app()).finish()
    assert ran.halted is None
    seen = {each.clock: each.metrics["test_loss"] for each in ran.of(Evaluated)}
    every = {5, 10, 15, 20, 25, 30}
    # The controller that is killed at clock 14 may take the report of clock 15 with it, and with it that cut's value.
    assert every >= set(seen) >= (every - {15} if plan else every) and every >= watching.held
    assert plan or watching.held == every
    kept = watching.rule.best
    assert kept is not None and kept.value == min(seen[clock] for clock in watching.held & seen.keys())
    told = "was better by test_loss" in watching.folder.events.path.read_text()
    assert told == (min(seen.values()) < kept.value)
    if exchange == "servers":
        expected = alone(tmp_path / "expected", clocks=kept.clock, keep_best=None)
        assert is_same(tmp_path / "out" / "best.safetensors", expected.folder / "model.safetensors")


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "worst"), [("min", math.inf), ("max", -math.inf)])
def test_a_best_that_was_infinite_is_beaten_after_a_restart(mode: str, worst: float) -> None:
    rule = BestRule("perplexity", mode)
    assert rule.is_better(worst) and not rule.is_better(math.nan)
    line = to_line(Logged(1.0, BestKept(5, "perplexity", worst)))
    kept = from_line(line).event
    assert isinstance(kept, BestKept)
    again = BestRule("perplexity", mode, kept)
    assert again.is_better(20.0) and not again.is_better(math.nan)


def test_the_command_says_where_the_best_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = {"module": f"{__name__}:of_digits", "batch_size": 64, "evaluate_every": 2}
    more = {"data": {"kind": "digits"}, "out": str(tmp_path / "out")}
    config = from_values(values(clocks=5, model=model, **more))
    assert run_job(config, name="run", sequential=True) == 0
    best = json.loads((tmp_path / "out" / "summary.json").read_text())["best"]
    said = f"best: test_loss {best['value']:.4g} at clock {best['clock']}, {tmp_path}/out/best.safetensors"
    assert said in capsys.readouterr().out.splitlines()


def of_digits() -> nn.Module:
    return nn.Linear(64, 10)


HELD = Finished(10, ("m0",))


def judge(tmp_path: Path) -> tuple[BestModel, RunFolder]:
    folder = RunFolder.create(str(tmp_path / "out"), "run")
    spec = RunSpec("reader", from_values(values()), app())
    application = spec.build()
    best = BestModel(BestRule("test_loss", "min"), folder, spec.job(application).layout, application.as_model)
    return best, folder


def never(held: Finished) -> Any:
    raise AssertionError("nothing is to be read")


def test_a_cut_waits_for_its_evaluation_but_not_for_one_that_is_lost(tmp_path: Path) -> None:
    best, _ = judge(tmp_path)
    assert best.look(HELD, 9, never) is None
    assert best.look(HELD, 10, never) is None
    judged = best.look(HELD, 11, never)
    assert judged is not None and judged.clock == 10
    best.on_event(Evaluated(10, {"test_loss": float("nan")}))
    assert best.look(HELD, 11, never) is not None


def test_where_every_clock_is_evaluated_a_report_that_died_with_a_controller_holds_nothing_up(
    tmp_path: Path,
) -> None:
    """No later clock can be done until the cut is judged: that would say that the report is lost."""
    script = Script(replace(make_job(), holds_every=1))
    script.up("r0")
    cut = script.commit_cut()
    script.reach(cut + 1)
    script.machines["r0"].told.clear()
    script.restart()
    script.wait(12.0)
    held, reported = script.controller.held, script.controller.reported
    assert held is not None and held.clock == cut and script.controller.limit == cut + 1
    best, _ = judge(tmp_path)
    judged = best.look(held, reported, never)
    assert judged is not None
    script.tell(judged)
    assert script.controller.held is None and script.controller.limit > cut + 1


def test_a_machine_that_dies_while_it_is_read_is_asked_again_elsewhere(tmp_path: Path) -> None:
    best, folder = judge(tmp_path)
    best.on_event(Evaluated(10, {"test_loss": 0.5}))

    def broken() -> Any:
        raise RunError("died")

    assert best.look(HELD, 11, lambda held: broken) is None
    arrived: list[Any] = []
    asked: list[Finished] = []

    def read(held: Finished) -> Any:
        asked.append(held)
        return lambda: arrived[0] if arrived else None

    moved = Finished(10, ("m1",))
    assert [best.look(held, 11, read) for held in (HELD, moved, moved)] == [None, None, None]
    assert asked == [HELD, moved]
    arrived.append([[np.zeros(table.rows * table.columns, np.float32) for table in app_tables()]])
    assert best.look(moved, 11, read) is not None
    assert json.loads(folder.events.path.read_text().splitlines()[-1])["kind"] == BestKept.kind
    assert set(load_file(folder.path / "best.safetensors")) == set(build().state_dict())


def app_tables() -> Any:
    return RunSpec("reader", from_values(values()), app()).build().tables()


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (
            {"model": {"batch_size": 16}},
            "keep_best.metric: found test_loss, expected an application that evaluates",
        ),
        (
            {"model": {"batch_size": 16}, "pipeline": {"mode": "flush"}},
            "keep_best: found with a pipeline, expected none: no machine has the whole model while it trains",
        ),
        ({"keep_best": {"metric": "test_los"}}, "keep_best.metric: found test_los, did you mean test_loss"),
        ({"consistency": {"kind": "asp"}, "deterministic": False}, "keep_best: found with consistency asp"),
        ({"keep_best": {"mode": "least"}}, "keep_best.mode: "),
    ],
)
def test_what_cannot_be_kept_is_said(more: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=sentence):
        alone(tmp_path / "out", **more)
