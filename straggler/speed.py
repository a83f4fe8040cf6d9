"""Predicting how fast a worker will be in its next iteration (Chen et al., 3.2.1), all behind one interface."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Resources:
    """What is there for the worker in an iteration, each as a share in 0..1 (1: all of it free)."""

    cpu: float
    memory: float


FREE = Resources(1.0, 1.0)


class SpeedPredictor(Protocol):
    """One worker's predictor. Speeds are samples (or units) per second, positive."""

    def observe(self, speed: float, resources: Resources = FREE) -> None:
        """The iteration that just ended: its speed and the resources it had."""

    def predict(self, resources: Resources = FREE) -> float:
        """The speed of the iteration about to start, given what it will have."""


class Memoryless:
    """The speed of the last iteration."""

    def __init__(self) -> None:
        self._speed = 1.0

    def observe(self, speed: float, resources: Resources = FREE) -> None:
        self._speed = speed

    def predict(self, resources: Resources = FREE) -> float:
        return self._speed
