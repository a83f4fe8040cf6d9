"""A recommender with every kind of look-up, in float64, and made purchases."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

USERS, ITEMS, WORDS, ROWS = 300, 80, 40, 200


class Shop(nn.Module):
    """A table without padding, one with it that is used twice, bags of words, and a table that no loss reaches."""

    def __init__(self, *, sparse: bool = True, width: int = 6) -> None:
        super().__init__()
        self.users = nn.Embedding(USERS, width, sparse=sparse)
        self.items = nn.Embedding(ITEMS, width, padding_idx=0, sparse=sparse)
        self.words = nn.EmbeddingBag(WORDS, width, mode="mean", sparse=sparse)
        self.unused = nn.Embedding(ITEMS, width, sparse=sparse)
        self.top = nn.Linear(width, 1)
        self.double()

    def forward(self, users: Tensor, items: Tensor, before: Tensor, words: Tensor) -> Tensor:
        self.unused(items)
        user = self.users(users) + functional.embedding(
            before, self.items.weight, padding_idx=0, sparse=self.items.sparse
        )
        return self.top(torch.tanh(user) * self.items(items) + self.words(words)).squeeze(1)


def purchases(count: int = ROWS) -> tuple[np.ndarray, ...]:
    """(users, items, items before, words, scores)."""
    rng = np.random.default_rng(5)
    users, words = rng.integers(0, USERS, count), rng.integers(0, WORDS, (count, 3))
    items, before = rng.integers(0, ITEMS, count), rng.integers(0, ITEMS, count) * rng.integers(0, 2, count)
    return users, items, before, words, rng.normal(size=count)


def data() -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """(train, test)."""
    whole = purchases(ROWS + 50)
    return tuple(a[:ROWS] for a in whole), tuple(a[ROWS:] for a in whole)
