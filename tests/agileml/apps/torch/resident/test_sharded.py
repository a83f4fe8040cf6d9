"""The optimizer's state shared out among machines: the steps of one that has all of it, in less memory."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import agileml
from agileml.application import Parts, Settings
from agileml.apps.torch.module import TorchModule
from agileml.apps.torch.resident.replica import TorchReplica
from agileml.apps.torch.resident.state import piece_of
from agileml.config.job import from_values
from agileml.core.exchange.allreduce import ReplicaExchange, SharedStateExchange
from agileml.events.run import MembershipChanged
from agileml.process.spec import RunSpec
from tests.agileml.apps.torch.resident.test_replica import CLOCKS, Net, X, Y, values
from tests.agileml.process.engine_rig import Rig
from tests.faults.fault_rig import FaultRig

PARTITIONS = 4
SIZES = (300, 40, 7, 1000, 16, 16, 2)  # of the parameters below


class Uneven(nn.Module):
    """Parameters of very different sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.all = nn.ParameterList(nn.Parameter(torch.full((size,), 0.5)) for size in SIZES)


def application(name: str = "AdamW", build: type[nn.Module] = Uneven, **more: Any) -> TorchModule:
    section = {"kind": "torch", "name": name, "learning_rate": 0.01, "arguments": {}, "groups": []}
    settings = Settings({}, {}, 3, 2, optimizer={**section, "clip_norm": 0.5, **more})
    return TorchModule(settings, build=build, dataset=(X, Y))


def ranges(app: TorchModule, table: str) -> list[tuple[int, int]]:
    """Of each partition."""
    ends = app.share_ends(PARTITIONS)[table]
    return list(zip([0, *ends[:-1]], ends, strict=True))


def replica_of(app: TorchModule, own: tuple[int, ...] | None) -> TorchReplica:
    """A replica that steps some partitions, at the start."""
    replica = app.replica(lambda clock: 0.01)
    tables = {table.name: table for table in app.tables()}
    parts: dict[str, Parts] = {"parameters": [(0, app.initial(tables["parameters"]).reshape(-1))]}
    for name in tables.keys() - {"parameters"}:
        mine = [ranges(app, name)[p] for p in own] if own is not None else [(0, tables[name].columns)]
        parts[name] = [(start, np.zeros(stop - start, tables[name].dtype)) for start, stop in mine]
    replica.place(parts, None if own is None else {"parameters": [ranges(app, "parameters")[p] for p in own]})
    return replica


def gradient(app: TorchModule, clock: int) -> np.ndarray[Any, Any]:
    """One that reaches all parameters but the second."""
    found = np.full(app.flat.elements, -0.0, np.float32)
    rng = np.random.default_rng(clock)
    for number, span in enumerate(app.flat.spans):
        if number != 1:
            found[span.start : span.stop] = rng.normal(size=span.stop - span.start)
    return found


def state_elements(replica: TorchReplica) -> int:
    state = replica._optimizer.state.values()
    return sum(value.numel() for each in state for value in each.values() if value.ndim)


@pytest.mark.parametrize("name", ["AdamW", pytest.param("Adafactor", marks=pytest.mark.slow)])
def test_replicas_of_shares_take_the_steps_of_a_whole_one(name: str) -> None:
    whole = replica_of(alone := application(name), None)
    shares = {(0, 3): application(name), (1,): application(name), (2,): application(name)}
    replicas = {own: replica_of(app, own) for own, app in shares.items()}
    for clock in range(3):
        whole.step(clock, {"parameters": gradient(alone, clock)})
        updates = {own: {"parameters": gradient(alone, clock)} for own in shares}
        for own, replica in replicas.items():
            replica.step(clock, updates[own])
        for own in shares:  # as the group sends them
            for start, stop in (ranges(alone, "parameters")[p] for p in own):
                for other in updates.values():
                    other["parameters"][start:stop] = updates[own]["parameters"][start:stop]
        for own, replica in replicas.items():
            replica.complete(updates[own])
    size = alone.flat.elements
    for own, replica in replicas.items():
        np.testing.assert_array_equal(
            replica.read("parameters", 0, size), whole.read("parameters", 0, size), err_msg=str(own)
        )
        for table in ("optimizer", "optimizer_scalars"):
            for at in (ranges(alone, table)[p] for p in own):
                np.testing.assert_array_equal(
                    replica.read(table, *at), whole.read(table, *at), err_msg=str((own, table))
                )
    held = [state_elements(replica) for replica in replicas.values()]
    assert sum(held) == state_elements(whole) and max(held) < state_elements(whole)


@pytest.mark.parametrize("name", ["AdamW", "SGD"])
def test_shares_end_behind_whole_parameters(name: str) -> None:
    app = application(name)
    ends = app.share_ends(PARTITIONS)
    assert set(ends) == {table.name for table in app.tables()}
    behind = [0, *(span.end for span in app.flat.spans)]
    for table in app.tables():
        stops = ends[table.name]
        assert stops == sorted(stops) and stops[-1] == table.columns and len(stops) == PARTITIONS
    assert set(ends["parameters"]) <= set(behind)
    if name == "AdamW":  # two arrays of state, and a flag and a number of each parameter
        counts = [behind.index(stop) for stop in ends["parameters"]]
        assert ends["optimizer"] == [2 * sum(SIZES[:count]) for count in counts]
        assert ends["optimizer_scalars"] == [2 * count for count in counts]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.sets(st.integers(0, 5)), st.data())
def test_a_piece_of_what_is_given_in_parts(sizes: list[int], lacking: set[int], data: st.DataObject) -> None:
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    whole = np.arange(sum(sizes))
    given_ = [
        (start, whole[start : start + size])
        for number, (start, size) in enumerate(zip(starts, sizes, strict=True))
        if number not in lacking
    ]
    start = data.draw(st.integers(0, len(whole)))
    stop = data.draw(st.integers(start, len(whole)))
    there = {int(element) for _, part in given_ for element in part}
    found = piece_of(given_, start, stop)
    if start == stop:
        assert found is not None and not found.size
    elif set(range(start, stop)) <= there:
        assert found is not None and found.tolist() == list(range(start, stop))
    else:
        assert found is None


PLAN = [
    {"at_clock": 4, "join": 2},
    {"at_clock": 9, "kill": 1},
    {"at_clock": 14, "notice": 1, "warning_s": 30},
    {"at_clock": 18, "join": 1},
    {"at_clock": 21, "kill": 1},
]


def sharded(name: str = "AdamW", **changes: Any) -> dict[str, Any]:
    job = values(name, **changes)
    job["optimizer"]["sharded"] = True
    return job


@pytest.mark.parametrize("name", ["AdamW", pytest.param("Adafactor", marks=pytest.mark.slow)])
def test_machines_that_come_and_go_take_the_same_steps(name: str, tmp_path: Path) -> None:
    """Joins and notices deal the shares again; a killed machine takes its share along, so all go back to the cut."""
    app = TorchModule(build=Net, dataset=(X, Y))
    ran = FaultRig(sharded(name, plan=PLAN, clocks=26, stage=2), tmp_path, application=app).finish()
    assert ran.tables is not None, ran.halted
    views = ran.of(MembershipChanged)
    assert len(views) >= 5 and sum(view.rolled_back for view in views) >= 2, views
    alone = agileml.run(values(name, out=str(tmp_path / "run"), clocks=26), app, sequential=True)
    for table, found in ran.tables.items():
        np.testing.assert_allclose(found, alone.parameters[table], rtol=1e-8, atol=1e-11, err_msg=table)


@pytest.mark.slow
def test_a_run_goes_on_from_the_state_in_its_checkpoint(tmp_path: Path) -> None:
    app = TorchModule(build=Net, dataset=(X, Y))
    place = {"path": str(tmp_path / "saved"), "every_s": 0.01}
    saves = {"checkpoint": place, "cuts": {"every_s": 0.01, "max_clocks": 2}}
    first = Rig(sharded(clocks=12, **saves), tmp_path / "first", app)
    assert first.finish().tables is not None
    second = Rig(from_values(sharded(**saves)), tmp_path / "second", app, resume=place["path"]).finish()
    assert second.tables is not None, second.halted
    alone = agileml.run(values(out=str(tmp_path / "run"), clocks=CLOCKS), app, sequential=True)
    for table, found in second.tables.items():
        np.testing.assert_allclose(found, alone.parameters[table], rtol=1e-8, atol=1e-11, err_msg=table)


def test_one_machine_goes_on_alone_from_the_shares_of_several(tmp_path: Path) -> None:
    app = TorchModule(build=Net, dataset=(X, Y))
    place = {"path": str(tmp_path / "saved"), "every_s": 0.01}
    saves = {"checkpoint": place, "cuts": {"every_s": 0.01, "max_clocks": 2}, "partitions": 4}
    first = Rig(sharded(clocks=12, **saves), tmp_path / "first", app)
    assert first.finish().tables is not None
    alone = {"machines": {"reliable": 1, "transient": 0, "max": 1}, "stage": 1}
    last = Rig(from_values(sharded(**saves, **alone)), tmp_path / "last", app, resume=place["path"]).finish()
    assert last.tables is not None, last.halted
    undisturbed = agileml.run(values(out=str(tmp_path / "run"), clocks=CLOCKS), app, sequential=True)
    for table, found in last.tables.items():
        expected = undisturbed.parameters[table]
        np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-11, err_msg=table)


def test_a_machine_that_is_always_alone_sends_no_steps_to_itself() -> None:
    for most, expected in ((4, SharedStateExchange), (1, ReplicaExchange)):
        machines = {"reliable": 1, "transient": 0, "max": most}
        spec = RunSpec("run", from_values(sharded(machines=machines)), TorchModule(build=Net, dataset=(X, Y)))
        assert type(spec.job(spec.build()).exchange) is expected


def test_only_optimizers_of_torch_are_shared_out() -> None:
    job = sharded(exchange="servers")
    with pytest.raises(ValueError, match=r"optimizer\.kind: found torch with exchange: servers"):
        RunSpec("run", from_values(job), TorchModule(build=Net, dataset=(X, Y)))
    job["optimizer"] = {"kind": "adam", "sharded": True}
    with pytest.raises(ValueError, match=r"unknown key for kind adam"):
        from_values(job)
