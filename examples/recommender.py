"""A recommender with a million users: each step reads and updates the few rows of the tables that its batch names.

`python examples/recommender.py [USERS]`. The purchases are made: users and items have hidden tastes, and a user buys
an item, or does not, by how well these fit.
"""

import sys

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

import agileml

USERS = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
ITEMS, WIDTH, PASSES, BATCH = 2_000, 64, 3, 2_048


class Recommender(nn.Module):
    """The product of two embeddings, judged by a small network. sparse=True makes a table one that is read by row."""

    def __init__(self, users: int = USERS, items: int = ITEMS, width: int = WIDTH) -> None:
        super().__init__()
        self.users = nn.Embedding(users, width, sparse=True)
        self.items = nn.Embedding(items, width, sparse=True)
        for table in (self.users, self.items):
            nn.init.normal_(table.weight, std=0.1)
        self.judge = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        scores: Tensor = self.judge(self.users(users) * self.items(items)).squeeze(1)
        return scores


def purchases(count: int, buyers: int = 500) -> tuple[Tensor, Tensor, Tensor]:
    """(users, items, bought) of so many offers to some of the users."""
    drawn = torch.Generator().manual_seed(1)
    tastes = torch.randn(buyers, 4, generator=drawn), torch.randn(ITEMS, 4, generator=drawn)
    users = torch.randint(min(buyers, USERS), (count,), generator=drawn)
    items = torch.randint(ITEMS, (count,), generator=drawn)
    bought = (tastes[0][users] * tastes[1][items]).sum(1) > 0
    return users * (USERS // min(buyers, USERS)), items, bought.float()


def main() -> None:
    model = Recommender()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    users, items, bought = purchases(200_000)
    train = users[:-4096], items[:-4096], bought[:-4096]
    trainer = agileml.Trainer("examples/machines.yaml")
    model, optimizer, loader = trainer.prepare(model, optimizer, train, batch_size=BATCH)
    for _ in trainer.passes(PASSES):
        for user, item, wanted in loader:
            loss = binary_cross_entropy_with_logits(model(user, item), wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        right = (model(users[-4096:], items[-4096:]) > 0) == (bought[-4096:] > 0)
    print(f"{float(right.float().mean()):.1%} of 4096 new offers told right")


if __name__ == "__main__":
    main()
