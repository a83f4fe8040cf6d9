"""Optimizers of torch that step where the machine computes: what plain torch does, through changes of machines."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import agileml
from agileml.apps.torch.flat import FlatModule
from agileml.apps.torch.module import TorchModule
from agileml.apps.torch.resident.state import TorchOptimizer
from agileml.config.job import from_values
from agileml.events.run import MembershipChanged
from tests.agileml.process.engine_rig import Rig
from tests.faults.fault_rig import FaultRig

X = np.random.default_rng(1).normal(size=(48, 6))
Y = (X[:, 0] > 0).astype(np.int64)
CLOCKS = 25
RATE = 0.02


class Net(nn.Module):
    """Has a layer that no loss reaches, and one with running means."""

    def __init__(self, *, norm: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(6, 40)
        self.norm = nn.BatchNorm1d(40) if norm else nn.Identity()
        self.unused = nn.Linear(3, 3)
        self.head = nn.Linear(40, 2)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.norm(self.first(x))))


def normed() -> nn.Module:
    return Net(norm=True)


def factor(clock: int) -> float:
    return min((clock + 1) / 5, 1.0) * (1 - clock / 60)


def values(name: str = "AdamW", arguments: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    return {
        "application": "torch",
        "model": {"batch_size": 48},
        "optimizer": {
            "kind": "torch",
            "name": name,
            "learning_rate": RATE,
            "arguments": arguments or {},
            "clip_norm": 0.1,
            "groups": [{"parameters": ["*.bias"], "learning_rate": RATE / 2, "weight_decay": 0.0}],
            "schedule": {"kind": "function", "function": f"{__name__}:factor"},
        },
        "exchange": "allreduce",
        "clocks": CLOCKS,
        "seed": 3,
        "slices": 4,
        "partitions": 3,
        "machines": {"reliable": 1, "transient": 1, "max": 4},
        "cuts": {"every_s": 0.05, "max_clocks": 4},
    } | changes


def in_torch(module: nn.Module, name: str, arguments: dict[str, Any]) -> torch.optim.Optimizer:
    biases = [p for n, p in module.named_parameters() if n.endswith("bias")]
    others = [p for n, p in module.named_parameters() if not n.endswith("bias")]
    groups = [{"params": others}, {"params": biases, "lr": RATE / 2, "weight_decay": 0.0}]
    return getattr(torch.optim, name)(groups, lr=RATE, **arguments)


def step(module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    nn.functional.cross_entropy(module(torch.from_numpy(X)), torch.from_numpy(Y)).backward()
    nn.utils.clip_grad_norm_(module.parameters(), 0.1)
    optimizer.step()


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("AdamW", {"weight_decay": 0.1}),
        ("Adam", {"amsgrad": True, "foreach": True}),
        ("SGD", {"momentum": 0.9, "nesterov": True}),
        pytest.param("SGD", {}, marks=pytest.mark.slow),
        ("RMSprop", {"centered": True, "momentum": 0.5}),
        pytest.param("NAdam", {}, marks=pytest.mark.slow),
        ("Adafactor", {}),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value) or "plain",
)
def test_its_steps_are_torchs(name: str, arguments: dict[str, Any], tmp_path: Path) -> None:
    app = TorchModule(build=Net, dataset=(X, Y))
    result = agileml.run(values(name, arguments, out=str(tmp_path / "run")), app, sequential=True)
    torch.manual_seed(3)
    module = Net()
    before = module.unused.weight.detach().clone()
    optimizer = in_torch(module, name, arguments)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    for _ in range(CLOCKS):
        step(module, optimizer)
        schedule.step()
    mine = result.module()
    for key, tensor in module.state_dict().items():
        torch.testing.assert_close(mine.state_dict()[key], tensor, rtol=1e-9, atol=1e-12, msg=key)
    assert torch.equal(mine.unused.weight, before), "decayed, though no loss reaches it"  # type: ignore[union-attr]
    # The file is the optimizer's own state: the next steps are the same as well.
    again = in_torch(mine, name, arguments)
    again.load_state_dict(torch.load(result.folder / "optimizer.pt", weights_only=True))
    for _ in range(3):
        step(module, optimizer)
        step(mine, again)
    for key, tensor in module.state_dict().items():
        torch.testing.assert_close(mine.state_dict()[key], tensor, rtol=1e-9, atol=1e-12, msg=key)


def partly_frozen() -> nn.Module:
    net = Net()
    net.first.requires_grad_(False)
    net.head.bias.requires_grad_(False)
    return net


def test_the_state_in_the_file_is_over_all_parameters_frozen_ones_too(tmp_path: Path) -> None:
    app = TorchModule(build=partly_frozen, dataset=(X, Y))
    result = agileml.run(values(clocks=3, out=str(tmp_path / "run")), app, sequential=True)
    again = in_torch(result.module(), "AdamW", {})
    again.load_state_dict(torch.load(result.folder / "optimizer.pt", weights_only=True))
    stepped = [p for p, state in again.state.items() if state]
    assert [tuple(p.shape) for p in stepped] == [(2, 40)] and all(p.requires_grad for p in stepped)


def matrices() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 2).double(), nn.LayerNorm(2).double().requires_grad_(False)).append(
        nn.Linear(2, 2, bias=False).double()
    )


def test_of_a_class_that_takes_no_frozen_parameters_the_file_has_the_others(tmp_path: Path) -> None:
    def build() -> nn.Module:
        module = matrices()
        module[0].bias.requires_grad_(False)  # type: ignore[index, union-attr]
        return module

    job = values("Muon", clocks=2, out=str(tmp_path / "run"))
    job["optimizer"].pop("groups")
    result = agileml.run(job, TorchModule(build=build, dataset=(X, Y)), sequential=True)
    state = torch.load(result.folder / "optimizer.pt", weights_only=True)
    assert [group["params"] for group in state["param_groups"]] == [[0, 1]] and sorted(state["state"]) == [
        0,
        1,
    ]


@pytest.mark.parametrize("dampening", [0.0, 0.5])
def test_momentum_may_begin_later_for_some(dampening: float) -> None:
    """As of a layer that no loss reaches at first; the state is read and loaded in between, as when a machine joins."""
    section = values("SGD", {"momentum": 0.9, "dampening": dampening})["optimizer"] | {"groups": []}
    flat, theirs = FlatModule(Net(), "test"), Net()
    theirs.load_state_dict(flat.module.state_dict())
    rule = TorchOptimizer(flat, section)
    ours = [parameter for _, parameter in flat.parameters]
    optimizer = rule.over(ours)
    plain = torch.optim.SGD(theirs.parameters(), lr=RATE, momentum=0.9, dampening=dampening)
    generator = torch.Generator().manual_seed(0)
    for number in range(6):
        for place, (mine, other) in enumerate(zip(ours, theirs.parameters(), strict=True)):
            gradient = torch.randn(mine.shape, generator=generator, dtype=mine.dtype)
            is_reached = number > 2 or place != 1
            mine.grad, other.grad = (gradient.clone(), gradient) if is_reached else (None, None)
        rule.begin_momentum(optimizer, [p for p in ours if p.grad is not None])
        optimizer.step()
        plain.step()
        if number == 2:
            state = [table for table in rule.beside(flat.tables()) if table.name.startswith("optimizer")]
            read = {table.name: rule.read(optimizer, ours, table.name, 0, table.columns) for table in state}
            optimizer = rule.over(ours)
            rule.load(optimizer, {name: [(0, array)] for name, array in read.items()})
    for mine, other in zip(ours, theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-12, atol=1e-14)


class Small(torch.optim.Optimizer):
    """Keeps its momentum in bfloat16, counts its steps as an int, and has another rate on every third."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in (p for p in group["params"] if p.grad is not None):
                state = self.state[parameter]
                if not state:
                    state |= {"steps": 0, "moving": torch.zeros_like(parameter, dtype=torch.bfloat16)}
                state["moving"].mul_(0.9).add_(parameter.grad.bfloat16())
                parameter.sub_(group["lr"] * [1.0, 0.5, 0.25][state["steps"] % 3] * state["moving"])
                state["steps"] += 1


class Skipping(Small):
    """Leaves parameters alone whose gradient is zero."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in (p for p in group["params"] if p.grad is not None and not p.grad.any()):
                parameter.grad = None
        return super().step(closure)


OWN = {f"{__name__}:{made.__name__}": made for made in (Small, Skipping)}


@pytest.mark.parametrize("name", ["NAdam", *OWN])
def test_a_machine_that_joins_has_the_state_as_the_class_keeps_it(name: str) -> None:
    section = values(name)["optimizer"] | {"groups": []}
    flat, theirs = FlatModule(Net(), "test"), Net()
    theirs.load_state_dict(flat.module.state_dict())
    rule = TorchOptimizer(flat, section)
    made = OWN.get(name, torch.optim.NAdam)
    ours, plain = [p for _, p in flat.parameters], made(theirs.parameters(), lr=RATE)
    optimizer = rule.over(ours)
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        for mine, other in zip(ours, theirs.parameters(), strict=True):
            other.grad = torch.randn(mine.shape, generator=generator, dtype=mine.dtype)
            mine.grad = other.grad.clone()
        optimizer.step()
        plain.step()
        state = [table for table in rule.beside(flat.tables()) if table.name.startswith("optimizer")]
        read = {table.name: rule.read(optimizer, ours, table.name, 0, table.columns) for table in state}
        optimizer = rule.over(ours)
        rule.load(optimizer, {name: [(0, array)] for name, array in read.items()})
    for mine, other in zip(ours, theirs.parameters(), strict=True):
        assert torch.equal(mine, other)


PLAN = [
    {"at_clock": 4, "join": 2},
    {"at_clock": 9, "kill": 1},
    {"at_clock": 14, "notice": 1, "warning_s": 30},
    {"at_clock": 18, "join": 1},
    {"at_clock": 21, "kill": 1},
]


@pytest.mark.parametrize("name", ["AdamW", pytest.param("Adafactor", marks=pytest.mark.slow)])
def test_machines_that_come_and_go_take_the_same_steps(name: str, tmp_path: Path) -> None:
    """Newcomers copy parameters and state from a peer, a dead machine's clock is computed again."""
    app = TorchModule(build=Net, dataset=(X, Y))
    ran = FaultRig(values(name, plan=PLAN, clocks=26), tmp_path, application=app).finish()
    assert ran.tables is not None, ran.halted
    assert len(ran.of(MembershipChanged)) >= 5
    alone = agileml.run(values(name, out=str(tmp_path / "run"), clocks=26), app, sequential=True)
    for table, found in ran.tables.items():
        np.testing.assert_allclose(found, alone.parameters[table], rtol=1e-8, atol=1e-11, err_msg=table)


def test_buffers_are_beside_the_replica(tmp_path: Path) -> None:
    """One machine, because batch norm sees the items of its machine alone."""
    app = TorchModule(build=normed, dataset=(X, Y))
    ran = Rig(values(machines={"reliable": 1, "transient": 0, "max": 2}), tmp_path, app).finish()
    assert ran.tables is not None, ran.halted
    alone = agileml.run(values(out=str(tmp_path / "run")), app, sequential=True)
    assert ran.tables.keys() > {"parameters", "buffers", "counters", "optimizer"}
    for table, found in ran.tables.items():
        np.testing.assert_allclose(found, alone.parameters[table], rtol=1e-8, atol=1e-11, err_msg=table)


def test_a_run_goes_on_from_the_state_in_its_checkpoint(tmp_path: Path) -> None:
    app = TorchModule(build=Net, dataset=(X, Y))
    place = {"path": str(tmp_path / "saved"), "every_s": 0.01}
    saves = {"checkpoint": place, "cuts": {"every_s": 0.01, "max_clocks": 2}}
    first = Rig(values(clocks=12, **saves), tmp_path / "first", app)
    assert first.finish().tables is not None
    config = from_values(values(clocks=CLOCKS, **saves))
    second = Rig(config, tmp_path / "second", app, resume=place["path"]).finish()
    assert second.tables is not None, second.halted
    alone = agileml.run(values(out=str(tmp_path / "run")), app, sequential=True)
    for table, found in second.tables.items():
        np.testing.assert_allclose(found, alone.parameters[table], rtol=1e-8, atol=1e-11, err_msg=table)


class Counting(torch.optim.SGD):
    """Counts its steps in its groups."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            group["steps"] = group.get("steps", 0) + 1
        return super().step(closure)


class Late(torch.optim.SGD):
    """Has more state from its second step on."""

    def step(self, closure: Any = None) -> Any:
        for state in self.state.values():
            state["slow"] = 1.0 if "seen" in state else None
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["seen"] = 1.0
        return super().step(closure)


WRONG: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "no such class": (
        {"name": "AdamX"},
        {},
        "optimizer.name: found 'AdamX', expected a class of torch.optim",
    ),
    "no such module": ({"name": "nowhere:Lion"}, {}, "optimizer.name: nowhere:Lion cannot be imported"),
    "an argument": ({"arguments": {"beta": 1}}, {}, "got an unexpected keyword argument 'beta'"),
    "a closure": (
        {"name": "LBFGS", "groups": []},
        {},
        "expected an optimizer that steps by the gradients alone",
    ),
    "state of a group": (
        {"name": f"{__name__}:Counting"},
        {},
        "Counting keeps 'steps' for a whole group or from its second step on, expected state of each parameter",
    ),
    "state that comes later": (
        {"name": f"{__name__}:Late"},
        {},
        "Late keeps 'slow' for a whole group or from its",
    ),
    "servers": ({}, {"exchange": "servers"}, "optimizer.kind: found torch with exchange: servers"),
    "rows": ({}, {"application": "mlr", "model": {}}, "optimizer.kind: found torch with application mlr"),
    "deterministic": ({}, {"deterministic": True}, "deterministic: found true with exchange: allreduce"),
    "processes": (
        {},
        {"machines": {"reliable": 1, "transient": 0, "max": 4, "workers": 2}},
        "machines.workers: found 2 with optimizer.kind torch, expected 1",
    ),
    "a key of ours": ({"weight_decay": 0.1}, {}, "unknown key for kind torch"),
}


@pytest.mark.parametrize("name", WRONG)
def test_sections_that_are_wrong(name: str) -> None:
    section, changes, sentence = WRONG[name]
    job = values(**changes)
    job["optimizer"] |= section
    app = TorchModule(build=Net, dataset=(X, Y)) if "application" not in changes else None
    with pytest.raises(ValueError) as found:
        agileml.run(job, app, sequential=True)
    assert sentence in str(found.value) and "\n" not in str(found.value), found.value
