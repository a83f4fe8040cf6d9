"""Predicting how fast a worker will be in its next iteration (Chen et al., 3.2.1), all behind one interface.

Memoryless and EMA know only past speeds, ARIMA(2,2,1) their autocorrelation; NARX (in `narx`) sees what CPU and
memory the worker has as well.
"""

from __future__ import annotations

import math
import warnings
from collections import deque
from dataclasses import dataclass
from typing import Protocol

import numpy as np


@dataclass(frozen=True, slots=True)
class Resources:
    """The resources that a worker has in an iteration, each as a share in 0..1 (1: all of it is free)."""

    cpu: float
    memory: float


FREE = Resources(1.0, 1.0)


class SpeedPredictor(Protocol):
    """One worker's predictor. Speeds are samples (or units) per second, positive; before the first, 1."""

    def observe(self, speed: float, resources: Resources = FREE) -> None:
        """The iteration that just ended: its speed and the resources it had."""

    def predict(self, resources: Resources = FREE) -> float:
        """The speed of the iteration about to start, given its share of CPU and memory."""


def check_speed(speed: float) -> float:
    """The speed; ValueError for one that is not positive and finite."""
    if not 0 < speed < math.inf:
        raise ValueError(f"speed is {speed}; expected a positive finite number")
    return speed


class Memoryless:
    """The speed of the last iteration."""

    def __init__(self) -> None:
        self._speed = 1.0

    def observe(self, speed: float, resources: Resources = FREE) -> None:
        self._speed = check_speed(speed)

    def predict(self, resources: Resources = FREE) -> float:
        return self._speed


class Ema:
    """Exponential moving average; `weight` is the latest iteration's."""

    def __init__(self, weight: float = 0.2) -> None:
        if not 0 < weight <= 1:
            raise ValueError(f"weight is {weight}; expected a number above 0 and at most 1")
        self._weight = weight
        self._average: float | None = None

    def observe(self, speed: float, resources: Resources = FREE) -> None:
        check_speed(speed)
        before = speed if self._average is None else self._average
        self._average = before + self._weight * (speed - before)

    def predict(self, resources: Resources = FREE) -> float:
        return 1.0 if self._average is None else self._average


class RestartingEma:
    """EMA that starts again where the speed has jumped, so that it is right after two iterations instead of twenty.

    Until 1 / `weight` iterations it is their mean. Two in a row that differ from it in the same direction, by more
    than a tenth and than four times the usual, are a jump: the average begins again with these two. One alone is a
    hiccup, which only makes differences more usual.
    """

    LEAST, TIMES = 0.1, 4.0

    def __init__(self, weight: float = 0.1) -> None:
        if not 0 < weight <= 1:
            raise ValueError(f"weight is {weight}; expected a number above 0 and at most 1")
        self._weight = weight
        self._count = 0
        self._average = 1.0
        self._usual = 0.0  # deviation from the average, relative to it
        self._apart: float | None = None  # the last speed, if it was far from the average

    def observe(self, speed: float, resources: Resources = FREE) -> None:
        check_speed(speed)
        last, self._apart = self._apart, None
        is_far = self._count > 0 and self._is_far(speed)
        if last is None and is_far:
            self._apart = speed
            return
        if last is not None and is_far:
            if (last > self._average) == (speed > self._average):
                self._count = 0
            self._add(last)
        elif last is not None:
            self._note_difference(last, self._weight)
        self._add(speed)

    def _is_far(self, speed: float) -> bool:
        return abs(speed / self._average - 1.0) > max(self.LEAST, self.TIMES * self._usual)

    def _add(self, speed: float) -> None:
        weight = max(self._weight, 1.0 / (self._count + 1))
        if self._count:
            self._note_difference(speed, weight)
        self._count += 1
        self._average += weight * (speed - self._average)

    def _note_difference(self, speed: float, weight: float) -> None:
        self._usual += weight * (min(1.0, abs(speed / self._average - 1.0)) - self._usual)

    def predict(self, resources: Resources = FREE) -> float:
        return self._average


class Arima:
    """ARIMA(2,2,1): two autoregressive terms and one moving average on the second differences of the speed.

    `ar` and `ma` are fitted by Hannan and Rissanen's method every `refit` iterations to the last `window`. The last
    speed is the forecast until `window` / 4 iterations, and LEAST, have been observed.
    """

    LEAST = 20  # iterations, from which three coefficients can be found

    def __init__(self, window: int = 200, refit: int = 50) -> None:
        if window < self.LEAST or refit < 1:
            raise ValueError(f"window is {window}, refit {refit}; expected at least {self.LEAST} and 1")
        self._speeds: deque[float] = deque(maxlen=window)
        self._refit = refit
        self._since_fit = 0
        self.ar = (0.0, 0.0)
        self.ma = 0.0
        self._error = 0.0
        self._fitted = False

    def observe(self, speed: float, resources: Resources = FREE) -> None:
        check_speed(speed)
        if len(self._speeds) >= 4:
            self._error = speed - self._forecast()
        self._speeds.append(speed)
        self._since_fit += 1
        enough = len(self._speeds) >= max(self.LEAST, (self._speeds.maxlen or 0) // 4)
        if enough and (not self._fitted or self._since_fit >= self._refit):
            self._fit()

    def predict(self, resources: Resources = FREE) -> float:
        """See `SpeedPredictor`; kept within a factor of four of the last speed."""
        if not self._speeds:
            return 1.0
        last = self._speeds[-1]
        return min(max(self._forecast(), last / 4), last * 4) if self._fitted else last

    def _forecast(self) -> float:
        """v + (v - v') + the forecast second difference."""
        v1, v2, v3, v4 = (self._speeds[-k] for k in (1, 2, 3, 4))
        latest, earlier = v1 - 2 * v2 + v3, v2 - 2 * v3 + v4
        change = self.ar[0] * latest + self.ar[1] * earlier + self.ma * self._error
        return 2 * v1 - v2 + change

    def _fit(self) -> None:
        from statsmodels.tsa.arima.estimators.hannan_rissanen import hannan_rissanen

        self._since_fit = 0
        self._fitted = True
        twice = np.diff(np.asarray(self._speeds), 2)
        if float(np.abs(twice).max()) < 1e-12 * float(np.abs(self._speeds[-1])):
            return  # a straight line: nothing to fit
        with warnings.catch_warnings():
            # Speeds that hardly change leave some coefficients open: any will do.
            warnings.simplefilter("ignore")
            found, _ = hannan_rissanen(twice, ar_order=2, ma_order=1, demean=False)
        self.ar = (float(found.ar_params[0]), float(found.ar_params[1]))
        self.ma = float(np.clip(found.ma_params[0], -0.99, 0.99))  # invertible
