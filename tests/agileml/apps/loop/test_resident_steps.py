"""An optimizer of a loop or a class that steps where machines compute: any of torch's, as in plain torch."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import agileml
from agileml.application import InputError
from agileml.apps.loop.module import ScriptModule
from agileml.apps.loop.optimizers import section_of
from agileml.apps.torch.flat import FlatModule
from agileml.apps.torch.resident.state import TorchOptimizer
from agileml.config.job import from_values
from agileml.config.optimizer import TorchConfig
from agileml.config.text import ConfigError
from agileml.process.spec import RunSpec
from tests.agileml.apps.loop.scripts import HEAD, loop, script, values
from tests.agileml.apps.loop.test_loop import CLIPPED, ONE, PLAN, SCHEDULED_BODY, in_plain_torch, trained
from tests.agileml.apps.loop.test_training_class import config
from tests.faults.fault_rig import FaultRig, job

pytestmark = pytest.mark.usefixtures("one_thread")

ASKED = {"exchange": "allreduce", "deterministic": False, "optimizer": {"kind": "torch"}}
GROUPS = """
biases = [p for p in model.parameters() if p.ndim < 2]
weights = [p for p in model.parameters() if p.ndim > 1]
optimizer = torch.optim.NAdam([
    {"params": weights, "weight_decay": 0.1}, {"params": biases, "lr": 0.005}
], lr=0.01, betas=(0.8, 0.9))
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 32)
"""
DOUBLE = HEAD.replace("np.float32", "np.float64").replace(
    "nn.BatchNorm1d(24), nn.ReLU(), nn.Dropout(0.1)", "nn.Tanh()"
)


def in_double(folder: Path, **parts: Any) -> str:
    return script(folder, head=DOUBLE + "model.double()\n", optimizer=GROUPS, prepare=CLIPPED, **parts)


@pytest.mark.parametrize("sharded", [False, True])
def test_a_loop_takes_the_steps_of_its_own_optimizer_through_changes_of_machines(
    sharded: bool, tmp_path: Path
) -> None:
    path = in_double(tmp_path, rest=loop(SCHEDULED_BODY))
    asked = {**ASKED, "optimizer": {"kind": "torch", "sharded": sharded}}
    ran = FaultRig(job(values(path), plan=PLAN, clocks=28, partitions=3, **asked), tmp_path / "rig").finish()
    assert ran.tables is not None, ran.halted
    alone = agileml.run(values(path, clocks=28, **ASKED), sequential=True, out=str(tmp_path / "out"))
    for table, found in ran.tables.items():
        np.testing.assert_allclose(found, alone.parameters[table], rtol=1e-8, atol=1e-11, err_msg=table)


def test_these_are_the_steps_of_plain_torch(tmp_path: Path) -> None:
    path = in_double(tmp_path, rest=loop(SCHEDULED_BODY))
    found = trained(path, tmp_path, clocks=28, slices=1, machines=ONE, **ASKED).module()
    plain = in_plain_torch(path, 28, optimizer=TorchConfig().model_dump())
    for name, tensor in plain.state_dict().items():
        torch.testing.assert_close(found.state_dict()[name], tensor, rtol=1e-9, atol=1e-12, msg=name)


def test_a_script_that_begins_anew_has_an_optimizer_over_its_new_model(tmp_path: Path) -> None:
    app = RunSpec("run", from_values(values(script(tmp_path), **ASKED))).build()
    assert isinstance(app, ScriptModule)
    parameters = app.tables()[0]
    app.check()
    app.initial(parameters)
    assert app._rule is not None and app._rule.flat is app.flat


def test_a_class_too(tmp_path: Path) -> None:
    """Momentum of torch is the engine's."""
    asked = config("Whole") | {"clocks": 20, "exchange": "allreduce", "deterministic": False}
    own, engine = (
        agileml.run({**asked, **more}, sequential=True, out=str(tmp_path / str(len(more))))
        for more in ({"optimizer": {"kind": "torch"}}, {})
    )
    for name, tensor in engine.module().state_dict().items():
        torch.testing.assert_close(own.module().state_dict()[name], tensor, rtol=1e-4, atol=1e-5, msg=name)


def test_its_section_makes_the_same_optimizer() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    groups = [
        {"params": [net[0].weight, net[1].weight]},
        {"params": [net[0].bias, net[1].bias], "weight_decay": 0.0, "lr": 0.5},
    ]
    made = torch.optim.AdamW(groups, lr=0.1, betas=(0.8, 0.9), weight_decay=0.2, fused=True)
    section = section_of(made, net, is_resident=True)
    assert section == {
        "kind": "torch",
        "name": "AdamW",
        "learning_rate": 0.1,
        "arguments": {"betas": [0.8, 0.9], "weight_decay": 0.2, "fused": True},
        "groups": [{"parameters": ["0.bias", "1.bias"], "learning_rate": 0.5, "weight_decay": 0.0}],
    }
    TorchConfig.model_validate(section)
    assert section_of(torch.optim.SGD(net.parameters(), lr=0.1), net, is_resident=True)["arguments"] == {}


class Own(torch.optim.SGD):
    """One that machines can import."""


class TakesAny(torch.optim.AdamW):
    """Its arguments have no names."""

    def __init__(self, params: Any, **named: Any) -> None:
        super().__init__(params, **named)


class Fixed(torch.optim.SGD):
    """One that sets a setting of torch's itself."""

    def __init__(self, params: Any, lr: float = 0.1, **named: Any) -> None:
        super().__init__(params, lr=lr, momentum=0.5, **named)


class Limited(torch.optim.SGD):
    """A setting is an attribute, and another one is found under no name."""

    def __init__(self, params: Any, lr: float = 0.1, limit: float = 1.0, twice: int = 1) -> None:
        super().__init__(params, lr=lr)
        self.limit, self._times = limit, 2 * twice


def wrong_optimizers() -> dict[str, tuple[Any, str]]:
    class Local(torch.optim.SGD):
        """One that nobody can."""

    def groups(net: nn.Module, **more: Any) -> list[dict[str, Any]]:
        first, *others = net.parameters()
        return [{"params": [first]}, {"params": others, **more}]

    return {
        "none": (lambda net: object(), "type object, expected a torch.optim.Optimizer"),
        "local class": (lambda net: Local(net.parameters(), lr=0.1), "a module that machines can import"),
        "groups": (
            lambda net: torch.optim.SGD(groups(net, momentum=0.5), lr=0.1),
            r"group 1 of the optimizer has momentum 0\.5 and group 0 0",
        ),
        "setting of a group": (
            lambda net: Own(groups(net, is_slow=True), lr=0.1),
            r"is_slow=True, which Own\(\.\.\.\) does not make again",
        ),
        "hidden setting": (lambda net: Limited(net.parameters(), twice=2), "_times=4, which Limited"),
        "rate": (lambda net: torch.optim.SGD(net.parameters(), lr=0.0), "lr=0, expected more than 0"),
    }


@pytest.mark.parametrize("name", wrong_optimizers())
def test_what_cannot_step_there_is_a_sentence(name: str) -> None:
    make, sentence = wrong_optimizers()[name]
    net = nn.Linear(3, 2)
    with pytest.raises(InputError, match=sentence):
        section_of(make(net), net, is_resident=True)


def test_a_class_of_the_users_has_a_name_that_machines_import() -> None:
    net = nn.Linear(3, 2)
    assert section_of(Own(net.parameters(), lr=0.1), net, is_resident=True)["name"] == f"{__name__}:Own"


def own_optimizers() -> dict[str, tuple[Any, dict[str, Any]]]:
    return {
        "any": (
            lambda net: TakesAny(net.parameters(), lr=0.1, betas=(0.5, 0.6), weight_decay=np.float64(0.5)),
            {"betas": [0.5, 0.6], "weight_decay": 0.5},
        ),
        "defaults": (lambda net: TakesAny(net.parameters(), lr=0.1), {}),
        "fixed": (lambda net: Fixed(net.parameters(), nesterov=True), {"nesterov": True}),
        "attribute": (lambda net: Limited(net.parameters(), limit=3.0), {"limit": 3.0}),
        "named": (lambda net: Own(net.named_parameters(), lr=0.1, momentum=0.5), {"momentum": 0.5}),
        "tensor": (lambda net: TakesAny(net.parameters(), lr=torch.tensor(0.1), eps=0.5), {"eps": 0.5}),
        "groups": (
            lambda net: TakesAny(
                [{"params": [net.weight], "weight_decay": 0.5}, {"params": [net.bias], "lr": 0.5}],
                weight_decay=0.2,
            ),
            {"weight_decay": 0.5},
        ),
    }


@pytest.mark.parametrize("name", own_optimizers())
def test_a_class_of_the_users_is_made_again_with_all_its_settings(name: str) -> None:
    make, arguments = own_optimizers()[name]
    net = nn.Linear(3, 2)
    section = section_of(make(net), net, is_resident=True)
    assert section["arguments"] == arguments
    again = TorchOptimizer(FlatModule(net, "net"), TorchConfig.model_validate(section).model_dump()).over(
        list(net.parameters())
    )
    for found, wanted in zip(again.param_groups, make(net).param_groups, strict=True):
        for key in wanted.keys() - {"params", "param_names", "fused"}:
            assert found[key] == pytest.approx(wanted[key]), key


def test_without_it_the_sentence_says_what_takes_any_optimizer(tmp_path: Path) -> None:
    path = in_double(tmp_path, rest=loop(SCHEDULED_BODY))
    with pytest.raises(
        InputError,
        match=r"type NAdam, expected .*any other with exchange: allreduce and optimizer: .kind: torch",
    ):
        agileml.run(values(path), sequential=True, out=str(tmp_path / "out"))


def test_a_name_is_needed_where_there_is_no_loop(tmp_path: Path) -> None:
    named = {
        "application": "torch",
        "model": {"module": "agileml.apps.torch.models:cnn", "batch_size": 64},
        "data": {"kind": "digits"},
        "clocks": 3,
        **ASKED,
    }
    with pytest.raises(ConfigError, match=r"optimizer\.name: missing, expected a class of torch\.optim"):
        agileml.run(named, sequential=True, out=str(tmp_path / "out"))
    path = in_double(tmp_path, rest=loop(SCHEDULED_BODY))
    more = {**ASKED, "optimizer": {"kind": "torch", "learning_rate": 0.5}}
    with pytest.raises(
        ConfigError, match=r"found torch, learning_rate 0\.5, but the application brings torch"
    ):
        agileml.run(values(path, **more), sequential=True, out=str(tmp_path / "out"))
