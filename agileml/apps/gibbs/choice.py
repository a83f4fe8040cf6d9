"""Which sampler is the faster one for some tokens."""

from __future__ import annotations

import numpy as np

from agileml.application import Array
from agileml.apps.gibbs.dense import DenseSampler
from agileml.apps.gibbs.sparse import SparseSampler

# Nanoseconds, measured on x86 with vectors of 512 bits; what a token takes beside them is alike in both samplers. They
# decide the time that a sweep takes, not what is right.
DENSE_NS_A_TOPIC = 0.33  # of each token
SPARSE_NS_A_TOPIC = 8.5  # of each token, for a topic that its word has
LISTING_NS_A_TOPIC = 1.2  # of each row, to find the topics that its word has
SORTING_NS_A_TOPIC = 100.0  # of each row, for a topic that its word has
ROWS_APART = 16  # of those that are looked at

Sampler = DenseSampler | SparseSampler


def faster_sampler(some: Array, rows: int, tokens: int) -> type[Sampler]:
    """The sampler for so many tokens of so many words. some: every ROWS_APART-th row of their n_wk, float32.

    The choice follows from the arguments alone, so a unit that is computed again, elsewhere, draws the same topics.
    """
    topics = some.shape[1]
    had = _topics_of_a_token(some) if rows else 0.0
    gain_ns = (DENSE_NS_A_TOPIC * topics - SPARSE_NS_A_TOPIC * had) * tokens
    listing_ns = (LISTING_NS_A_TOPIC * topics + SORTING_NS_A_TOPIC * had) * rows
    return SparseSampler if gain_ns > listing_ns else DenseSampler


def _topics_of_a_token(counts: Array) -> float:
    """How many topics the word of a token has, in the mean; words count as often as they have tokens."""
    tokens = counts.sum(axis=1, dtype=np.float64)
    return float(np.count_nonzero(counts, axis=1) @ tokens / max(tokens.sum(), 1.0))
