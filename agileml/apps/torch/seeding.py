"""Random numbers and threads of torch, NumPy and Python, which belong to the process: units of it take turns."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import torch

BeginBatch = Callable[[int], None]  # by the number of the batch among those of its unit, from 0

# torch's random generator and its threads belong to the process: units of one process take turns.
TORCH = threading.RLock()


def in_turn() -> AbstractContextManager[Any]:
    """One unit at a time in this process: torch's random numbers and threads are the process's own."""
    return TORCH


@contextmanager
def alone(threads: int) -> Iterator[None]:
    """torch for this thread alone, with so many threads of its own and random numbers from a fixed seed on; as before
    afterwards."""
    with TORCH, seeded(0, threads, torch.device("cpu")):
        yield


@contextmanager
def seeded(seed: int, threads: int, device: torch.device) -> Iterator[BeginBatch]:
    """The random numbers of torch, NumPy and Python from `seed` on, and so many threads of torch; all as before
    afterwards.

    Gives a function to call with the number of each batch before it is computed: all but the first have random numbers
    of their own, which do not depend on how many the batches before have drawn.
    """
    generators, go_back = _generators(device), rewind_to_here(device)
    before = torch.get_num_threads()
    # Always: it also tells torch's own MKL, which limits of OpenMP from elsewhere do not reach.
    torch.set_num_threads(threads)

    def begin(number: int) -> None:
        if number:
            own = np.random.SeedSequence((seed, number)).generate_state(1, np.uint64)[0]
            _draw_from(generators, int(own >> np.uint64(1)))

    try:
        _draw_from(generators, seed)
        yield begin
    finally:
        torch.set_num_threads(before)
        go_back()


def rewind_to_here(device: torch.device) -> Callable[[], None]:
    """Remember how far the random numbers of torch, NumPy and Python are. Gives a function that puts them back."""
    generators = _generators(device)
    states = [generator.get_state() for generator in generators]
    numpys, pythons = np.random.get_state(), random.getstate()

    def go_back() -> None:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
        np.random.set_state(numpys)
        random.setstate(pythons)

    return go_back


def _generators(device: torch.device) -> list[torch.Generator]:
    # torch.manual_seed also walks through every kind of accelerator, which takes longer than a small step.
    found = [torch.default_generator]
    if device.type == "cuda":
        found.append(torch.cuda.default_generators[device.index or 0])
    return found


def _draw_from(generators: Sequence[torch.Generator], seed: int) -> None:
    for generator in generators:
        generator.manual_seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    random.seed(seed)


def seeded_for_data(seed: int) -> AbstractContextManager[object]:
    """Random numbers of a data set from `seed` on, in whichever process its items are made."""
    return seeded(seed, 1, torch.device("cpu"))
