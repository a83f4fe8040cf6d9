"""Parameter groups, schedules by a function, and parameters that no loss reaches: what torch.optim does with them."""

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
from agileml.process.spec import RunSpec
from agileml.runs.model_file import params_sha256
from tests.agileml.process.engine_rig import Rig

X = np.random.default_rng(1).normal(size=(48, 6))
Y = (X[:, 0] > 0).astype(np.int64)
CLOCKS = 30


class Net(nn.Module):
    """One of its layers is not used, so no loss reaches it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.norm = nn.LayerNorm(8)
        self.unused = nn.Linear(8, 8)
        self.head = nn.Linear(8, 2)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.norm(self.first(x))))


def factor(clock: int) -> float:
    """Warm-up, then a line down."""
    return min((clock + 1) / 5, 1.0) * (1 - clock / 60)


GROUPS = [
    {"parameters": ["*.bias", "norm.*"], "weight_decay": 0.0},
    {"parameters": ["head.*"], "learning_rate": 0.003},
]


def values(**changes: Any) -> dict[str, Any]:
    return {
        "application": "torch",
        "model": {"batch_size": 48},
        "optimizer": {
            "kind": "adamw",
            "learning_rate": 0.01,
            "weight_decay": 0.1,
            "groups": GROUPS,
            "schedule": {"kind": "function", "function": f"{__name__}:factor"},
        },
        "clocks": CLOCKS,
        "seed": 3,
        "slices": 2,
        "partitions": 3,
        "machines": {"reliable": 1, "transient": 1, "max": 2},
    } | changes


def in_torch(module: nn.Module) -> torch.optim.Optimizer:
    named = dict(module.named_parameters())
    plain = [named.pop(name) for name in [n for n in named if n.endswith(".bias") or n.startswith("norm.")]]
    head = [named.pop(name) for name in [n for n in named if n.startswith("head.")]]
    groups = [
        {"params": list(named.values())},
        {"params": plain, "weight_decay": 0.0},
        {"params": head, "lr": 0.003},
    ]
    return torch.optim.AdamW(groups, lr=0.01, weight_decay=0.1)


def test_groups_and_a_schedule_are_those_of_torch(tmp_path: Path) -> None:
    app = TorchModule(build=Net, dataset=(X, Y))
    result = agileml.run(values(out=str(tmp_path / "run")), app, sequential=True)
    torch.manual_seed(3)
    module = Net()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    theirs = in_torch(module)
    schedule = torch.optim.lr_scheduler.LambdaLR(theirs, factor)
    for _ in range(CLOCKS):
        theirs.zero_grad()
        nn.functional.cross_entropy(module(torch.from_numpy(X)), torch.from_numpy(Y)).backward()
        theirs.step()
        schedule.step()
    found = result.module().state_dict()
    for name, tensor in module.state_dict().items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-9, atol=1e-12, msg=name)
    assert torch.equal(found["unused.weight"], before["unused.weight"]), "decayed, though no loss reaches it"
    assert [row["learning_rate"] for row in result.history[:6]] == pytest.approx(
        [0.01 * factor(clock) for clock in range(6)]
    )
    again = in_torch(result.module())
    again.load_state_dict(torch.load(result.folder / "optimizer.pt", weights_only=True))
    assert [group["lr"] for group in again.param_groups] == pytest.approx(
        [group["lr"] for group in theirs.param_groups]
    )


def listed(clock: int) -> float:
    return [1.0, 0.5, 0.25][clock]


def polynomial(clock: int) -> float:
    return (1 - clock / 3) ** 0.9 if clock < 3 else -0.1


@pytest.mark.parametrize(("function", "last"), [("listed", 0.25), ("polynomial", (1 / 3) ** 0.9)])
def test_a_schedule_may_end_with_the_run(function: str, last: float, tmp_path: Path) -> None:
    """The rate in optimizer.pt is that of the next clock, if there is one."""
    schedule = {"kind": "function", "function": f"{__name__}:{function}"}
    section = {"kind": "adamw", "learning_rate": 0.01, "schedule": schedule}
    job = values(clocks=3, out=str(tmp_path / "run"), optimizer=section)
    result = agileml.run(job, TorchModule(build=Net, dataset=(X, Y)), sequential=True)
    state = torch.load(result.folder / "optimizer.pt", weights_only=True)
    assert state["param_groups"][0]["lr"] == pytest.approx(0.01 * last)


@pytest.mark.parametrize("exchange", ["servers", pytest.param("allreduce", marks=pytest.mark.slow)])
def test_machines_take_the_same_steps(exchange: str, tmp_path: Path) -> None:
    job = values(exchange=exchange, plan=[{"at_clock": 10, "notice": 1, "warning_s": 30}])
    app = TorchModule(build=Net, dataset=(X, Y))
    ran = Rig(job, tmp_path, app).finish()
    assert ran.tables is not None, ran.halted
    alone = agileml.run(values(out=str(tmp_path / "run")), app, sequential=True)
    if exchange == "servers":
        assert ran.sha256 == params_sha256(alone.parameters)
    np.testing.assert_allclose(
        ran.tables["parameters"], alone.parameters["parameters"], rtol=1e-8, atol=1e-11
    )


def fails(clock: int) -> float:
    return 1.0 / abs(clock - CLOCKS + 1)


def negative(clock: int) -> float:
    return -1.0


def has_a_hole(clock: int) -> float | None:
    if clock < 7:
        return 1.0
    return 0.1 if clock > 7 else None


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no match": (
        {"groups": [{"parameters": ["bais"]}]},
        "found bais, expected patterns of which one matches",
    ),
    "a key": ({"groups": [{"parameters": ["*"], "momentum": 0.1}]}, "unknown key"),
    "no function": ({"schedule": {"kind": "function", "function": f"{__name__}:no"}}, "has no function 'no'"),
    "negative": ({"schedule": {"kind": "function", "function": f"{__name__}:negative"}}, "expected a factor"),
    "fails": (
        {"schedule": {"kind": "function", "function": f"{__name__}:fails"}},
        "failed: ZeroDivisionError",
    ),
    "a hole": (
        {"schedule": {"kind": "function", "function": f"{__name__}:has_a_hole"}},
        "has_a_hole(7) returned None, expected a factor",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_sections_that_are_wrong(name: str) -> None:
    section, sentence = WRONG[name]
    app = TorchModule(build=Net, dataset=(X, Y))
    with pytest.raises(ValueError) as found:
        agileml.run(values(optimizer=section), app, sequential=True)
    assert sentence in str(found.value) and "\n" not in str(found.value)


def test_groups_need_names() -> None:
    config = from_values({"application": "mlr", "clocks": 1, "optimizer": {"groups": GROUPS}})
    spec = RunSpec("x", config)
    with pytest.raises(ConfigError, match="found groups with mlr"):
        spec.job(spec.build())
