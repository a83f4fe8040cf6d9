"""A machine's forecast of its own speed, in a job with `predictor: narx`: the kernel's counts, and a net's training."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

from agileml.config.job import JobConfig
from agileml.core.compute.speed_forecast import SpeedForecast
from agileml.process.measurement.core_time import CoreTime

READ_S = 0.05  # between two readings; more often than a forecast's RECENT_S


class OwnForecast:
    """Gives a `SpeedForecast` its readings, and a process of lowest priority in which its net is trained."""

    def __init__(self, files: Callable[[], Iterable[Path]]) -> None:
        """`files`: see `CoreTime`. Raises ConfigError."""
        from straggler.speed.background import Background  # imports scipy
        from straggler.speed.narx import Narx

        self._core_time = CoreTime(files)
        self._training = Background()
        self._due_s = 0.0
        self.forecast = SpeedForecast(Narx(self._training))

    def turn(self) -> None:
        """Take a reading if one is due."""
        if time.monotonic() >= self._due_s:
            self.read()

    def read(self) -> None:
        """Take a reading now."""
        self._due_s = time.monotonic() + READ_S
        self.forecast.measured(self._core_time.read())

    def stop(self) -> None:
        """End the training."""
        self._training.close()


def own_forecast(config: JobConfig, files: Callable[[], Iterable[Path]]) -> OwnForecast | None:
    """The forecast that a config asks for; None: the planner of the clocks averages the speeds. Raises ConfigError."""
    return OwnForecast(files) if config.balance.predictor == "narx" else None
