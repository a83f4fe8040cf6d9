"""The hardware of a machine: its cores, split between compute processes, and its memory for items."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import psutil

from agileml.config.job import JobConfig
from agileml.config.text import ConfigError

KEPT_FREE = 0.1  # of the free memory, for everything else


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
    most = cores // threads
    if machines.threads != "auto" and not most:
        raise ConfigError(
            f"found {threads}, expected at most {cores}: a machine's Ray node has {_cores(cores)}",
            key=("machines", "threads"),
        )
    if config.optimizer.kind == "torch":
        # One process has the replica, and the order of its sums is free: it takes all cores where nothing is said.
        is_open = machines.threads == "auto" and "threads" not in config.model and machines.gpus < 1
        return Split(1, max(1, cores) if is_open else threads)
    if machines.workers == "auto" and config.consistency.kind == "elastic":
        return Split(1, threads)  # one minibatch at a time
    if machines.workers == "auto":
        return Split(max(1, int(machines.gpus) or most), threads)
    if machines.workers > max(1, most):
        raise ConfigError(
            f"found {machines.workers}, expected at most {max(1, most)}: a machine's Ray node has {_cores(cores)}, and "
            f"a process has {threads} {'thread' if threads == 1 else 'threads'}",
            key=("machines", "workers"),
        )
    return Split(machines.workers, threads)


def capacity_of(config: JobConfig, cores: int, speed: float) -> float:
    """The computing power of a machine of so many cores and this speed, relative to others: by the cores that it
    computes with, with GPUs by its processes, one for each. A stage of a pipeline computes with one thread. Raises
    ConfigError.
    """
    split = split_of(config, cores)
    if config.pipeline is not None:
        return speed
    return speed * (split.workers if config.machines.gpus >= 1 else min(cores, split.workers * split.threads))


def least_cores(config: JobConfig) -> int:
    """The fewest cores with which `split_of` finds a machine large enough."""
    machines = config.machines
    threads = _model_threads(config) if machines.threads == "auto" else machines.threads
    least = 1 if machines.threads == "auto" else threads
    return least if machines.workers in ("auto", 1) else max(least, int(machines.workers) * threads)


def check_fits(config: JobConfig, kind: str, vcpus: int, gpus: int | None) -> None:
    """Raise ConfigError where a process of the job finds too little room on a machine of this type, which is bought.
    gpus: None where they are not known."""
    where = f"a machine of the type {kind} has {vcpus} vCPUs"
    if gpus is not None and config.machines.gpus > gpus:
        has = "1 GPU" if gpus == 1 else f"{gpus} GPUs"
        raise ConfigError(
            f"found {config.machines.gpus:g}, expected at most {gpus}: a machine of the type {kind} has {has}",
            key=("machines", "gpus"),
        )
    if config.machines.cpus > vcpus:
        raise ConfigError(
            f"found {config.machines.cpus:g}, expected at most {vcpus}: {where}", key=("machines", "cpus")
        )
    try:
        split_of(config, vcpus)
    except ConfigError as error:
        raise ConfigError(f"{error.detail} ({where})", key=error.key) from None


def splits_of(config: JobConfig, cores: int) -> tuple[Split, ...]:
    """The splits that a machine tries, that of `split_of` first; one where there is nothing to choose.

    A choice needs several cores, `workers` and `threads` that are both auto, and sums that may depend on the number of
    threads. Raises ConfigError.
    """
    first, machines = split_of(config, cores), config.machines
    is_open = machines.workers == machines.threads == "auto" and machines.gpus < 1
    if first.workers == 1 or not is_open or config.deterministic or "threads" in config.model:
        return (first,)
    counts = [*(1 << power for power in range(cores.bit_length()) if 1 << power < cores), cores]
    return tuple(Split(cores // threads, threads) for threads in counts)


def _model_threads(config: JobConfig) -> int:
    own = config.model.get("threads", 1)
    return own if isinstance(own, int) and own >= 1 else 1  # the application checks its own keys


def _cores(cores: int) -> str:
    return "1 core" if cores == 1 else f"{cores} cores"


# -- items that only help needs -----------------------------------------------------------------------------


def too_large(slice_bytes: float, left: int, free_bytes: float) -> str | None:
    """The sentence for a replication that does not fit: `left` more slices of so many bytes each. None: it fits."""
    if slice_bytes * left <= (1 - KEPT_FREE) * free_bytes:
        return None
    return (
        f"helping.replication: the items of {left} more slices, which this machine loads to help others, take about "
        f"{slice_bytes * left / 1e9:.3g} GB, and {free_bytes / 1e9:.3g} GB of memory are free; expected a smaller "
        "replication or group_size, or more memory"
    )


class ItemsAhead:
    """Measures what each slice that is loaded ahead adds to the memory of the processes that load them."""

    def __init__(self, pids: Callable[[], Iterable[int]]) -> None:
        self._pids = pids
        self._loaded = 0
        self._bytes = 0.0

    def measured(self, load: Callable[[], None], left: int) -> str | None:
        """Load one slice; the sentence of `too_large` if `left` more would not fit."""
        before = self._used_bytes()
        load()
        self._loaded += 1
        self._bytes += max(0, self._used_bytes() - before)
        return too_large(self._bytes / self._loaded, left, psutil.virtual_memory().available)

    def _used_bytes(self) -> int:
        total = 0
        for pid in self._pids():
            memory = psutil.Process(pid).memory_info()
            total += memory.rss - memory.shared
        return total
