"""Scripts with loops of their own, as text."""

from __future__ import annotations

from pathlib import Path
from textwrap import indent
from typing import Any

HEAD = """
import numpy as np
import torch
from torch import nn

import agileml

x = np.random.default_rng(0).normal(size=(640, 12)).astype(np.float32)
y = (x[:, 0] * x[:, 1] > 0).astype(np.int64)
model = nn.Sequential(nn.Linear(12, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Dropout(0.1), nn.Linear(24, 2))
"""
OPTIMIZER = "optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)\n"
PREPARE = """
trainer = agileml.Trainer()
model, optimizer, loader = trainer.prepare(model, optimizer, (x, y), batch_size=64)
"""
BODY = """
loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
loss.backward()
optimizer.step()
optimizer.zero_grad()
"""


def loop(body: str = BODY) -> str:
    return "for batch in loader:\n" + indent(body.strip(), "    ") + "\n"


def script(
    folder: Path,
    *,
    head: str = HEAD,
    optimizer: str = OPTIMIZER,
    prepare: str = PREPARE,
    rest: str | None = None,
) -> str:
    """The path of a script of these parts."""
    path = folder / "train.py"
    path.write_text(head + optimizer + prepare + (loop() if rest is None else rest))
    return str(path)


def values(path: str, **more: Any) -> dict[str, Any]:
    """A config that runs a script."""
    return {"application": "torch", "model": {"script": path}, "clocks": 30, "slices": 8, **more}
