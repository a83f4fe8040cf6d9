"""From the topics of tokens before and after a sweep to the changes of the counts.

A loop of its own: the processor waits for many counts at a time, where the sweep would wait for each.
"""

from __future__ import annotations

import numba
import numpy as np


@numba.njit(cache=True, nogil=True)
def add_moves(words, before, after, change):  # type: ignore[no-untyped-def]
    """Add to `change` (words, topics) that each token of a word went from topic `before` to `after`."""
    for t in range(words.size):
        if before[t] != after[t]:
            change[words[t], before[t]] -= 1
            change[words[t], after[t]] += 1


@numba.njit(cache=True, nogil=True)
def take_back(words, before, after, topics, counts):  # type: ignore[no-untyped-def]
    """Undo in the counts, flat, with so many topics a word, that each token went from topic `before` to `after`."""
    for t in range(words.size):
        if before[t] != after[t]:
            row = np.int64(words[t]) * topics
            counts[row + before[t]] += 1
            counts[row + after[t]] -= 1
