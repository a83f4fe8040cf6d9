"""Embeddings whose ids forward draws, as negative sampling does: those that are heard are those that are looked up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import agileml
from agileml.application import Settings, Unit
from agileml.apps.torch.module import TorchModule
from agileml.core.parameters.optimizer import optimizer
from agileml.core.sequential import run_sequential
from tests.agileml.apps.loop.scripts import loop, script, values

WORDS, BATCH, CLOCKS = 1000, 16, 6
X = np.arange(64) % 20
Y = (X > 9).astype(np.int64)


class Sampled(nn.Module):
    """The batch's words beside words that are drawn, which `drawn` notes where there is a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 8, sparse=True)
        self.top = nn.Linear(8, 2)
        self.double()
        self.drawn: list[Tensor] = []

    def forward(self, x: Tensor, others: Tensor | None = None) -> Tensor:
        if others is None:
            others = torch.randint(0, WORDS, (len(x),), device=x.device)
            if torch.is_grad_enabled():
                self.drawn.append(others)
        found = self.top(self.words(x) - self.words(others))
        torch.rand(3)  # what is drawn behind the last look-up is not drawn where look-ups are heard
        return found


def application(**model: Any) -> TorchModule:
    section = {"batch_size": BATCH, "evaluate_every": 2, **model}
    return TorchModule(Settings(model=section, slices=1), build=Sampled, dataset=((X, Y), (X[:30], Y[:30])))


@pytest.mark.parametrize("micro_batch", [None, 4])
def test_the_steps_are_those_of_plain_torch_with_the_same_ids(micro_batch: int | None) -> None:
    """Test items come 4 at a time as well, and draw ids of their own."""
    app = application(micro_batch=micro_batch)
    app.check()
    tables = run_sequential(app, optimizer=optimizer("sgd", learning_rate=0.5), clocks=CLOCKS)
    drawn = torch.cat(app.flat.module.drawn).reshape(CLOCKS, BATCH).cpu()
    assert len(drawn.unique()) > 80, "each micro batch draws its own"
    torch.manual_seed(0)
    plain, share = Sampled(), app.load(0)
    sgd = torch.optim.SGD(plain.parameters(), lr=0.5)
    for clock in range(CLOCKS):
        x, y = app.data.train.take(app.minibatches.numbers(Unit(clock, 0), share))
        sgd.zero_grad()
        cross_entropy(plain(x, drawn[clock]), y).backward()
        sgd.step()
    found = app.as_model(tables)
    for name, wanted in plain.state_dict().items():
        torch.testing.assert_close(found[name], wanted, rtol=1e-9, atol=1e-11, msg=name)


def test_a_loop_may_draw_ids(tmp_path: Path) -> None:
    head = f"""
import numpy as np
import torch
from torch import nn

import agileml
from {__name__} import Sampled

x, y = np.arange(64) % 20, (np.arange(64) % 20 > 9).astype(np.int64)
model = Sampled()
"""
    rest = loop(
        "nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()\noptimizer.step()\noptimizer.zero_grad()"
    )
    path = script(
        tmp_path, head=head, optimizer="optimizer = torch.optim.SGD(model.parameters(), lr=0.5)\n", rest=rest
    )
    model = {"script": path, "micro_batch": 4}
    job = values(path, model=model, clocks=4, out=str(tmp_path / "out"))
    assert agileml.run(job, sequential=True).summary["clocks"] == 4
