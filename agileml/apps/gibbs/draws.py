"""Priors and random draws, which both samplers use."""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np

TINY = 1e-250  # a product of probabilities below it becomes a logarithm


@dataclass(frozen=True)
class Prior:
    """Dirichlet priors of a document's topics and of a topic's words, and the number of words V."""

    alpha: float
    beta: float
    vocabulary: int


@numba.njit(cache=True, nogil=True, inline="always")
def random_bits(state):  # type: ignore[no-untyped-def]
    """(next state, 64 random bits) of SplitMix64 (Steele, Lea and Flood 2014)."""
    state = state + np.uint64(0x9E3779B97F4A7C15)
    z = state
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return state, z
