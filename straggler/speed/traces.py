"""Made traces of a worker's speed with what drives it, for comparing predictors (as in Chen et al., table 3)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from straggler.speed.predictors import Resources, SpeedPredictor

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class SpeedTrace:
    """Per iteration: `speed` in samples/s, and the shares of CPU and memory the worker had; each (N,)."""

    speed: Floats
    cpu: Floats
    memory: Floats

    def __iter__(self) -> Iterator[tuple[float, Resources]]:
        for speed, cpu, memory in zip(self.speed, self.cpu, self.memory, strict=True):
            yield float(speed), Resources(float(cpu), float(memory))


FULL_SPEED = 100.0  # samples/s of a worker that has everything


def regimes(seed: int, iterations: int = 3000, explained: bool = True, noise: float = 0.03) -> SpeedTrace:
    """Other jobs come and go: CPU and memory jump to new levels, every 60 iterations in the mean."""
    rng = np.random.default_rng([seed, 1])
    return _trace(rng, _levels(rng, iterations, 60, 0.3), _levels(rng, iterations, 90, 0.5), explained, noise)


def bursts(seed: int, iterations: int = 3000, explained: bool = True, noise: float = 0.03) -> SpeedTrace:
    """Short jobs: mostly free, now and then half of the CPU or less for a few iterations."""
    rng = np.random.default_rng([seed, 2])
    cpu = np.ones(iterations)
    at = 0
    while at < iterations:
        at += int(rng.geometric(0.05))
        length = int(rng.integers(2, 9))
        cpu[at : at + length] = rng.uniform(0.2, 0.6)
        at += length
    return _trace(rng, cpu, np.ones(iterations), explained, noise)


def drift(seed: int, iterations: int = 3000, explained: bool = True, noise: float = 0.03) -> SpeedTrace:
    """Slow change: the CPU share wanders within 0.3 to 1, memory within 0.5 to 1."""
    rng = np.random.default_rng([seed, 3])

    def wander(low: float) -> Floats:
        walk = np.cumsum(rng.normal(0, 0.015, iterations)) + rng.uniform(0, 2)
        return low + (1 - low) * np.abs((walk % 2) - 1)

    return _trace(rng, wander(0.3), wander(0.5), explained, noise)


def _levels(rng: np.random.Generator, iterations: int, mean: int, low: float) -> Floats:
    changes = rng.random(iterations) < 1 / mean
    changes[0] = True
    return rng.uniform(low, 1, iterations)[changes][np.cumsum(changes) - 1]


def _trace(
    rng: np.random.Generator, cpu: Floats, memory: Floats, explained: bool, noise: float
) -> SpeedTrace:
    """Speed goes with the CPU share, and falls steeply when memory is short (figure 4 of the paper)."""
    short = 1 / (1 + np.exp(-12 * (memory - 0.45)))
    speed = FULL_SPEED * cpu * short * np.maximum(0.2, 1 + noise * rng.standard_normal(len(cpu)))
    if not explained:  # something else than CPU and memory drives the speed
        return SpeedTrace(speed, np.ones(len(cpu)), np.ones(len(cpu)))
    seen = [np.clip(share + 0.01 * rng.standard_normal(len(cpu)), 0.01, 1) for share in (cpu, memory)]
    return SpeedTrace(speed, seen[0], seen[1])


def rmse(predictor: SpeedPredictor, trace: SpeedTrace, skip: int = 0) -> float:
    """Root mean square error of one-step predictions, samples/s; the first `skip` iterations are not judged."""
    squares = []
    for at, (speed, resources) in enumerate(trace):
        if at >= skip:
            squares.append((predictor.predict(resources) - speed) ** 2)
        predictor.observe(speed, resources)
    return float(np.sqrt(np.mean(squares)))
