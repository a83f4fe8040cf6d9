"""A made job for benchmarks of the exchange: a dense table that every clock reads and updates whole.

Its work has a chosen length and either sleeps (hosts share this machine's cores) or computes (under a quota).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from agileml.application import Application, Array, Settings, Table, Unit, Updates

COLUMNS = 1000
SIDE = 192  # of the matrices whose products are the work


class Exchange(Application):
    """`model_mb`: megabytes of parameters. `sleep_s`, `products`: work of a clock, all units together."""

    def __init__(self, model_mb: float, sleep_s: float = 0.0, products: int = 0) -> None:
        super().__init__(Settings())
        self._rows = round(model_mb * 1e6 / 4 / COLUMNS)
        self._sleep_s, self._products = sleep_s, products

    def with_settings(self, settings: Settings) -> Exchange:
        self.settings = settings
        return self

    def tables(self) -> Sequence[Table]:
        return (Table("parameters", self._rows, COLUMNS),)

    def load(self, slice_index: int) -> Any:
        return None

    def process(self, unit: Unit, items: Any, parameters: Mapping[str, Array]) -> Updates:
        return self._work([unit], lambda *_: None)

    def process_streaming(
        self,
        units: Sequence[Unit],
        items: Sequence[Any],
        parameters: Mapping[str, Array],
        ready: Callable[[str, Array, int, int], None],
    ) -> Updates:
        """As a network's backward does it: the second half of the work hands out gradients from the last on."""
        return self._work(units, ready)

    def _work(self, units: Sequence[Unit], ready: Callable[[str, Array, int, int], None]) -> Updates:
        share = len(units) / (self.settings.slices * units[0].parts)
        gradient = np.full((self._rows, COLUMNS), 1e-3, np.float32)
        self._compute(share / 2)
        pieces = 16
        for piece in reversed(range(pieces)):
            self._compute(share / 2 / pieces)
            start, stop = (at * gradient.size // pieces for at in (piece, piece + 1))
            ready("parameters", gradient.reshape(-1), start, stop)
        return Updates({"parameters": gradient}, 0.0, len(units))

    def _compute(self, share: float) -> None:
        if self._sleep_s:
            time.sleep(share * self._sleep_s)
        matrix = np.full((SIDE, SIDE), 1 / SIDE, np.float32)
        for _ in range(round(share * self._products)):
            matrix = matrix @ matrix
