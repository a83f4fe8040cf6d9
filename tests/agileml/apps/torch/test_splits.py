"""A function of the user's that makes the data, called by every process, makes the same."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from agileml.application import Settings
from agileml.apps.torch.module import TorchModule

X = np.arange(40, dtype=np.float32).reshape(40, 1)
Y = np.arange(40) % 2


def linear() -> nn.Module:
    return nn.Linear(1, 2)


SPLITS: dict[str, Callable[[], Any]] = {
    "numpy": lambda: np.random.permutation(len(X)),
    "torch": lambda: torch.randperm(len(X)).numpy(),
    "python": lambda: np.array(random.sample(range(len(X)), len(X))),
}


@pytest.mark.parametrize("name", SPLITS)
def test_a_split_that_a_function_draws_is_the_same_in_every_process(name: str) -> None:
    """Otherwise some machines would train on the items that others hold out."""

    def split() -> Any:
        order = SPLITS[name]()
        return (X[order[:30]], Y[order[:30]]), (X[order[30:]], Y[order[30:]])

    found = []
    for seed in (0, 0, 1):
        settings = Settings(model={"batch_size": 20}, seed=seed, slices=2)
        data = TorchModule(settings, build=linear, dataset=split).data
        assert data.test is not None
        found.append(torch.cat([some.take(np.arange(10))[0] for some in (data.train, data.test)]))
        np.random.random(), torch.rand(1), random.random()  # as other code of this process draws
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])
