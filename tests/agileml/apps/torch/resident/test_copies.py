"""Copies for cuts: what was there when they began, whatever a step does to it meanwhile."""

import threading
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from agileml.application import Settings
from agileml.apps.torch.module import TorchModule
from agileml.apps.torch.resident.copies import HostCopies, PieceToCopy
from agileml.apps.torch.resident.replica import TorchReplica

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
