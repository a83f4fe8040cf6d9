"""Copies for cuts: what was there when they began, whatever a step does to it meanwhile."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from agileml.application import Settings
from agileml.apps.torch.module import TorchModule
from agileml.apps.torch.resident.copies import HostCopies, PieceToCopy, norm_of
from agileml.apps.torch.resident.replica import TorchReplica
from agileml.config.job import from_values
from agileml.core.node.shard.resident_blocks import ResidentBlocks
from agileml.core.parameters.finite import AT_ONCE
from agileml.core.parameters.layout import Layout
from tests.agileml.apps.torch.resident.test_replica import values
from tests.agileml.process.engine_rig import Rig

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")),
]
OPTIMIZER = {
    "kind": "torch",
    "name": "AdamW",
    "learning_rate": 0.01,
    "arguments": {},
    "clip_norm": None,
    "groups": [],
}
X = np.zeros((4, 6), np.float32)
Y = np.zeros(4, np.int64)


class Net(nn.Module):
    """Has a layer that no gradient reaches: the optimizer keeps no state of it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 2000)
        self.unused = nn.Linear(7, 3)
        self.head = nn.Linear(2000, 200)


def replica_on(device: str) -> tuple[TorchReplica, dict[str, int]]:
    """A replica after a step, and the elements of its tables."""
    settings = Settings({}, {"device": device}, 3, 2, optimizer=OPTIMIZER)
    app = TorchModule(settings, build=Net, dataset=(X, Y))
    replica = app.replica(lambda clock: 0.01)
    tables = {table.name: table for table in app.tables()}
    replica.place({name: [(0, app.initial(table).reshape(-1))] for name, table in tables.items()})
    sizes = {name: table.columns for name, table in tables.items()}
    replica.step(0, {"parameters": gradient(app, sizes["parameters"])})
    return replica, sizes


def gradient(app: TorchModule, elements: int) -> np.ndarray[Any, Any]:
    found = np.full(elements, -0.0, np.float32)
    for span in app.flat.spans:
        if "unused" not in span.name:
            found[span.start : span.stop] = 0.1
    return found


@pytest.mark.parametrize("device", DEVICES)
def test_a_copy_is_of_the_version_that_it_was_begun_at(device: str) -> None:
    replica, sizes = replica_on(device)
    ranges = [(name, start, size) for name, size in sizes.items() for start in (0, size // 3)]
    before = [replica.read(*each) for each in ranges]
    copying = replica.copy(ranges)
    replica.step(1, {"parameters": np.ones(sizes["parameters"], np.float32)})
    copying.wait()
    assert copying.is_done()
    for array, expected, each in zip(copying.arrays, before, ranges, strict=True):
        np.testing.assert_array_equal(array, expected, err_msg=str(each))
        assert array.dtype == expected.dtype
        changed = replica.read(*each)
        assert (changed != expected).any(), each  # the step did change what was copied


def test_a_step_waits_for_the_copies_before_it() -> None:
    copies = HostCopies()
    begun, may_end = threading.Event(), threading.Event()

    class Held(PieceToCopy):
        def place(self) -> torch.Tensor:
            begun.set()
            may_end.wait()
            return super().place()

    goal, source = torch.zeros(3), torch.ones(3)
    copying = copies.begin([goal.numpy()], [Held(goal, 0, source)])
    begun.wait()
    assert not copying.is_done()
    may_end.set()
    copies.settle()
    assert goal.all() and copying.is_done()


def test_a_copy_that_fails_says_so() -> None:
    copies = HostCopies()
    copying = copies.begin([], [PieceToCopy(torch.zeros(2), 0, torch.zeros(2).bfloat16())])
    with pytest.raises(TypeError):
        copying.wait()
    with pytest.raises(TypeError):
        copying.is_done()


SIZES = st.sampled_from([0, 1, 7, AT_ONCE - 1, AT_ONCE, 2 * AT_ONCE + 3])
WRONG = [None, np.nan, np.inf, -np.inf]


@given(
    st.lists(st.tuples(SIZES, st.booleans()), max_size=5),
    st.sampled_from(WRONG),
    st.floats(0, 1, exclude_max=True),
    st.integers(0, 4),
)
def test_a_number_that_is_not_finite_is_seen_while_it_is_copied(
    kinds: list[tuple[int, bool]], wrong: float | None, place: float, which: int
) -> None:
    sources = [torch.full((size,), 2.5, dtype=torch.float64 if wide else None) for size, wide in kinds]
    there = [source for source in sources if source.numel()]
    is_finite = wrong is None or not there
    if wrong is not None and there:
        chosen = there[which % len(there)]
        chosen[int(place * chosen.numel())] = wrong
    goals = [torch.empty_like(source) for source in sources]
    pieces = [PieceToCopy(goal, 0, source) for goal, source in zip(goals, sources, strict=True)]
    copying = HostCopies().begin([goal.numpy() for goal in goals], pieces)
    copying.wait()
    assert copying.is_finite() is is_finite
    assert bool(torch.isfinite(norm_of(sources)).all()) is is_finite  # as it is looked for on a device
    for goal, source in zip(goals, sources, strict=True):
        torch.testing.assert_close(goal, source, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("wrong", WRONG)
def test_a_copy_tells_whether_all_of_it_is_finite(device: str, wrong: float | None) -> None:
    replica, sizes = replica_on(device)
    if wrong is not None:
        updates = np.zeros(sizes["parameters"], np.float32)
        updates[5] = wrong
        replica.step(1, {"parameters": updates})
    copying = replica.copy([(name, 0, size) for name, size in sizes.items()])
    copying.wait()
    assert copying.is_finite() is (wrong is None)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("wrong", [False, True])
def test_a_partition_tells_of_its_last_whole_copy_alone(device: str, wrong: bool) -> None:
    replica, sizes = replica_on(device)
    if wrong:
        replica.step(1, {"parameters": np.full(sizes["parameters"], np.nan, np.float32)})
    app = TorchModule(Settings({}, {"device": device}, 3, 2, optimizer=OPTIMIZER), build=Net, dataset=(X, Y))
    blocks = ResidentBlocks(replica, Layout(tuple(app.tables()), 1), 0, is_owner=True)
    assert not blocks.is_finite_at(7)
    blocks.copied([np.empty(0)] * len(app.tables()), 7)
    assert not blocks.is_finite_at(7), "it may be under way"
    assert blocks.is_copied(waits=True)
    assert blocks.is_finite_at(7) is not wrong and not blocks.is_finite_at(8)


class Idle(nn.Module):
    """Has a parameter that no loss shows."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 4)
        self.idle = nn.Parameter(torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x) + 0 * torch.nan_to_num(self.idle).sum()


class Spoils(torch.optim.SGD):
    """Writes NaN into that parameter in its eighth step."""

    calls = 0

    def step(self, closure: Any = None) -> Any:
        found = super().step(closure)
        self.calls += 1
        for parameter in (p for group in self.param_groups for p in group["params"]):
            if self.calls == 8 and parameter.shape == (3,):
                parameter.detach().fill_(torch.nan)
        return found


def test_a_cut_with_a_number_that_is_none_is_no_cut(tmp_path: Path) -> None:
    job = values(f"{__name__}:Spoils", clocks=60, cuts={"every_s": 0.001, "max_clocks": 1})
    job["model"] = {"batch_size": 4}
    job["optimizer"] |= {"clip_norm": None, "groups": []}
    ran = Rig(from_values(job), tmp_path, TorchModule(build=Idle, dataset=(X, Y))).finish()
    assert ran.halted is not None and "parameters of partition" in ran.halted.reason, ran.halted
    assert ran.halted.kept is not None and ran.halted.kept.clock < 8
