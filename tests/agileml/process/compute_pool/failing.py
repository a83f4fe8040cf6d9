"""An application whose sixth unit fails."""

from __future__ import annotations

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
        assert 1 // (unit.slice != 5)
        return Updates({"count": np.ones((1, 1), np.float32)}, examples=1)
