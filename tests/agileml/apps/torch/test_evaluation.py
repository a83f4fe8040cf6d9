"""Evaluation while it trains: every test item once, at one version, whoever has it; and what hangs on it."""

import csv
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import agileml
from agileml.application import InputError, Settings
from agileml.apps.torch.module import TorchModule
from agileml.apps.torch.objective import right_places
from agileml.config.text import ConfigError
from agileml.core.parameters.optimizer import optimizer
from agileml.core.sequential import run_sequential, train
from agileml.events.observed import Evaluated
from agileml.events.run import MembershipChanged
from agileml.runs.history import ClockRow
from tests.agileml.process.engine_rig import Rig

RNG = np.random.default_rng(1)
X = RNG.normal(size=(61, 6)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64)
DATA = ((X[:40], Y[:40]), (X[40:], Y[40:]))
MODEL = {"batch_size": 16, "evaluate_every": 5}


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 2))


def least(output: Tensor, target: Tensor) -> Tensor:
    return torch.softmax(output, 1).gather(1, target[:, None]).mean()


def positives(output: Tensor, target: Tensor) -> tuple[int, int]:
    """Recall: a sum over the items of one class and their number."""
    of_class = target == 1
    return int((output.argmax(1)[of_class] == 1).sum()), int(of_class.sum())


METRICS = {"certainty": least, "recall": positives}


def values(**changes: Any) -> dict[str, Any]:
    job = {
        "application": "torch",
        "model": MODEL,
        "optimizer": {"kind": "adamw", "learning_rate": 0.01},
        "clocks": 23,
        "seed": 3,
        "slices": 4,
        "machines": {"reliable": 1, "transient": 2, "max": 4},
        "plan": [{"at_clock": 8, "notice": 1, "warning_s": 30}],
    }
    return job | changes


def app(slices: int = 4) -> TorchModule:
    return TorchModule(
        Settings(model=MODEL, seed=3, slices=slices), build=build, dataset=DATA, metrics=METRICS
    )


def expected(clock: int, deterministic: bool = True) -> dict[str, float]:
    """The evaluation of the parameters that a run of so many clocks ends with."""
    one = app()
    found = run_sequential(
        one, optimizer=optimizer("adamw", learning_rate=0.01), clocks=clock, deterministic=deterministic
    )
    return one.evaluate(found)


@pytest.mark.parametrize("exchange", ["servers", "allreduce"])
def test_machines_share_the_test_items_of_one_version(exchange: str, tmp_path: Path) -> None:
    is_exact = exchange == "servers"
    mine = TorchModule(build=build, dataset=DATA, metrics=METRICS)
    ran = Rig(values(exchange=exchange, deterministic=is_exact), tmp_path, mine).finish()
    assert ran.halted is None
    last = {each.clock: each.metrics for each in ran.of(Evaluated)}
    assert sorted(last) == [5, 10, 15, 20]
    assert len(ran.of(MembershipChanged)) >= 2
    if not is_exact:
        assert all(set(found) == {"test_loss", "test_accuracy", *METRICS} for found in last.values())
        return
    for clock in (5, 20):
        assert last[clock] == pytest.approx(expected(clock), rel=1e-6), clock


class Annealed(nn.Module):
    """Counts its forwards, in eval mode too, and goes by their number."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = build()
        self.register_buffer("forwards", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        self.forwards += 1
        return self.layers(x) / (1 + self.forwards)


@pytest.mark.parametrize("build", [build, Annealed])
def test_a_pass_end_and_no_bit_changed(build: Callable[[], nn.Module]) -> None:
    """21 test items over 4 slices, every 3 clocks of 16 of 40 items; training is as without."""
    model = {"batch_size": 16, "evaluate_every": "pass"}
    one = TorchModule(Settings(model=model, seed=3, slices=4), build=build, dataset=DATA)
    seen: dict[int, tuple[float, ...]] = {}
    adam = optimizer("adamw", learning_rate=0.01)
    tables = train(
        one, optimizer=adam, clocks=8, on_metrics=lambda clock, sums, _: seen.update({clock: sums})
    ).tables
    assert sorted(seen) == [3, 6]
    assert {sums[1] for sums in seen.values()} == {21.0}
    without = TorchModule(Settings(model={"batch_size": 16}, seed=3, slices=4), build=build, dataset=DATA)
    for name, table in run_sequential(without, optimizer=adam, clocks=8).items():
        assert np.array_equal(table, tables[name])


class Seen(agileml.Callback):
    """Everything that it hears."""

    def __init__(self) -> None:
        self.rows: list[ClockRow] = []
        self.evaluations: dict[int, Mapping[str, float]] = {}
        self.result: Any = None
        self.config: Mapping[str, Any] = {}

    def on_start(self, folder: Path, config: Mapping[str, Any]) -> None:
        assert folder.is_dir()
        self.config = config

    def on_clock(self, row: ClockRow) -> None:
        self.rows.append(row)

    def on_evaluate(self, clock: int, metrics: Mapping[str, float]) -> None:
        self.evaluations[clock] = metrics

    def on_end(self, result: Any) -> None:
        self.result = result


def test_callbacks_history_and_the_files_of_loggers(tmp_path: Path) -> None:
    seen = Seen()
    job = values(out=str(tmp_path / "run"), log=["csv", "jsonl", "tensorboard"], plan=[])
    job["optimizer"] = {"kind": "sgd", "learning_rate": 0.1, "schedule": {"kind": "steps", "every": 10}}
    mine = TorchModule(build=build, dataset=DATA)
    result = agileml.run(job, mine, sequential=True, callbacks=[seen])
    assert seen.result is result and seen.config["clocks"] == 23
    assert [row.clock for row in seen.rows] == list(range(1, 24))
    assert sorted(seen.evaluations) == [5, 10, 15, 20]
    history = result.history
    assert [row["clock"] for row in history] == list(range(1, 24))
    assert [row["learning_rate"] for row in history[8:12]] == pytest.approx([0.1, 0.1, 0.01, 0.01])
    assert [row["clock"] for row in history if "test_loss" in row] == [5, 10, 15, 20]
    assert history[4]["test_loss"] == seen.evaluations[5]["test_loss"]
    with (result.folder / "clocks.csv").open() as file:
        assert [float(row["loss"]) for row in csv.DictReader(file)] == [row.loss for row in seen.rows]
    with (result.folder / "evaluations.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 8
    lines = [json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) == 27
    (events,) = (result.folder / "tensorboard").iterdir()
    assert b"evaluation/test_accuracy" in events.read_bytes()


def test_early_stopping_ends_the_run(tmp_path: Path) -> None:
    job = values(out=str(tmp_path / "run"), plan=[], clocks=200)
    job["optimizer"] = {"kind": "sgd", "learning_rate": 1e-9}
    job["early_stopping"] = {"metric": "test_loss", "patience": 2, "least_change": 0.5}
    result = agileml.run(job, TorchModule(build=build, dataset=DATA), sequential=True)
    assert result.summary["clocks"] == 16 and result.summary["stopped"]
    assert '"stop_decided"' in (result.folder / "events.jsonl").read_text()
    job["early_stopping"] = {"metric": "error"}
    with pytest.raises(ConfigError, match="found error, expected one of test_loss, test_accuracy"):
        agileml.run(job | {"out": None}, TorchModule(build=build, dataset=DATA), sequential=True)
    del job["early_stopping"]
    own = [agileml.EarlyStopping("val_loss")]
    with pytest.raises(ConfigError, match="found val_loss, expected one of test_loss, test_accuracy"):
        agileml.run(
            job | {"out": None}, TorchModule(build=build, dataset=DATA), sequential=True, callbacks=own
        )
    job["early_stopping"] = {"metric": "error"}
    job["model"] = {"batch_size": 16}
    with pytest.raises(
        ConfigError, match="found error, expected an application that evaluates while it trains"
    ):
        agileml.run(job | {"out": None}, TorchModule(build=build, dataset=DATA), sequential=True)


def test_accuracy_is_promised_where_outputs_are_scores_of_classes(tmp_path: Path) -> None:
    """A regression measures its loss and metrics of the user's, so a rule that goes by its accuracy is refused."""
    data = ((X[:40], X[:40, :2]), (X[40:], X[40:, :2]))
    own = TorchModule(
        build=build, dataset=data, loss="mse", metrics={"bias": lambda out, y: (out - y).mean()}
    )
    job = values(out=str(tmp_path / "run"), plan=[], clocks=12)
    for section in ("early_stopping", "keep_best"):
        with pytest.raises(ConfigError, match="found test_accuracy, expected one of test_loss, bias"):
            agileml.run(job | {section: {"metric": "test_accuracy", "mode": "max"}}, own, sequential=True)
    assert not (tmp_path / "run").exists()
    result = agileml.run(job | {"keep_best": {"metric": "bias"}}, own, sequential=True)
    assert result.summary["best"]["metric"] == "bias" and set(result.metrics) == {"test_loss", "bias"}


def test_targets_that_are_no_class_are_left_out_of_the_accuracy() -> None:
    scores, target = torch.eye(3)[[0, 1, 2, 2, 0]], torch.tensor([0, 1, 0, 255, -100])  # by `ignore_index`
    places = right_places(scores, target)
    assert places is not None and places.tolist() == [True, True, False]


def by_logit(output: Tensor, target: Tensor) -> Tensor:
    return nn.functional.binary_cross_entropy_with_logits(output.squeeze(1), target.float())


def test_one_logit_is_no_score_of_a_class() -> None:
    """Its greatest class would be 0 for every item."""
    one = TorchModule(Settings(model=MODEL), build=lambda: nn.Linear(6, 1), dataset=DATA, loss=by_logit)
    assert one.metrics() == ("test_loss",)
    found = one.evaluate(run_sequential(one, optimizer=optimizer("adamw", learning_rate=0.01), clocks=2))
    assert found.keys() == {"test_loss"}


def test_a_test_batch_that_cannot_be_measured_is_one_sentence(tmp_path: Path) -> None:
    own = TorchModule(build=build, dataset=((X[:40], Y[:40]), (X[40:, :3], Y[40:])))
    with pytest.raises(
        InputError, match=r"one test batch of 8 items .* cannot be computed: RuntimeError: mat1"
    ):
        agileml.run(values(out=str(tmp_path / "run")), own, sequential=True)


def test_metrics_that_are_none() -> None:
    adam = optimizer("adamw", learning_rate=0.01)

    def run(dataset: Any = DATA, **own: Any) -> None:
        one = TorchModule(Settings(model=MODEL, slices=2), build=build, dataset=dataset, **own)
        one.metrics()
        run_sequential(one, optimizer=adam, clocks=6)

    with pytest.raises(InputError, match=r"model\.metrics: shape returned Tensor, expected a number"):
        run(metrics={"shape": lambda output, target: output})
    with pytest.raises(ConfigError, match="found 5 without test data"):
        run(DATA[0])
    with pytest.raises(ConfigError, match="found metrics with a step"):
        run(metrics=METRICS, step=lambda module, batch: module(batch[0]).sum())
