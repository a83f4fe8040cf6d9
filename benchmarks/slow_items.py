"""A data set whose items take a while to come, for benchmarks: in a module that loader processes import."""

import time
from typing import Any

from ddp_peer import Task, items
from torch import Tensor
from torch.utils.data import Dataset


class SlowItems(Dataset[Any]):
    """Items of a task, each of which comes after `seconds`."""

    def __init__(self, task: Task, seconds: float) -> None:
        self._x, self._y = items(task, 0)
        self._seconds = seconds

    def __len__(self) -> int:
        return len(self._x)

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        if self._seconds:
            time.sleep(self._seconds)
        return self._x[number], self._y[number]


def slow(task: Task, seconds: float) -> Any:
    """(train, no test) of a task whose items take some seconds."""
    return SlowItems(task, seconds), None
