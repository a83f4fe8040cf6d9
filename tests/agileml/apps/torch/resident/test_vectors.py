"""Gradients that are handed out as vectors on a device take the steps of those that are arrays, through all changes.

The vectors lie on the CPU here: what differs on a GPU is where their memory is.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import agileml
from agileml.application import Array, DeviceVector, Settings, Unit
from agileml.apps.torch.cuda import CudaStepper
from agileml.apps.torch.flat import PARAMETERS, FlatModule, lay_out
from agileml.apps.torch.module import TorchModule
from agileml.apps.torch.names import objective_of
from agileml.apps.torch.resident.replica import reached_on_device
from agileml.apps.torch.step import Stepper
from agileml.events.run import MembershipChanged
from agileml.net.tensor_vector import TensorVector
from tests.agileml.apps.torch.resident.test_replica import Net, X, Y, values
from tests.agileml.apps.torch.resident.test_sharded import PLAN, sharded
from tests.faults.fault_rig import FaultRig


class HandsOutVectors(Stepper):
    """Its gradients are vectors where a replica has the parameters, as those of a CUDA device are."""

    def _begin(self) -> Array | DeviceVector:
        array = super()._begin()
        if self._resident is None:
            return array
        self._kept = None
        self._written = set()
        return TensorVector(self._flat_gradient(), self._written)


class OnDevice(TorchModule):
    def with_settings(self, settings: Settings) -> TorchModule:
        return OnDevice(settings, **self._own)

    def __reduce__(self) -> Any:
        return _restored, (self.settings, self._own)

    def _stepper_of(self, flat: FlatModule) -> Stepper:
        return HandsOutVectors(flat, objective_of(None, self.model.loss), self.model.autocast)


def _restored(settings: Settings, own: dict[str, Any]) -> TorchModule:
    return OnDevice(settings, **own)


@pytest.mark.parametrize(
    ("make", "partitions"),
    [
        (values, 1),
        (sharded, 5),
        *(pytest.param(*more, marks=pytest.mark.slow) for more in ((values, 5), (sharded, 1))),
    ],
)
def test_machines_that_come_and_go_take_the_same_steps(make: Any, partitions: int, tmp_path: Path) -> None:
    app = OnDevice(build=Net, dataset=(X, Y))
    job = make(plan=PLAN, clocks=26, stage=2, partitions=partitions)
    ran = FaultRig(job, tmp_path, application=app).finish()
    assert ran.tables is not None, ran.halted
    assert len(ran.of(MembershipChanged)) >= 5
    alone = agileml.run(
        values(out=str(tmp_path / "run"), clocks=26), TorchModule(build=Net, dataset=(X, Y)), sequential=True
    )
    for table, found in ran.tables.items():
        np.testing.assert_allclose(found, alone.parameters[table], rtol=1e-8, atol=1e-11, err_msg=table)


def test_one_process_takes_the_same_steps(tmp_path: Path) -> None:
    on_cpu = {"batch_size": 48, "device": "cpu"}
    found = [
        agileml.run(
            values(out=str(tmp_path / str(n)), clocks=8, model=on_cpu), app, sequential=True
        ).parameters
        for n, app in enumerate((OnDevice(build=Net, dataset=(X, Y)), TorchModule(build=Net, dataset=(X, Y))))
    ]
    for table in found[0]:
        np.testing.assert_array_equal(found[0][table], found[1][table])


def test_a_unit_hands_out_vectors() -> None:
    section = {"kind": "torch", "name": "SGD", "learning_rate": 0.1, "arguments": {}, "groups": []}
    optimizer = {**section, "clip_norm": None, "sharded": False}
    app = OnDevice(Settings({}, {}, optimizer=optimizer), build=Net, dataset=(X, Y))
    app.replica(lambda clock: 0.1)
    updates = app.process(Unit(0, 0), app.load(0), {})
    found = updates.tables[PARAMETERS]
    assert isinstance(found, TensorVector)
    assert found.written == {"first.weight", "first.bias", "head.weight", "head.bias"}


def test_a_loss_that_is_on_the_host_is_known_at_once() -> None:
    stepper = object.__new__(CudaStepper)
    stepper._host, stepper._late = None, []
    assert stepper._sum_of(torch.tensor(0.5, requires_grad=True), 4) == 2.0 and not stepper._late


@pytest.mark.parametrize("is_alone", [False, True])
def test_machines_step_the_same_parameters_along_a_sum_of_minus_zeros(*, is_alone: bool) -> None:
    """One had a gradient of -0.0 for each parameter, another had none. A machine that is alone asks its backward."""
    section = {"kind": "torch", "name": "AdamW", "learning_rate": 0.1, "arguments": {}, "groups": []}
    optimizer = {**section, "clip_norm": None, "sharded": False}
    found = []
    for written in (True, False):
        settings = Settings({}, {}, optimizer=optimizer, is_alone=is_alone)
        app = OnDevice(settings, build=Net, dataset=(X, Y))
        start = {t.name: [(0, app.initial(t).reshape(-1))] for t in app.tables() if t.resident}
        replica = app.replica(lambda clock: 0.1)
        replica.place(start)
        names = {span.name for span in app.flat.spans} if written else set()
        gradient = torch.full((app.flat.elements,), -0.0, dtype=torch.float64)
        replica.step(0, {PARAMETERS: TensorVector(gradient, names)})
        found.append(replica.read(PARAMETERS, 0, app.flat.elements))
    assert (found[0] == found[1]).all() != is_alone


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_parameter_is_reached_where_an_element_is_not_minus_zero(dtype: torch.dtype) -> None:
    spans = lay_out((name, torch.Size([3])) for name in "abcd")
    gradient = torch.zeros(spans[-1].end, dtype=dtype)
    rows = {"a": [-0.0, -0.0, -0.0], "b": [-0.0, 0.0, -0.0], "c": [0.0, 0.0, 0.0], "d": [-0.0, -0.0, -3.0]}
    for span in spans:
        gradient[span.start : span.stop] = torch.tensor(rows[span.name], dtype=dtype)
    firsts = torch.tensor([span.start for span in spans])
    assert reached_on_device(gradient, spans, firsts) == [False, True, True, True]
