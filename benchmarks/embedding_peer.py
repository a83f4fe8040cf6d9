"""The recommender of bench_embedding, its made data, and one process of a DistributedDataParallel group that trains
it."""

import time
from dataclasses import dataclass
from multiprocessing.connection import Connection

import torch
from ddp_peer import answer
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.parallel import DistributedDataParallel


@dataclass(frozen=True)
class Shop:
    """What is trained, and how. `kind`: sgd, or adam (SparseAdam for tables in plain torch). `is_skewed`: few rows are
    looked up often, as by Zipf's law, instead of all alike."""

    users: int
    items: int
    width: int
    batch: int  # items of a step and process
    examples: int  # of a process
    kind: str = "sgd"
    is_skewed: bool = False

    def build(self, *, sparse: bool = True) -> nn.Module:
        return Recommender(self.users, self.items, self.width, sparse=sparse)


class Recommender(nn.Module):
    """Two embeddings and a small network over both."""

    def __init__(self, users: int, items: int, width: int, *, sparse: bool) -> None:
        super().__init__()
        self.users = nn.Embedding(users, width, sparse=sparse)
        self.items = nn.Embedding(items, width, sparse=sparse)
        self.judge = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        scores: Tensor = self.judge(torch.cat((self.users(users), self.items(items)), 1)).squeeze(1)
        return scores


def offers(shop: Shop, rank: int) -> tuple[Tensor, Tensor, Tensor]:
    """Made items of a process: (users, items, bought)."""
    drawn = torch.Generator().manual_seed(rank)

    def ids(rows: int) -> Tensor:
        if not shop.is_skewed:
            return torch.randint(rows, (shop.examples,), generator=drawn)
        ranks = (
            torch.rand(shop.examples, generator=drawn, dtype=torch.float64)
            .mul(torch.log(torch.tensor(rows)))
            .exp()
        )
        # Popular rows are anywhere in the table.
        return torch.randperm(rows, generator=torch.Generator().manual_seed(99))[
            ranks.long().clamp(1, rows) - 1
        ]

    bought = torch.randint(2, (shop.examples,), generator=drawn).float()
    return ids(shop.users), ids(shop.items), bought


def optimizers(shop: Shop, module: nn.Module, *, sparse: bool) -> list[torch.optim.Optimizer]:
    if shop.kind == "sgd":
        return [torch.optim.SGD(module.parameters(), lr=0.01)]
    if not sparse:
        return [torch.optim.Adam(module.parameters(), lr=0.001)]
    tables = [p for name, p in module.named_parameters() if "judge" not in name]
    others = [p for name, p in module.named_parameters() if "judge" in name]
    return [torch.optim.SparseAdam(tables, lr=0.001), torch.optim.Adam(others, lr=0.001)]


def steps_of(shop: Shop, how: str, steps: int, rank: int, device: str) -> list[tuple[float, float]]:
    """Seconds and CPU seconds of this process of each step, on a CPU. how: alone (no exchange), sparse or dense
    (gradients)."""
    torch.manual_seed(0)
    sparse = how != "dense"
    module = shop.build(sparse=sparse)
    trained = module if how == "alone" else DistributedDataParallel(module)
    stepping = optimizers(shop, module, sparse=sparse)
    *inputs, wanted = offers(shop, rank)
    starts = shop.examples // shop.batch
    seconds = []
    for step in range(steps):
        begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
        at = slice(step % starts * shop.batch, (step % starts + 1) * shop.batch)
        loss = binary_cross_entropy_with_logits(trained(*(each[at] for each in inputs)), wanted[at])
        module.zero_grad()
        loss.backward()
        for each in stepping:
            each.step()
        float(loss.detach())
        seconds.append((time.perf_counter() - begin_s, time.process_time() - begin_cpu_s))
    return seconds


def serve(pipe: Connection, rank: int, world: int, port: int) -> None:
    """Answer (shop, how, steps) as the peer of bench_ddp does."""
    answer(pipe, rank, world, port, steps_of)
