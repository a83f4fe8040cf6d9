"""An application whose sixth unit fails, and says which GPUs its process sees."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from agileml.application import Application, Array, Table, Unit, Updates


class FailsAtUnit5(Application):
    """Counts units in one number."""

    def tables(self) -> Sequence[Table]:
        return [Table("count", 1, 1)]

    def load(self, index: int) -> Any:
        return None

    def process(self, unit: Unit, items: Any, parameters: Mapping[str, Array]) -> Updates:
        if unit.slice == 5:
            raise RuntimeError(f"GPUs {os.environ.get('CUDA_VISIBLE_DEVICES', '')}")
        return Updates({"count": np.ones((1, 1), np.float32)}, examples=1)
