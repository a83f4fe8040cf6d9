"""Compiled modules and activation checkpointing: the steps of the plain module, with servers and on replicas."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import agileml
from agileml.apps.torch.module import TorchModule

X = np.random.default_rng(1).normal(size=(48, 6)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64)
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "servers": {"optimizer": {"kind": "adam", "learning_rate": 0.01}},
    "replicas": {
        "exchange": "allreduce",
        "optimizer": {"kind": "torch", "name": "Adam", "learning_rate": 0.01},
    },
}


class Net(nn.Module):
    def __init__(self, *, checkpointed: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(6, 40)
        self.middle = nn.Linear(40, 40)
        self.head = nn.Linear(40, 2)
        self._checkpointed = checkpointed

    def forward(self, x: Tensor) -> Tensor:
        found = torch.tanh(self.first(x))
        if self._checkpointed:
            more = checkpoint(lambda t: torch.relu(self.middle(t)), found, use_reentrant=False)
        else:
            more = torch.relu(self.middle(found))
        return self.head(found + more)


def in_place(backend: str) -> nn.Module:
    module = Net()
    module.compile(backend=backend)
    return module


BUILDS: dict[str, Callable[[], nn.Module]] = {
    "checkpointed": lambda: Net(checkpointed=True),
    "compiled in place": lambda: in_place("aot_eager"),
    "compiled": lambda: torch.compile(Net(), backend="aot_eager"),  # type: ignore[return-value]
}


FEW = {("checkpointed", "replicas"), ("compiled", "servers")}  # each twice would be a second more


def parameters(build: Callable[[], nn.Module], exchange: str, folder: Path) -> dict[str, Tensor]:
    job = {"application": "torch", "model": {"batch_size": 48}, "clocks": 6, "slices": 2, "out": str(folder)}
    machines = {"machines": {"reliable": 1, "transient": 0, "max": 2}}
    app = TorchModule(build=build, dataset=(X, Y))
    result = agileml.run(job | machines | OPTIMIZERS[exchange], app, sequential=True)
    found = result.module().state_dict()
    return {name.removeprefix("_orig_mod."): tensor for name, tensor in found.items()}


@pytest.mark.parametrize(
    ("name", "exchange"),
    [
        pytest.param(name, exchange, marks=[] if (name, exchange) in FEW else [pytest.mark.slow])
        for name in BUILDS
        for exchange in OPTIMIZERS
    ],
)
def test_its_steps_are_those_of_the_plain_module(name: str, exchange: str, tmp_path: Path) -> None:
    plain = parameters(Net, exchange, tmp_path / "plain")
    found = parameters(BUILDS[name], exchange, tmp_path / "run")
    assert found.keys() == plain.keys()
    for key, tensor in plain.items():
        torch.testing.assert_close(found[key], tensor, rtol=1e-5, atol=1e-6, msg=key)


def test_a_compiled_module_keeps_the_forward_of_its_layers() -> None:
    """One of ours would end the compiled graph at every linear layer."""
    app = TorchModule(build=BUILDS["compiled in place"], dataset=(X, Y))
    module = app.stepper.module
    assert not any("forward" in vars(layer) for layer in module.modules())
    assert any(
        "forward" in vars(layer) for layer in TorchModule(build=Net, dataset=(X, Y)).stepper.module.modules()
    )
    assert module.state_dict().keys() == Net().state_dict().keys()
