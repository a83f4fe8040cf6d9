"""Applications that cost nothing: they count; the sixth unit of some fails, or ends its process."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from agileml.application import Application, Array, Table, Unit, Updates


class Counts(Application):
    """Counts units in one number."""

    def tables(self) -> Sequence[Table]:
        return [Table("count", 1, 1)]

    def load(self, index: int) -> Any:
        return None

    def process(self, unit: Unit, items: Any, parameters: Mapping[str, Array]) -> Updates:
        return Updates({"count": np.ones((1, 1), np.float32)}, examples=1)


class CountsThreads(Counts):
    """Its loss is the number of threads that it was told of last; 0: none."""

    threads = 0

    def use_threads(self, count: int) -> None:
        self.threads = count

    def process(self, unit: Unit, items: Any, parameters: Mapping[str, Array]) -> Updates:
        return Updates({"count": np.ones((1, 1), np.float32)}, loss=float(self.threads), examples=1)


class FailsAtUnit5(Counts):
    """Fails in one unit, and says which GPUs it sees."""

    def process(self, unit: Unit, items: Any, parameters: Mapping[str, Array]) -> Updates:
        if unit.slice == 5:
            raise RuntimeError(f"GPUs {os.environ.get('CUDA_VISIBLE_DEVICES', '')}")
        return super().process(unit, items, parameters)


class EndsAtUnit5(Counts):
    """Ends its process in one unit, as slowly as one that has much memory: its pipe is closed before it is gone."""

    def process(self, unit: Unit, items: Any, parameters: Mapping[str, Array]) -> Updates:
        if unit.slice == 5:
            os.closerange(3, 256)
            time.sleep(0.3)
            os._exit(7)
        return super().process(unit, items, parameters)
