"""The norm of the whole gradient is limited: as torch.nn.utils.clip_grad_norm_ does, on any machines and partitions."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import agileml
from agileml.apps.torch.module import TorchModule
from agileml.config.job import from_values
from agileml.config.text import ConfigError
from agileml.events.run import MembershipChanged
from agileml.runs.model_file import params_sha256
from tests.agileml.process.engine_rig import Rig, reference
from tests.faults.fault_rig import FaultRig, job

X = np.random.default_rng(1).normal(size=(48, 6))
Y = (X[:, 0] > 0).astype(np.int64)
CLOCKS = 25
LIMIT = 0.1  # exceeded at first, and not at the end


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 40)
        self.unused = nn.Linear(3, 3)
        self.head = nn.Linear(40, 2)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.first(x)))


def values(**changes: Any) -> dict[str, Any]:
    return {
        "application": "torch",
        "model": {"batch_size": 48},
        "optimizer": {
            "kind": "adamw",
            "learning_rate": 0.02,
            "clip_norm": LIMIT,
            "groups": [{"parameters": ["*.bias"], "weight_decay": 0.0}],
        },
        "clocks": CLOCKS,
        "seed": 3,
        "slices": 4,
        "partitions": 3,
        "machines": {"reliable": 1, "transient": 1, "max": 3},
    } | changes


def in_torch() -> tuple[nn.Module, list[float]]:
    torch.manual_seed(3)
    module = Net()
    biases = [p for name, p in module.named_parameters() if name.endswith("bias")]
    others = [p for name, p in module.named_parameters() if not name.endswith("bias")]
    groups = [{"params": others}, {"params": biases, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=0.02)
    norms = []
    for _ in range(CLOCKS):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(torch.from_numpy(X)), torch.from_numpy(Y)).backward()
        norms.append(float(nn.utils.clip_grad_norm_(module.parameters(), LIMIT)))
        optimizer.step()
    return module, norms


def test_it_is_torchs(tmp_path: Path) -> None:
    app = TorchModule(build=Net, dataset=(X, Y))
    found = agileml.run(values(out=str(tmp_path / "run")), app, sequential=True).module().state_dict()
    module, norms = in_torch()
    assert max(norms) > LIMIT > min(norms), "both cases must come up"
    for name, tensor in module.state_dict().items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-9, atol=1e-12, msg=name)


@pytest.mark.parametrize(
    ("partitions", "transient"),
    [*(pytest.param(*some, marks=pytest.mark.slow) for some in ((1, 0), (3, 1))), (5, 2)],
)
def test_partitions_and_machines_do_not_change_a_bit(partitions: int, transient: int, tmp_path: Path) -> None:
    machines = {"reliable": 1, "transient": transient, "max": 3}
    app = TorchModule(build=Net, dataset=(X, Y))
    ran = Rig(
        values(partitions=partitions, machines=machines, stage=1 + (transient > 0)), tmp_path, app
    ).finish()
    alone = agileml.run(values(out=str(tmp_path / "run")), app, sequential=True)
    assert ran.sha256 == params_sha256(alone.parameters)


MF = {
    "application": "mf",
    "data": {"kind": "made"},
    "model": {"mode": "gradients"},
    "optimizer": {"kind": "momentum", "learning_rate": 0.001, "clip_norm": 3.0},
    "clocks_per_pass": 16,
}
MLR = {
    "application": "mlr",
    "data": {"kind": "digits"},
    "optimizer": {"kind": "adam", "learning_rate": 0.05, "clip_norm": 0.01},
    "clocks_per_pass": 4,
}
PLAN = [
    {"at_clock": 5, "join": 2},
    {"at_clock": 11, "kill": 1},
    {"at_clock": 16, "notice": 1, "warning_s": 30},
    {"at_clock": 21, "kill": 1},
]


@pytest.mark.parametrize("base", [MF, MLR], ids=["rows", "dense"])
def test_kills_joins_and_notices_do_not_change_a_bit(base: dict[str, Any], tmp_path: Path) -> None:
    wanted = job(base, plan=PLAN, clocks=26)
    ran = FaultRig(wanted, tmp_path).finish()
    assert ran.sha256 == reference(wanted)
    free = {**base["optimizer"], "clip_norm": None}
    assert ran.sha256 != reference(wanted | {"optimizer": free}), "the limit was never reached"
    assert len(ran.of(MembershipChanged)) >= 5


def test_an_all_reduce_takes_the_same_steps(tmp_path: Path) -> None:
    plan = [{"at_clock": 10, "join": 1}, {"at_clock": 17, "notice": 1, "warning_s": 30}]
    app = TorchModule(build=Net, dataset=(X, Y))
    ran = Rig(values(exchange="allreduce", plan=plan), tmp_path, app).finish()
    assert ran.tables is not None, ran.halted
    alone = agileml.run(values(out=str(tmp_path / "run")), app, sequential=True)
    np.testing.assert_allclose(
        ran.tables["parameters"], alone.parameters["parameters"], rtol=1e-8, atol=1e-11
    )


def test_stale_reads_are_clipped_too(tmp_path: Path) -> None:
    stale = {"consistency": {"kind": "ssp", "slack": 2}, "deterministic": False}
    ran = Rig(job(MLR, **stale), tmp_path).finish()
    assert ran.tables is not None, ran.halted


def test_asp_has_no_gradient_of_a_clock() -> None:
    with pytest.raises(ConfigError, match=r"clip_norm: found 0\.1 with consistency asp, expected bsp or ssp"):
        from_values(values(consistency={"kind": "asp"}, deterministic=False))
