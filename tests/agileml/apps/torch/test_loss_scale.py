"""Mixed precision in float16: the steps of plain torch with a GradScaler, on any machines."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import agileml
from agileml.application import InputError, LossScaleRule, Settings, Unit
from agileml.apps.torch.module import TorchModule
from agileml.config.job import from_values
from agileml.config.text import ConfigError
from agileml.core.parameters.loss_scale import LOSS_SCALE, LossScale
from agileml.events.observed import LossScaleChanged
from agileml.events.run import MembershipChanged
from agileml.runs.event_log import read_events
from tests.agileml.process.engine_rig import Rig, reference
from tests.faults.fault_rig import FaultRig

pytestmark = pytest.mark.usefixtures("one_thread")

X = np.random.default_rng(1).normal(size=(48, 6)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64)
CLOCKS = 24
SCALE = {"initial": 2.0**24, "interval": 3}  # overflows at first, and again whenever it has grown


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 40)
        self.unused = nn.Linear(3, 3)
        self.norm = nn.LayerNorm(40)
        self.head = nn.Linear(40, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.norm(self.first(x))))


class Normed(Net):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(40)  # type: ignore[assignment]


def values(**changes: Any) -> dict[str, Any]:
    # float16 rounds otherwise on a GPU, and the peers below compute on the CPU.
    model = {"batch_size": 48, "autocast": "float16", "loss_scale": SCALE, "device": "cpu"}
    return {
        "application": "torch",
        "model": model | changes.pop("model", {}),
        "optimizer": {"kind": "adamw", "learning_rate": 0.02, "epsilon": 1e-3, "clip_norm": 1.0},
        "clocks": CLOCKS,
        "seed": 3,
        "slices": 4,
        "partitions": 3,
        "machines": {"reliable": 1, "transient": 1, "max": 4},
        "cuts": {"every_s": 0.05, "max_clocks": 3},
    } | changes


BY_ALLREDUCE = {"exchange": "allreduce", "deterministic": False}
TORCH = {
    "exchange": "allreduce",
    "deterministic": False,
    "optimizer": {
        "kind": "torch",
        "name": "AdamW",
        "learning_rate": 0.02,
        "clip_norm": 1.0,
        "arguments": {"eps": 1e-3},
    },
}


def in_torch(module: nn.Module) -> tuple[torch.amp.GradScaler, int]:
    """Plain torch on the same minibatches; returns also how many steps were skipped."""
    app = TorchModule(Settings(model={"batch_size": 48}, seed=3), build=Net, dataset=(X, Y))
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.02, eps=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE["initial"], growth_interval=int(SCALE["interval"]))
    skipped = 0
    for clock in range(CLOCKS):
        x, y = app.data.train.take(app.minibatches.numbers(Unit(clock, 0), app.load(0)))
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = nn.functional.cross_entropy(module(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        skipped += scaler.get_scale() < before
    return scaler, skipped


@pytest.mark.parametrize("more", [{}, TORCH], ids=["servers", "torch"])
def test_the_steps_are_those_of_a_grad_scaler(more: dict[str, Any], tmp_path: Path) -> None:
    app = TorchModule(build=Net, dataset=(X, Y))
    config = values(slices=1, machines={"reliable": 1, "transient": 0, "max": 1}, **more)
    result = agileml.run(config | {"out": str(tmp_path / "run")}, app, sequential=True)
    torch.manual_seed(3)
    module = Net()
    scaler, skipped = in_torch(module)
    assert 6 < skipped < CLOCKS - 6, "both cases must come up"
    for name, tensor in module.state_dict().items():
        torch.testing.assert_close(result.module().state_dict()[name], tensor, rtol=0, atol=2e-3, msg=name)
    assert result.summary["loss_scale"] == scaler.get_scale()
    assert result.summary["skipped_clocks"] == skipped
    state = torch.load(result.folder / "optimizer.pt", weights_only=True)["state"]
    assert {float(entry["step"]) for entry in state.values()} == {CLOCKS - skipped}
    changes = [
        e.event for e in read_events(result.folder / "events.jsonl") if isinstance(e.event, LossScaleChanged)
    ]
    assert [change.skipped for change in changes][-1] == skipped
    assert any("took no step" in change.reason for change in changes)
    assert any("in a row were finite" in change.reason for change in changes)


PLAN = [
    {"at_clock": 4, "join": 2},
    {"at_clock": 9, "kill": 1},
    {"at_clock": 14, "notice": "all", "warning_s": 30},
    {"at_clock": 17, "join": 2},
    {"at_clock": 20, "kill_many": "all"},
]


def test_machines_that_come_go_and_die_do_not_change_a_bit(tmp_path: Path) -> None:
    app = TorchModule(build=Normed, dataset=(X, Y))
    config = values(plan=PLAN)
    ran = FaultRig(config, tmp_path, application=app).finish()
    assert ran.sha256 == reference(config, app)
    assert ran.tables is not None
    assert LossScale.of(ran.tables[LOSS_SCALE]).skipped > 6
    assert any("took no step" in change.reason for change in ran.of(LossScaleChanged))
    assert len(ran.of(MembershipChanged)) > len(PLAN)


SHARDED = TORCH | {"optimizer": {**TORCH["optimizer"], "sharded": True}}  # type: ignore[dict-item]


@pytest.mark.slow
@pytest.mark.parametrize("more", [{}, TORCH, SHARDED], ids=["servers", "torch", "sharded"])
def test_a_run_goes_on_from_the_scale_in_its_checkpoint(more: dict[str, Any], tmp_path: Path) -> None:
    """Resumed between two skipped clocks it skips those that an undisturbed run skips."""
    app = TorchModule(build=Net, dataset=(X, Y))
    place = str(tmp_path / "saved")
    saves = {"checkpoint": {"path": place, "every_s": 0.01}, "cuts": {"every_s": 0.01, "max_clocks": 2}}
    first = Rig(values(**more, **saves, clocks=9), tmp_path / "first", app).finish()
    assert first.tables is not None, first.halted
    assert LossScale.of(first.tables[LOSS_SCALE]).skipped > 3
    second = Rig(from_values(values(**more, **saves)), tmp_path / "second", app, resume=place).finish()
    assert second.tables is not None, second.halted
    if not more:
        assert second.sha256 == reference(values(), app)
    alone = agileml.run(values(**more, out=str(tmp_path / "run")), app, sequential=True)
    scale, wanted = (LossScale.of(found[LOSS_SCALE]) for found in (second.tables, alone.parameters))
    assert scale == wanted and wanted.skipped > LossScale.of(first.tables[LOSS_SCALE]).skipped
    if more:  # the steps that each parameter took; values differ by the rounding of float16
        counts = "optimizer_scalars"
        np.testing.assert_array_equal(second.tables[counts], alone.parameters[counts])


@pytest.mark.parametrize(
    "more",
    [{}, pytest.param(BY_ALLREDUCE, marks=pytest.mark.slow), pytest.param(TORCH, marks=pytest.mark.slow)],
    ids=["servers", "all-reduce", "torch"],
)
def test_the_overflow_of_one_machine_is_everybodys(more: dict[str, Any], tmp_path: Path) -> None:
    """An item that float16 cannot hold is in every second batch: nobody takes a step then."""
    large = X.copy()
    large[40] = 1e6
    app = TorchModule(build=Net, dataset=(large, Y))
    plan = [{"at_clock": 8, "join": 1}, {"at_clock": 16, "notice": 1, "warning_s": 30}]
    config = values(model={"batch_size": 24, "loss_scale": {"initial": 1024.0}}, **more)
    ran = Rig(config | {"plan": plan}, tmp_path / "rig", app).finish()
    assert ran.tables is not None, ran.halted
    alone = agileml.run(config | {"out": str(tmp_path / "run")}, app, sequential=True)
    ours, wanted = (LossScale.of(found[LOSS_SCALE]) for found in (ran.tables, alone.parameters))
    assert ours == wanted
    assert (ours.scale, ours.skipped) == (1024.0 / 2 ** (CLOCKS // 2), CLOCKS // 2)
    np.testing.assert_allclose(ran.tables["parameters"], alone.parameters["parameters"], rtol=0, atol=5e-3)
    assert [math.isnan(row["loss"]) for row in alone.history].count(True) == CLOCKS // 2


def test_no_scale_helps_a_loss_that_is_not_finite(tmp_path: Path) -> None:
    """torch would skip steps for ever: the run ends, with the last good model."""
    bad = X.copy()
    bad[7] = np.inf
    app = TorchModule(build=Net, dataset=(bad, Y))
    ran = Rig(values(clocks=60), tmp_path, app).finish()
    assert ran.tables is None and ran.halted is not None
    assert "returned a loss of nan: the training diverged" in ran.halted.reason


class Distance(nn.Module):
    """Has an embedding that is read by row, whose gradient is NaN: of the root of a distance of 0."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Embedding(4, 3, sparse=True)
        self.head = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        found = self.places((x[:, 0] > 0).long())
        return self.head(x) + (found - found.detach()).pow(2).sum(1, keepdim=True).sqrt()


def test_no_scale_helps_gradients_of_rows_that_are_not_finite(tmp_path: Path) -> None:
    app = TorchModule(build=Distance, dataset=(X, Y))
    config = values(model={"loss_scale": {"initial": 2.0**-14}}, out=str(tmp_path / "run"))
    with pytest.raises(InputError, match=r"not finite at a loss scale of 1.52588e-05, expected finite ones"):
        agileml.run(config, app, sequential=True)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            {"model": {"autocast": "bfloat16"}},
            "model.loss_scale: found with autocast bfloat16, expected float16",
        ),
        ({"model": {"loss_scale": {"backoff": 1.5}}}, "backoff: found 1.5, expected less than 1"),
        (
            {"consistency": {"kind": "asp"}, "deterministic": False, "optimizer": {"kind": "sgd"}},
            "consistency.kind: found asp with losses that are scaled",
        ),
    ],
    ids=["bfloat16", "backoff", "asp"],
)
def test_bad_input_is_one_sentence(changes: dict[str, Any], problem: str, tmp_path: Path) -> None:
    app = TorchModule(build=Net, dataset=(X, Y))
    with pytest.raises((ConfigError, InputError)) as caught:
        agileml.run(values(out=str(tmp_path / "run"), **changes), app, sequential=True)
    assert problem in str(caught.value) and "\n" not in str(caught.value)


def test_parameters_of_float64_are_refused(tmp_path: Path) -> None:
    app = TorchModule(build=lambda: Net().double(), dataset=(X.astype(np.float64), Y))
    with pytest.raises(ConfigError, match="autocast: found float16 with parameters of float64"):
        agileml.run(values(out=str(tmp_path / "run")), app, sequential=True)


def test_the_usual_numbers_need_no_section() -> None:
    app = TorchModule(Settings(model={"autocast": "float16"}), build=Net, dataset=(X, Y))
    assert app.loss_scale() == LossScaleRule()
    assert TorchModule(Settings(), build=Net, dataset=(X, Y)).loss_scale() is None
