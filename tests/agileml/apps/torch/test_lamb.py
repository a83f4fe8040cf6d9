"""LAMB in running jobs: the steps of the paper on a module, and the same bits on any machines."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import agileml
from agileml.apps.torch.module import TorchModule
from agileml.config.job import from_values
from agileml.config.optimizer import BY_ROW, SERVED
from agileml.config.text import ConfigError
from agileml.core.parameters.optimizer import KINDS, optimizer
from agileml.events.run import MembershipChanged
from tests.agileml.apps.torch.test_clipping import Net
from tests.agileml.process.engine_rig import Rig, reference
from tests.faults.fault_rig import FaultRig

X = np.random.default_rng(1).normal(size=(48, 6))
Y = (X[:, 0] > 0).astype(np.int64)
CLOCKS = 24
RATE, DECAY, EPSILON = 0.02, 0.01, 1e-6


def values(**changes: Any) -> dict[str, Any]:
    return {
        "application": "torch",
        "model": {"batch_size": 48},
        "optimizer": {
            "kind": "lamb",
            "learning_rate": RATE,
            "clip_norm": 0.1,
            "groups": [{"parameters": ["*.bias"], "weight_decay": 0.0}],
        },
        "clocks": CLOCKS,
        "seed": 3,
        "slices": 4,
        "partitions": 3,
        "machines": {"reliable": 1, "transient": 1, "max": 4},
        "cuts": {"every_s": 0.05, "max_clocks": 3},
    } | changes


def by_the_paper() -> nn.Module:
    """Algorithm 2 of You et al. (2020) on the module of the job, by torch's gradients."""
    torch.manual_seed(3)
    module = Net()
    moments = {name: (torch.zeros_like(p), torch.zeros_like(p)) for name, p in module.named_parameters()}
    for step in range(1, CLOCKS + 1):
        module.zero_grad()
        nn.functional.cross_entropy(module(torch.from_numpy(X)), torch.from_numpy(Y)).backward()
        nn.utils.clip_grad_norm_(module.parameters(), 0.1)
        with torch.no_grad():
            for name, p in module.named_parameters():
                if p.grad is None:
                    continue
                m, v = moments[name]
                m.mul_(0.9).add_(p.grad, alpha=0.1)
                v.mul_(0.999).add_(p.grad**2, alpha=0.001)
                r = (m / (1 - 0.9**step)) / (torch.sqrt(v / (1 - 0.999**step)) + EPSILON)
                direction = r + (0.0 if name.endswith("bias") else DECAY) * p
                p -= RATE * p.norm() / direction.norm() * direction
    return module


def test_its_steps_are_those_of_the_paper(tmp_path: Path) -> None:
    app = TorchModule(build=Net, dataset=(X, Y))
    result = agileml.run(values(out=str(tmp_path / "run")), app, sequential=True)
    wanted = by_the_paper().state_dict()
    for name, tensor in result.module().state_dict().items():
        torch.testing.assert_close(tensor, wanted[name], rtol=1e-8, atol=1e-10, msg=name)
    state = torch.load(result.folder / "optimizer.pt", weights_only=True)["state"]
    assert {"exp_avg", "exp_avg_sq", "step"} == set(state[0]), "Adam's, of which LAMB makes its direction"


PLAN = [
    {"at_clock": 4, "join": 2},
    {"at_clock": 9, "kill": 1},
    {"at_clock": 14, "notice": "all", "warning_s": 30},
    {"at_clock": 17, "join": 2},
    {"at_clock": 20, "kill_many": "all"},
]


@pytest.mark.parametrize("partitions", [pytest.param(1, marks=pytest.mark.slow), 5])
def test_machines_that_come_go_and_die_do_not_change_a_bit(partitions: int, tmp_path: Path) -> None:
    app = TorchModule(build=Net, dataset=(X, Y))
    config = values(plan=PLAN, partitions=partitions)
    ran = FaultRig(config, tmp_path, application=app).finish()
    assert ran.sha256 == reference(config, app)
    assert len(ran.of(MembershipChanged)) > len(PLAN)


def test_an_all_reduce_takes_the_same_steps(tmp_path: Path) -> None:
    plan = [{"at_clock": 8, "join": 1}, {"at_clock": 16, "notice": 1, "warning_s": 30}]
    app = TorchModule(build=Net, dataset=(X, Y))
    ran = Rig(values(exchange="allreduce", deterministic=False, plan=plan), tmp_path, app).finish()
    assert ran.tables is not None, ran.halted
    alone = agileml.run(values(out=str(tmp_path / "run")), app, sequential=True)
    np.testing.assert_allclose(
        ran.tables["parameters"], alone.parameters["parameters"], rtol=1e-8, atol=1e-10
    )


def test_other_applications_have_a_layer_for_each_table(tmp_path: Path) -> None:
    config = {
        "application": "mlr",
        "data": {"kind": "digits"},
        "optimizer": {"kind": "lamb", "learning_rate": 0.05},
        "clocks": 8,
        "slices": 4,
        "partitions": 3,
        "machines": {"reliable": 1, "transient": 1, "max": 2},
    }
    assert Rig(config, tmp_path).finish().sha256 == reference(config)


def test_the_config_knows_which_rules_are_layerwise() -> None:
    assert {kind for kind in KINDS if optimizer(kind, learning_rate=0.1).is_layerwise} == set(SERVED) - set(
        BY_ROW
    )


def test_steps_that_are_no_clocks_are_refused() -> None:
    for kind in ("asp", "elastic"):
        free = values(consistency={"kind": kind}, deterministic=kind == "elastic")
        free["optimizer"] = {"kind": "lamb"}
        with pytest.raises(
            ConfigError, match=f"optimizer.kind: found lamb with consistency {kind}, expected bsp"
        ):
            from_values(free)


def test_tables_that_are_updated_by_row_are_refused(tmp_path: Path) -> None:
    config = {
        "application": "mf",
        "data": {"kind": "made"},
        "model": {"mode": "gradients"},
        "optimizer": {"kind": "lamb"},
        "clocks": 3,
    }
    with pytest.raises(ConfigError, match=r"lamb with mf, whose table '.*' is updated by row"):
        agileml.run(config, sequential=True, out=str(tmp_path / "run"))
