"""Data sets of the user's own: the forms that they may have, and what is refused in one sentence."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset

from agileml.application import InputError
from agileml.apps.torch.flat import PARAMETERS
from tests.agileml.apps.torch.test_input import Net, X, Y, job, train


class Squares(Dataset[tuple[Tensor, int]]):
    """Items made when they are asked for."""

    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.full((6,), index / 30), index % 2


DATA_SETS: dict[str, Any] = {
    "arrays": (X, Y),
    "tensors with a test split": ((torch.from_numpy(X), torch.from_numpy(Y)), (X[:7], Y[:7])),
    "dataset": Squares(),
    "two datasets": (Squares(), Squares()),
    "a function": lambda: (X, Y),
    "a class": Squares,
}


@pytest.mark.parametrize("name", DATA_SETS)
def test_data_sets_of_all_forms(name: str) -> None:
    app = job(Net, dataset=DATA_SETS[name])
    tables = train(app)
    assert np.isfinite(tables[PARAMETERS]).all()
    assert set(app.evaluate(tables)) == (
        {"test_loss", "test_accuracy"} if "test" in name or "two" in name else set()
    )


def fails() -> Any:
    raise OSError("disk")


BAD_DATA: dict[str, tuple[Any, str]] = {
    "lengths": ((X, Y[:3]), "found arrays of shapes (40, 6), (3,), expected the same number of items"),
    "labels as text": (
        (X, Y.astype(str)),
        "dataset: found an array of dtype <U21 that torch makes no tensor of",
    ),
    "backwards": ((X[::-1], Y), "(At least one stride in the given numpy array is negative"),
    "a number": (5, "found int, expected (train, test) or train"),
    "empty": ((X[:0], Y[:0]), "has no items to train on"),
    "smaller than the slices": (
        (X[:1], Y[:1]),
        "has 1 training items, expected at least one for each of the 2",
    ),
    "a function that fails": (fails, "fails() failed: OSError: disk"),
}


@pytest.mark.parametrize("name", BAD_DATA)
def test_data_sets_that_are_none(name: str) -> None:
    data, sentence = BAD_DATA[name]
    with pytest.raises(InputError) as found:
        job(Net, dataset=data, batch=None).load(0)
    assert sentence in str(found.value) and "\n" not in str(found.value)
