"""200 steps of the examples are those of plain torch on the same minibatches, to rounding: losses and parameters.

In float64, where rounding stays small over so many steps, and without dropout, whose draws differ.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import agileml
from agileml.application import Settings, Unit
from agileml.apps.loop.module import ScriptModule
from tests.examples.test_examples import ROOT

pytestmark = pytest.mark.slow
CLOCKS = 200
Loss = Callable[[nn.Module, Any], Tensor]


def resnet_loss(model: nn.Module, batch: Any) -> Tensor:
    return cross_entropy(model(batch[0]), batch[1], label_smoothing=0.1)


def gpt_loss(model: nn.Module, batch: Any) -> Tensor:
    return cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())


# By example: what is changed in its text, its loss, the norm that gradients are limited to, items at once.
RESNET: dict[str, str] = {
    "PASSES, BATCH = 3, 64": "PASSES, BATCH = 13, 32",
    "def stripes(items: int = 1024)": "def stripes(items: int = 512)",
    "resnet(), stripes()": "resnet().double(), stripes()",
    "TensorDataset(waves[labels]": "TensorDataset(waves.double()[labels]",
}
GPT: dict[str, str] = {
    "PASSES, BATCH": "torch.set_default_dtype(torch.float64)\nPASSES, BATCH",
    '4 * width, 0.1, "gelu"': '4 * width, 0.0, "gelu"',
}
EXAMPLES: dict[str, tuple[dict[str, str], Loss, float | None, int | None]] = {
    "resnet": (RESNET, resnet_loss, None, None),
    "gpt": (GPT, gpt_loss, 1.0, 4),
}


@pytest.fixture(autouse=True)
def _one_thread_of_float32() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
    torch.set_default_dtype(torch.float32)


def in_plain_torch(path: str, loss_of: Loss, clip_norm: float | None) -> tuple[nn.Module, list[float]]:
    """The model and the losses of a loop as everybody writes it, over the objects that the script prepares."""
    app = ScriptModule(Settings(model={"script": path}, slices=1))
    found = app.prepared
    model = copy.deepcopy(found.model).train()
    places = {id(p): q for p, q in zip(found.model.parameters(), model.parameters(), strict=True)}
    groups = [
        {**group, "params": [places[id(p)] for p in group["params"]]}
        for group in found.optimizer.param_groups
    ]
    optimizer, share = type(found.optimizer)(groups), app.load(0)
    rates = [group.get("initial_lr", group["lr"]) for group in optimizer.param_groups]
    losses = []
    for clock in range(CLOCKS):
        batch = found.data.train.take(app.minibatches.numbers(Unit(clock, 0), share))
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * found.factor(clock)
        loss = loss_of(model, batch)
        optimizer.zero_grad()
        loss.backward()
        if clip_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
        optimizer.step()
        losses.append(float(loss.detach()))
    app.ended()
    return model, losses


@pytest.mark.parametrize("name", EXAMPLES)
def test_two_hundred_steps_are_those_of_plain_torch(name: str, tmp_path: Path) -> None:
    """The ResNet has batch norm, label smoothing, warm-up and cosine; the GPT tied weights, groups and accumulation."""
    changes, loss_of, clip_norm, micro_batch = EXAMPLES[name]
    text = (ROOT / "examples" / f"{name}_elastic.py").read_text()
    for old, new in changes.items():
        assert old in text, old
        text = text.replace(old, new)
    path = tmp_path / f"{name}.py"
    path.write_text(text)
    model, losses = in_plain_torch(str(path), loss_of, clip_norm)
    section = {"script": str(path), "micro_batch": micro_batch}
    machines = {"reliable": 1, "transient": 0, "max": 1}
    job = {"application": "torch", "model": section, "clocks": CLOCKS, "slices": 1, "machines": machines}
    result = agileml.run(job, sequential=True, out=str(tmp_path / "out"))
    found = [row["loss"] for row in result.history]
    print(
        f"{name}: losses differ by {max(abs(a - b) for a, b in zip(found, losses, strict=True)):.1e} at most"
    )
    assert found == pytest.approx(losses, rel=1e-7)
    assert losses[-1] < 0.8 * losses[0]
    ours, theirs = result.module().state_dict(), model.state_dict()
    for key, value in theirs.items():
        torch.testing.assert_close(ours[key], value, rtol=1e-5, atol=1e-7, msg=key)
