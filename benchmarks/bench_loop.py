"""A loop of the user's own against the class form and plain torch: forward and backward of one machine's whole batch.

The three take turns step by step in one process with one thread, on equal batches and equal parameters; a ratio is the
median of the rounds' ratios of medians. The optimizer's step is the engine's in both forms, and in none of the times.
`python benchmarks/bench_loop.py [--quick] [--rounds 5]`. Limit: loop / class at most 1.02.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import agileml
from agileml.application import Settings, Unit
from agileml.apps.loop.module import ScriptModule
from agileml.apps.loop.training import TrainingModule
from agileml.apps.torch.module import TorchModule

SCRIPT = """
import torch
from torch.nn.functional import cross_entropy

import agileml
from benchmarks.bench_loop import MODELS

case = MODELS[{name!r}]
model = case.build()
optimizer = torch.optim.AdamW(model.parameters())
trainer = agileml.Trainer()
model, optimizer, loader = trainer.prepare(model, optimizer, case.data(), batch_size=case.batch)
for x, y in loader:
    loss = cross_entropy(model(x).flatten(0, -2), y.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
LIMIT = 1.02


class Transformer(nn.Module):
    """Layers of `nn.TransformerEncoderLayer` with a causal mask, over 64 tokens."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.scores = nn.Linear(width, 256)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(64))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.scores(self.layers(self.embedding(tokens), mask=self.mask))


@dataclass(frozen=True)
class Case:
    """A model and made data of the right shapes."""

    build: Callable[[], nn.Module]
    batch: int
    width: int = 0  # of the inputs; 0: 64 tokens each

    def data(self) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(0)
        if not self.width:
            tokens = torch.randint(256, (4 * self.batch, 65), generator=generator)
            return tokens[:, :-1], tokens[:, 1:]
        return torch.randn(4 * self.batch, self.width, generator=generator), torch.zeros(
            4 * self.batch, dtype=torch.int64
        )


def mlp(*sizes: int) -> nn.Module:
    layers = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


MODELS = {
    "MLP, 25.2 M": Case(lambda: mlp(2048, 2048, 2048, 2048, 2048, 2048, 2048, 10), 64, 2048),
    "MLP, 0.1 M": Case(lambda: mlp(128, 256, 256, 10), 64, 128),
    "transformer, 3.3 M": Case(lambda: Transformer(256, 4), 8),
}


class InClass(agileml.Training):
    def __init__(self, name: str) -> None:
        self.case = MODELS[name]

    def build(self) -> nn.Module:
        return self.case.build()

    def datasets(self) -> Any:
        return self.case.data()

    def loss(self, module: nn.Module, batch: Any) -> Tensor:
        return cross_entropy(module(batch[0]).flatten(0, -2), batch[1].flatten())


def engine_step(app: TorchModule) -> Callable[[int], None]:
    """One clock of a machine that has all units."""
    tables = {table.name: app.initial(table) for table in app.tables()}
    share = app.load(0)

    def step(clock: int) -> None:
        app.process_streaming([Unit(clock, 0)], [share], tables, lambda table, values, start, stop: None)

    return step


def plain_step(case: Case) -> Callable[[int], None]:
    model = case.build()
    xs, ys = case.data()

    def step(clock: int) -> None:
        at = torch.arange(case.batch) + case.batch * (clock % 4)
        loss = cross_entropy(model(xs[at]).flatten(0, -2), ys[at].flatten())
        model.zero_grad()
        loss.backward()

    return step


def measure(name: str, folder: str, rounds: int, seconds: float) -> None:
    case = MODELS[name]
    path = Path(folder, "train.py")
    path.write_text(SCRIPT.format(name=name))
    forms = {
        "loop": engine_step(ScriptModule(Settings(model={"script": str(path)}))),
        "class": engine_step(TrainingModule(Settings(model={"batch_size": case.batch}), InClass(name))),
        "plain torch": plain_step(case),
    }
    clock, medians = 0, {form: [] for form in forms}
    for turn in range(rounds + 1):
        times: dict[str, list[float]] = {form: [] for form in forms}
        until_s = time.perf_counter() + seconds
        while time.perf_counter() < until_s or len(times["loop"]) < 5:
            order = list(forms)
            for form in order[clock % 3 :] + order[: clock % 3]:
                started_s = time.perf_counter()
                forms[form](clock)
                times[form].append(time.perf_counter() - started_s)
            clock += 1
        if turn:  # the first warms up
            for form, found in times.items():
                medians[form].append(statistics.median(found))
    ratios = [a / b for a, b in zip(medians["loop"], medians["class"], strict=True)]
    bare = [a / b for a, b in zip(medians["loop"], medians["plain torch"], strict=True)]
    ms = {form: 1000 * statistics.median(found) for form, found in medians.items()}
    print(
        f"{name:20} loop {ms['loop']:8.2f} ms  class {ms['class']:8.2f} ms  plain torch {ms['plain torch']:8.2f} ms  "
        f"loop / class {statistics.median(ratios):.3f} ({min(ratios):.3f}-{max(ratios):.3f}, limit {LIMIT})  "
        f"loop / plain {statistics.median(bare):.3f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two short rounds")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    load = os.getloadavg()[0]
    print(f"{platform.machine()}, {os.cpu_count()} cores, load {load:.1f}, torch {torch.__version__}")
    with TemporaryDirectory() as folder:
        for name in MODELS:
            measure(name, folder, 2 if options.quick else options.rounds, 1.0 if options.quick else 6.0)


if __name__ == "__main__":
    main()
