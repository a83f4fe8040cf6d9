"""Straggler patterns (thesis 3.4.1, LB-BSP 5.2) as speed profiles, drawn beforehand: the same for every scheme.

A pattern prints as text and parses back: `slow-worker:200`, `disrupted-machine:100`, `power-law:7`, `uneven:75`,
`heterogeneous:0.5`, `none`, `trace:times.csv`.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from straggler.flexrr.groups import machine_of
from straggler.simulate.profile import Piece, SpeedProfile
from straggler.speed.predictors import Resources


@dataclass(frozen=True)
class Cluster:
    """Workers are dealt to machines in rounds; `iteration_s`: an undisturbed worker's time per iteration."""

    workers: int
    machines: int
    iteration_s: float = 1.0

    def __post_init__(self) -> None:
        if self.workers < 1 or not 1 <= self.machines <= self.workers:
            raise ValueError(
                f"{self.workers} workers on {self.machines} machines; expected at least one of each "
                "and no machine without a worker"
            )
        if not 0 < self.iteration_s < math.inf:
            raise ValueError(f"iteration_s is {self.iteration_s}; expected a positive number of seconds")


class Pattern(Protocol):
    """A pattern of slow workers."""

    def profiles(self, cluster: Cluster, seed: int) -> list[SpeedProfile]:
        """One profile for each worker; equal seeds give equal profiles."""

    def shares(self, cluster: Cluster) -> list[float]:
        """Each worker's share of an iteration's items, as a multiple of the even share."""

    def __str__(self) -> str: ...


class _EvenShares:
    def shares(self, cluster: Cluster) -> list[float]:
        return [1.0] * cluster.workers


def _seeded(seed: int, *key: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, *key])))


def _per_worker(cluster: Cluster, pieces: Callable[[int], Iterator[Piece]]) -> list[SpeedProfile]:
    return [SpeedProfile(pieces(worker)) for worker in range(cluster.workers)]


@dataclass(frozen=True)
class NoStragglers(_EvenShares):
    """All workers at full speed."""

    def profiles(self, cluster: Cluster, seed: int) -> list[SpeedProfile]:
        return _per_worker(cluster, lambda worker: iter([Piece(1.0, 1.0)]))

    def __str__(self) -> str:
        return "none"


@dataclass(frozen=True)
class SlowWorker(_EvenShares):
    """At each of `points` points of an iteration, with `probability`, a spell of 0 to `longest` iterations.

    `intensity` d: a slowed worker is 1 + d times slower. Points and spells are measured in own progress: the
    sleeps are injected per part of an iteration. A spell of u iterations lasts (1 + d) u iteration times;
    spells that overlap merge.
    """

    intensity: float
    probability: float = 0.01
    points: int = 10
    longest: float = 2.0

    def __post_init__(self) -> None:
        _check("intensity", self.intensity, 0, math.inf)
        _check("probability", self.probability, 0, 1)

    def profiles(self, cluster: Cluster, seed: int) -> list[SpeedProfile]:
        return _per_worker(cluster, lambda worker: self._pieces(cluster, _seeded(seed, 1, worker)))

    def _pieces(self, cluster: Cluster, rng: np.random.Generator) -> Iterator[Piece]:
        point = 0
        at = 0.0  # own progress, in iterations
        slow_until = 0.0
        while True:
            gap = int(rng.geometric(self.probability)) if self.probability else 10**6
            point += gap
            begins = point / self.points
            ends = begins + float(rng.uniform(0, self.longest))
            slow_end = min(slow_until, begins)
            if slow_end > at:
                yield Piece(
                    (slow_end - at) * (1 + self.intensity) * cluster.iteration_s, 1 / (1 + self.intensity)
                )
                at = slow_end
            if begins > at:
                yield Piece((begins - at) * cluster.iteration_s, 1.0)
                at = begins
            slow_until = max(slow_until, ends)

    def __str__(self) -> str:
        return f"slow-worker:{self.intensity * 100:.15g}"


@dataclass(frozen=True)
class DisruptedMachine(_EvenShares):
    """Every `period_s` a machine is disrupted with `probability` for that long, by d x cores busy threads."""

    intensity: float
    probability: float = 0.2
    period_s: float = 20.0

    def __post_init__(self) -> None:
        _check("intensity", self.intensity, 0, math.inf)
        _check("probability", self.probability, 0, 1)

    def profiles(self, cluster: Cluster, seed: int) -> list[SpeedProfile]:
        return _per_worker(
            cluster, lambda worker: self._pieces(_seeded(seed, 2, machine_of(worker, cluster.machines)))
        )

    def _pieces(self, rng: np.random.Generator) -> Iterator[Piece]:
        share = 1 / (1 + self.intensity)
        while True:
            speed = share if rng.random() < self.probability else 1.0
            yield Piece(self.period_s, speed, Resources(speed, 1.0))

    def __str__(self) -> str:
        return f"disrupted-machine:{self.intensity * 100:.15g}"


@dataclass(frozen=True)
class PowerLaw(_EvenShares):
    """Each iteration's time has density ~ t^-alpha above the undisturbed time, independently."""

    alpha: float

    def __post_init__(self) -> None:
        if not 2 < self.alpha < math.inf:
            raise ValueError(f"alpha is {self.alpha}; expected more than 2, where the mean exists")

    def profiles(self, cluster: Cluster, seed: int) -> list[SpeedProfile]:
        return _per_worker(cluster, lambda worker: self._pieces(cluster, _seeded(seed, 3, worker)))

    def _pieces(self, cluster: Cluster, rng: np.random.Generator) -> Iterator[Piece]:
        while True:
            for factor in (1 - rng.random(64)) ** (-1 / (self.alpha - 1)):
                yield Piece(float(factor) * cluster.iteration_s, 1 / float(factor))

    def __str__(self) -> str:
        return f"power-law:{self.alpha:.15g}"


@dataclass(frozen=True)
class Uneven:
    """Half of the machines hold `loaded` of the items (75%); all are equally fast.

    Which half the thesis does not say: every other machine, or with `block` the first half, where most loaded
    workers have only loaded helpers.
    """

    loaded: float = 0.75
    block: bool = False

    def __post_init__(self) -> None:
        _check("loaded", self.loaded, 0, 1)

    def profiles(self, cluster: Cluster, seed: int) -> list[SpeedProfile]:
        return NoStragglers().profiles(cluster, seed)

    def shares(self, cluster: Cluster) -> list[float]:
        machines = [machine_of(worker, cluster.machines) for worker in range(cluster.workers)]
        heavy = [m < cluster.machines // 2 if self.block else m % 2 == 1 for m in machines]
        if not 0 < sum(heavy) < cluster.workers:
            raise ValueError(f"{cluster.machines} machines have no half; expected at least 2")
        many, few = sum(heavy), cluster.workers - sum(heavy)
        return [
            self.loaded * cluster.workers / many if busy else (1 - self.loaded) * cluster.workers / few
            for busy in heavy
        ]

    def __str__(self) -> str:
        return f"uneven:{self.loaded * 100:.15g}" + (",block" if self.block else "")


@dataclass(frozen=True)
class Heterogeneous(_EvenShares):
    """Other jobs on the same machines: a worker's speed is uniform in [slowest, 1], redrawn now and then, with noise.

    `slowest` 1 is Homo, 1/2 L2, 1/3 L3. `redraw`: mean iterations between draws (exponential); `noise`: standard
    deviation of each iteration time's worth of speed. The CPU share is seen without the noise.
    """

    slowest: float
    redraw: float = 1000.0
    noise: float = 0.01

    def __post_init__(self) -> None:
        _check("slowest", self.slowest, 1e-6, 1)
        _check("redraw", self.redraw, 1e-6, math.inf)
        _check("noise", self.noise, 0, 0.3)

    def profiles(self, cluster: Cluster, seed: int) -> list[SpeedProfile]:
        return _per_worker(cluster, lambda worker: self._pieces(cluster, _seeded(seed, 4, worker)))

    def _pieces(self, cluster: Cluster, rng: np.random.Generator) -> Iterator[Piece]:
        while True:
            level = float(rng.uniform(self.slowest, 1))
            left = float(rng.exponential(self.redraw))
            while left > 0:
                length = min(left, 1.0)
                speed = level * max(0.05, 1 + self.noise * float(rng.standard_normal()))
                yield Piece(length * cluster.iteration_s, speed, Resources(level, 1.0))
                left -= length

    def __str__(self) -> str:
        extra = (
            "" if (self.redraw, self.noise) == (1000.0, 0.01) else f",{self.redraw:.15g},{self.noise:.15g}"
        )
        return f"heterogeneous:{self.slowest:.15g}{extra}"


@dataclass(frozen=True)
class Trace(_EvenShares):
    """Recorded iteration times, replayed: row k of a worker lasts `seconds` at median / seconds of full speed.

    The file is CSV with a header: `seconds` and, if there are, `worker`, `cpu` and `memory` (shares in 0..1).
    It repeats when it is over; workers beyond those recorded take one of theirs, shifted.
    """

    path: str
    rows: tuple[tuple[Piece, ...], ...]
    median_s: float

    def profiles(self, cluster: Cluster, seed: int) -> list[SpeedProfile]:
        return _per_worker(cluster, lambda worker: self._pieces(cluster, worker, _seeded(seed, 5, worker)))

    def _pieces(self, cluster: Cluster, worker: int, rng: np.random.Generator) -> Iterator[Piece]:
        rows = self.rows[worker % len(self.rows)]
        at = 0 if worker < len(self.rows) else int(rng.integers(len(rows)))
        scale = cluster.iteration_s / self.median_s
        while True:
            piece = rows[at % len(rows)]
            yield Piece(piece.duration_s * scale, piece.speed, piece.resources)
            at += 1

    def __str__(self) -> str:
        return f"trace:{self.path}"


def read_trace(path: str) -> Trace:
    """Read a `Trace`; raises ValueError, naming file and line, for anything that is not one."""
    try:
        with Path(path).open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            numbered = [(reader.line_num, row) for row in reader]
            columns = reader.fieldnames or ()
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"trace {path} cannot be read ({error}); expected a CSV file") from error
    if not numbered:
        raise ValueError(f"trace {path} has no rows; expected a CSV file with a header")
    if "seconds" not in columns:
        raise ValueError(
            f"trace {path} has no column 'seconds' in its header ({', '.join(map(repr, columns))}); expected one"
        )
    if many := next((line for line, row in numbered if None in row), None):  # 1,5 for 1.5, say
        raise ValueError(
            f"trace {path}, line {many} has more values than the header; expected {len(columns)}"
        )
    seconds = [_field(path, line, row, "seconds", None) for line, row in numbered]
    median = float(np.median(seconds))
    workers: dict[str, list[Piece]] = {}
    for (line, row), lasted in zip(numbered, seconds, strict=True):
        seen = Resources(_field(path, line, row, "cpu", 1.0), _field(path, line, row, "memory", 1.0))
        workers.setdefault(row.get("worker") or "", []).append(Piece(lasted, median / lasted, seen))
    return Trace(path, tuple(tuple(pieces) for pieces in workers.values()), median)


def _field(path: str, line: int, row: dict[str, str], name: str, default: float | None) -> float:
    text = row.get(name)
    if text is None and default is not None:
        return default
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if name == "seconds" and not 0 < value < math.inf:
        raise ValueError(f"trace {path}, line {line}: {name} is {text!r}; expected a positive number")
    if name != "seconds" and not 0 <= value <= 1:
        raise ValueError(f"trace {path}, line {line}: {name} is {text!r}; expected a share, 0 to 1")
    return value


def _check(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high or value == math.inf:
        raise ValueError(f"{name} is {value}; expected {low:g} to {high:g}")


_EXAMPLES = {
    "none": "none",
    "slow-worker": "slow-worker:200 (per cent)",
    "disrupted-machine": "disrupted-machine:200 (per cent)",
    "power-law": "power-law:7 (alpha)",
    "uneven": "uneven:75[,block] (per cent on half of the machines: every other, or the first half)",
    "heterogeneous": "heterogeneous:0.5[,1000[,0.01]] (slowest, mean iterations to a change, noise)",
    "trace": "trace:times.csv",
}


def parse_pattern(text: str) -> Pattern:
    """Read the text that a pattern prints. Raises ValueError with the patterns there are."""
    name, _, argument = text.partition(":")
    if name not in _EXAMPLES:
        raise ValueError(f"pattern {text!r} is unknown; expected one of {', '.join(_EXAMPLES)}")
    if name == "trace":
        return read_trace(argument)
    try:
        block = name == "uneven" and argument.endswith(",block")
        argument = argument.removesuffix(",block") if block else argument
        numbers = [float(number) for number in argument.split(",")] if argument else []
        if name == "none" and not numbers:
            return NoStragglers()
        if name == "heterogeneous" and 1 <= len(numbers) <= 3:
            return Heterogeneous(*numbers)
        if name == "uneven" and len(numbers) <= 1:
            return Uneven(numbers[0] / 100 if numbers else 0.75, block)
        if len(numbers) == 1 and name == "slow-worker":
            return SlowWorker(numbers[0] / 100)
        if len(numbers) == 1 and name == "disrupted-machine":
            return DisruptedMachine(numbers[0] / 100)
        if len(numbers) == 1 and name == "power-law":
            return PowerLaw(numbers[0])
    except ValueError as error:
        raise ValueError(f"pattern {text!r}: {error}; expected for example {_EXAMPLES[name]}") from error
    raise ValueError(f"pattern {text!r} is not complete; expected for example {_EXAMPLES[name]}")
