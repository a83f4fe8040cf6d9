"""Runs whose clocks are computed while their parameters are on their way: the same bits, whoever comes and goes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from agileml.apps.torch.models import cnn, mlp
from agileml.apps.torch.module import TorchModule
from agileml.config.text import ConfigError
from agileml.events.run import MembershipChanged, OverlapDecided
from agileml.process.head import HeadState
from tests.agileml.process.engine_rig import Rig, reference
from tests.faults.fault_rig import FaultRig

PLAN = [
    {"at_clock": 4, "join": 2},
    {"at_clock": 9, "notice": 2, "warning_s": 60},
    {"at_clock": 14, "notice": "all", "warning_s": 30},
    {"at_clock": 18, "join": 2},
]


def numbers() -> Any:
    generator = torch.Generator().manual_seed(1)
    return (torch.randn(256, 300, generator=generator), torch.randint(10, (256,), generator=generator)), None


def images() -> Any:
    generator = torch.Generator().manual_seed(2)
    return (
        torch.randn(256, 1, 16, 16, generator=generator),
        torch.randint(10, (256,), generator=generator),
    ), None


class Tied(nn.Module):
    """The same weight at both ends, and a layer that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.twice = nn.Linear(300, 300), nn.Linear(300, 300)
        self.last = nn.Linear(300, 300)
        self.last.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.twice(torch.tanh(self.twice(self.first(x)))))


def wide() -> nn.Module:
    return mlp((300, 1000, 1000, 10), dropout=0.2)


def narrow() -> nn.Module:
    return mlp((300, 200, 10), dropout=0.2)


def normed() -> nn.Module:
    return cnn(size=16, batch_norm=True)


def values(**more: Any) -> dict[str, Any]:
    return {
        "application": "torch",
        "model": {"batch_size": 64},
        "optimizer": {"kind": "momentum", "learning_rate": 0.02, "momentum": 0.9},
        "clocks": 12,
        "slices": 8,
        "machines": {"reliable": 2, "transient": 0, "max": 8},
        "partitions": 6,
        "cuts": {"every_s": 0.05, "max_clocks": 3},
        "overlap": True,
        **more,
    }


MODULES = [(wide, numbers), (normed, images), (Tied, numbers)]


@pytest.mark.parametrize(("build", "data"), MODULES, ids=["mlp", "cnn with batch norm", "tied"])
def test_the_bits_are_those_of_one_process(build: Callable[[], Any], data: Any, tmp_path: Path) -> None:
    config = values()
    app = TorchModule(build=build, dataset=data)
    assert Rig(config, tmp_path, app).finish().sha256 == reference(config, app)


def test_machines_that_come_and_go_do_not_change_a_bit(tmp_path: Path) -> None:
    machines = {"reliable": 1, "transient": 2, "max": 8}
    config = values(
        machines=machines, plan=PLAN, clocks=24, balance="lbbsp", stage="thresholds", stage_thresholds=[1, 3]
    )
    app = TorchModule(build=narrow, dataset=numbers)
    ran = Rig(config, tmp_path, app).finish()
    assert ran.sha256 == reference(config, app)
    assert len(ran.of(MembershipChanged)) > 3


def test_pulls_in_batches_have_the_same_bits_and_each_machine_says_which(tmp_path: Path) -> None:
    config = values(overlap="batches", clocks=14, machines={"reliable": 2, "transient": 0, "max": 2})
    app = TorchModule(build=narrow, dataset=numbers)
    ran = Rig(config, tmp_path, app).finish()
    assert ran.sha256 == reference(config, app)
    chosen = ran.of(OverlapDecided)
    assert {event.machine for event in chosen} == {"m0", "m1"}
    assert all(event.reason.startswith("pulls in ") and event.overlaps for event in chosen)


@pytest.mark.slow
def test_batches_through_machines_that_come_and_go(tmp_path: Path) -> None:
    config = values(
        machines={"reliable": 1, "transient": 2, "max": 8}, plan=PLAN, clocks=40, overlap="batches"
    )
    app = TorchModule(build=wide, dataset=numbers)
    ran = Rig(config, tmp_path, app).finish()
    assert ran.sha256 == reference(config, app)
    assert len(ran.of(MembershipChanged)) > 3


def test_with_auto_every_machine_chooses_and_says_why(tmp_path: Path) -> None:
    config = values(overlap="auto", clocks=1000)
    app = TorchModule(build=wide, dataset=numbers)
    chosen: list[OverlapDecided] = []

    def watch(rig: FaultRig, state: HeadState) -> None:
        chosen.extend(each.event for each in state.events if isinstance(each.event, OverlapDecided))
        if {event.machine for event in chosen} == {"m0", "m1"}:
            rig.ask_to_stop()

    ran = FaultRig(config, tmp_path, watch, app).finish()
    assert ran.sha256 == reference({**config, "clocks": ran.clocks}, app)
    assert all("s of a clock of" in event.reason or "s with overlap" in event.reason for event in chosen)


def test_auto_is_off_where_it_cannot_be_on(tmp_path: Path) -> None:
    config = {"application": "mlr", "data": {"kind": "digits"}, "clocks": 4, "slices": 2, "overlap": "auto"}
    rig = Rig(config | {"machines": {"reliable": 2, "transient": 0, "max": 2}}, tmp_path)
    assert not rig.finish().of(OverlapDecided)
    assert not rig.machines["m0"].job.may_overlap


@pytest.mark.slow
def test_whole_machines_with_processes_of_their_own(tmp_path: Path) -> None:
    class Cores(Rig):
        cores = 2

    config = values(clocks=8, machines={"reliable": 2, "transient": 0, "max": 2, "workers": 2})
    app = TorchModule(build=wide, dataset=numbers)
    assert Cores(config, tmp_path, app).finish().sha256 == reference(config, app)


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (
            {"application": "mf", "data": {"kind": "made"}, "model": {}},
            "found true, expected false: mf has sparse",
        ),
        (
            {"application": "mlr", "data": {"kind": "digits"}, "model": {}},
            "found true, expected false: mlr reads all",
        ),
        ({"exchange": "allreduce"}, "overlap: found true with exchange: allreduce, expected false"),
        ({"consistency": {"kind": "asp"}}, "overlap: found true with consistency asp, expected false"),
    ],
    ids=["sparse tables", "no torch module", "allreduce", "asp"],
)
def test_where_there_is_nothing_to_overlap(more: dict[str, Any], problem: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        Rig(values(**more), tmp_path)
    assert problem in str(raised.value)
    assert raised.value.key == ("overlap",) or "overlap" in str(raised.value)
