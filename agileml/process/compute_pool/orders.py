"""The messages between a machine and its compute processes. They travel by a pipe of the machine's own, pickled."""

from __future__ import annotations

from dataclasses import dataclass

from agileml.config.hardware import Split
from agileml.process.compute_pool.memory import Place, Summed
from agileml.process.spec import RunSpec
from straggler.coverage import Units

# -- machine to process -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Start:
    """The first message: the run, how the cores are split, and the machine's speed (see `Pace`).

    `splits`: those to choose from, the one to begin with first. There are as many processes as that has.
    """

    spec: RunSpec
    splits: tuple[Split, ...]
    speed: float

    @property
    def most_threads(self) -> int:
        """The most that a process may ever have."""
        return max(split.threads for split in self.splits)


@dataclass(frozen=True)
class LoadItems:
    """Load these slices. Answered by `Ready`."""

    slices: tuple[int, ...]


@dataclass(frozen=True)
class ReadRows:
    """Find out which rows of the sparse tables these units read. Answered by `RowsRead`."""

    clock: int
    units: Units


@dataclass(frozen=True)
class ComputeSums:
    """Compute bundles of a clock whose parameters are in shared memory. Answered by `SumDone` for each bundle.

    `counts[table]`: rows of a sparse table that are there. `is_help`: the parameters are those of help.
    """

    clock: int
    bundles: tuple[Units, ...]
    counts: tuple[int, ...]
    is_help: bool = False


@dataclass(frozen=True)
class SetPace:
    """A planned change: another speed from now on, or `factor` times slower until `until_s` of the monotonic clock."""

    speed: float | None = None
    factor: float = 1.0
    until_s: float = 0.0


@dataclass(frozen=True)
class SetThreads:
    """Compute with so many threads from now on."""

    count: int


Order = LoadItems | ReadRows | ComputeSums | SetPace | SetThreads

# -- process to machine -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ready:
    """The process is warm, or has loaded its slices."""


@dataclass(frozen=True)
class RowsRead:
    """The rows of each sparse table, in the order of the tables."""

    rows: tuple[Place, ...]


@dataclass(frozen=True)
class SumDone:
    """The sum of a bundle."""

    bundle: Units
    total: Summed


@dataclass(frozen=True)
class Failed:
    """User code or its data failed: a sentence, and the traceback if there is one."""

    problem: str
    trace: str


Answer = Ready | RowsRead | SumDone | Failed
