"""What a machine has to compute with, and how its cores are split between compute processes."""

from __future__ import annotations

from dataclasses import dataclass

from agileml.config.job import JobConfig
from agileml.config.text import ConfigError


@dataclass(frozen=True)
class Hardware:
    """The cores of a machine's Ray node, and the speed at which it computes if it stands for another machine."""

    cores: int = 1
    speed: float = 1.0


@dataclass(frozen=True)
class Split:
    """`workers` compute processes (1: the compute thread of the machine's own process) with `threads` threads each."""

    workers: int
    threads: int

    def __str__(self) -> str:
        workers = "1 process" if self.workers == 1 else f"{self.workers} processes"
        return f"{workers} of {self.threads} thread{'s' if self.threads > 1 else ''}"


def split_of(config: JobConfig, cores: int) -> Split:
    """How a machine with so many cores computes: a process for each GPU, else for each group of `threads` cores.

    Where `threads` is auto, a process has as many as the model says (`model.threads` of a torch module), otherwise one.
    Raises ConfigError where the config asks for more than the cores.
    """
    machines = config.machines
    threads = _model_threads(config) if machines.threads == "auto" else machines.threads
    if machines.threads != "auto" and threads > 1 and config.deterministic:
        raise ConfigError(
            f"found {threads} with deterministic, expected 1: sums must not depend on the number of threads",
            key=("machines", "threads"),
        )
    most = cores // threads
    if machines.threads != "auto" and not most:
        raise ConfigError(
            f"found {threads}, expected at most {cores}: a machine's Ray node has {_cores(cores)}",
            key=("machines", "threads"),
        )
    if machines.workers == "auto":
        return Split(max(1, int(machines.gpus) or most), threads)
    if machines.workers > max(1, most):
        raise ConfigError(
            f"found {machines.workers}, expected at most {max(1, most)}: a machine's Ray node has {_cores(cores)}, and "
            f"a process has {threads} {'thread' if threads == 1 else 'threads'}",
            key=("machines", "workers"),
        )
    return Split(machines.workers, threads)


def _model_threads(config: JobConfig) -> int:
    own = config.model.get("threads", 1)
    return own if isinstance(own, int) and own >= 1 else 1  # the application checks its own keys


def _cores(cores: int) -> str:
    return "1 core" if cores == 1 else f"{cores} cores"
