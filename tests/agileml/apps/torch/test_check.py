"""What is found out before any machine starts: each with one sentence, and no folder of a run."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import agileml
from agileml.application import InputError, Settings
from agileml.apps.torch.flat import BUFFERS, PARAMETERS
from agileml.apps.torch.module import TorchModule
from agileml.cluster.errors import ClusterError
from agileml.cluster.fleet import LocalFleet
from agileml.config.job import from_values
from agileml.config.text import ConfigError
from agileml.core.parameters.optimizer import optimizer
from agileml.core.sequential import run_sequential
from agileml.process.spec import RunSpec

X = np.random.default_rng(1).normal(size=(40, 6)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64)
# A layer that forward makes is on the CPU.
MODEL = {"batch_size": 20, "device": "cpu"}
JOB = {"application": "torch", "model": MODEL, "clocks": 3, "machines": {"max": 4}}


def linear() -> nn.Module:
    return nn.Linear(6, 2)


def noisy(_: Tensor) -> Tensor:
    raise OSError("no such file")


def infinite(output: Tensor, target: Tensor) -> Tensor:
    return output.sum() / 0


class Late(nn.Module):
    """Makes a part of it in its first forward: a layer, or a buffer."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what
        self.layer = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        if self.what == "layer" and not hasattr(self, "last"):
            self.last = nn.Linear(2, 2)
        if self.what == "buffer":
            self.register_buffer("seen", torch.ones(1))
        return self.last(self.layer(x)) if self.what == "layer" else self.layer(x)


WRONG: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "shapes": (
        {"build": lambda: nn.Linear(5, 2)},
        InputError,
        "one training batch of 5 items .* cannot be computed: RuntimeError: mat1 and mat2",
    ),
    "loss": (
        {"loss": lambda out, y: out},
        InputError,
        r"the loss returned shape \(5, 2\), expected one number",
    ),
    "loss by name": ({"loss": "mse_los"}, InputError, "did you mean mse_loss|found 'mse_los'"),
    "augmentation": (
        {"augment": noisy},
        agileml.RunError,
        "one training batch of 5 items .*: OSError: no such file",
    ),
    "infinite": ({"loss": infinite}, InputError, "the first 5 items have the loss"),
    "test split": (
        {"dataset": ((X, Y), (X[:, :3], Y))},
        InputError,
        "one test batch of 8 items .* cannot be computed: RuntimeError: mat1 and mat2",
    ),
    "layer made late": ({"build": lambda: Late("layer")}, InputError, r"forward made 'last\.bias', expected"),
    "buffer made late": ({"build": lambda: Late("buffer")}, InputError, "forward made 'seen', expected"),
    "batch": ({"dataset": (X[:10], Y[:10])}, ConfigError, "found 20, expected at most the 10 items"),
}


@pytest.mark.parametrize("name", WRONG)
def test_it_is_found_before_a_machine_starts(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, kind, sentence = WRONG[name]
    monkeypatch.setattr("agileml.session.assembly.fleet_for", None)  # nothing may ask for machines
    app = TorchModule(**{"build": linear, "dataset": (X, Y), **own})
    with pytest.raises(kind, match=sentence) as found:
        agileml.run(JOB, application=app, out=str(tmp_path / "run"))
    assert "\n" not in str(found.value)
    assert not (tmp_path / "run").exists()
    if kind is agileml.RunError:
        assert "Traceback" in found.value.trace  # type: ignore[attr-defined]
        assert found.value.__cause__ is not None, "a Python user sees the error itself"


def test_devices_that_no_machine_could_get_are_refused(tmp_path: Path) -> None:
    app = TorchModule(build=linear, dataset=(X, Y))
    values = JOB | {"model": {"device": "cuda", "batch_size": 20}, "out": str(tmp_path / "run")}
    if not torch.cuda.is_available():
        with pytest.raises(
            ConfigError, match=r"found cuda with machines\.gpus: 0, expected machines\.gpus: 1"
        ):
            agileml.run(values, application=app)
        config = from_values(values | {"machines": {"max": 4, "gpus": 1}})
        with pytest.raises(
            ClusterError, match=r"machines\.gpus: found 1, expected at most 0, as this computer has"
        ):
            LocalFleet(RunSpec("x", config, app))


class Masked(nn.Module):
    """A causal mask as it is usually written, and perhaps a change of it."""

    def __init__(self, change: Callable[["Masked"], None] = lambda net: None) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 2)
        self.register_buffer("mask", torch.full((3, 3), -torch.inf).triu(1))
        self.register_buffer("steps", torch.zeros(2))
        self.change = change

    def forward(self, x: Tensor) -> Tensor:
        self.change(self)
        return self.layer(x) + torch.softmax(self.mask, 1)[0, 0] - 1


def test_buffers_may_hold_infinities() -> None:
    def count(net: Masked) -> None:
        net.steps += 1

    app = TorchModule(
        Settings(model={"batch_size": 20}, slices=2), build=lambda: Masked(count), dataset=(X, Y)
    )
    app.check()
    tables = run_sequential(app, optimizer=optimizer("sgd", learning_rate=0.1), clocks=3)
    flat = app.flat
    mask, steps = (span.of(torch.from_numpy(tables[BUFFERS].reshape(-1))) for span in flat.buffers)
    assert torch.equal(mask, Masked().mask) and torch.equal(steps, torch.full((2,), 3.0))
    assert np.isfinite(tables[PARAMETERS]).all()

    def fill(net: Masked) -> None:
        net.mask.zero_()

    app = TorchModule(
        Settings(model={"batch_size": 20}, slices=2), build=lambda: Masked(fill), dataset=(X, Y)
    )
    with pytest.raises(InputError, match="changed the buffer 'mask' from an infinite number"):
        app.check()


def test_random_numbers_of_all_kinds_are_seeded() -> None:
    import random

    drawn: list[tuple[float, float, float]] = []

    def draw(x: Tensor) -> Tensor:
        drawn.append((random.random(), float(np.random.rand()), float(torch.rand(()))))
        return x

    app = TorchModule(
        Settings(model={"batch_size": 20}, slices=2), build=linear, dataset=(X, Y), augment=draw
    )
    for _ in range(2):
        run_sequential(app, optimizer=optimizer("sgd", learning_rate=0.1), clocks=2)
    assert drawn[:4] == drawn[4:] and len(set(drawn)) == 4


def topped(module: nn.Module) -> nn.Module:
    return nn.Sequential(module, nn.Linear(2, 2))


def test_a_module_that_was_made_before_is_refused() -> None:
    """The process that starts a run tries a batch with a module of its own, and leaves nothing of it."""
    trained, frozen = linear(), linear().requires_grad_(False)
    settings = Settings(model=MODEL, slices=2)
    for before in (trained, frozen):
        app = TorchModule(settings, build=partial(topped, before), dataset=(X, Y))
        app.tables()
        if before is frozen:
            app.check()
            continue
        with pytest.raises(
            InputError, match=r"build: made a module with the parameter '0\.weight' of the one before"
        ):
            app.check()
        assert trained.weight.any()
