"""The job of the soak: little work on a model of some megabytes, and a machine that falls ill when it is told to."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from agileml.application import Application, Array, Table, Unit, Updates

ROWS, COLUMNS = 512, 512


class Soaked(Application):
    """`data.mark`: a file; the first machine that finds it removes it and fails."""

    def tables(self) -> Sequence[Table]:
        return (Table("w", ROWS, COLUMNS),)

    def load(self, slice_index: int) -> Array:
        return self.settings.rng(slice_index).standard_normal((ROWS, COLUMNS), np.float32)

    def process(self, unit: Unit, items: Array, parameters: Mapping[str, Array]) -> Updates:
        self._fall_ill()
        gradient = parameters["w"] - items * np.float32(1 + unit.clock % 7)
        return Updates({"w": gradient}, float(np.square(gradient).mean()), 1)

    def _fall_ill(self) -> None:
        mark = Path(self.settings.data["mark"])
        if not mark.exists():
            return
        try:
            mark.unlink()
        except FileNotFoundError:
            return  # another machine was first
        print("falls ill, as it was told to", file=sys.stderr)
        raise RuntimeError("CUDA error: device-side assert triggered (as the soak asked)")

    def evaluate(self, parameters: Mapping[str, Any]) -> dict[str, float]:
        return {}
