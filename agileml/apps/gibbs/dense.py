"""One sweep over some documents that weighs all topics of each token, a vector of LANES topics at a time.

A token takes the same time in any state; SparseLDA's from a random start as long as there are topics. Weights are
float32, so a topic's probability has an error of about 1e-6 of the token's sum. Each operation is a plain sum or
product, never reordered, so all CPUs round alike, whatever the width of their vectors.
"""

from __future__ import annotations

import numba
import numpy as np

from agileml.application import Array
from agileml.apps.gibbs.draws import TINY, Prior, random_bits
from agileml.apps.gibbs.prefetch import LINE_BYTES, prefetch

AHEAD = 2  # tokens: the row of this one's word is fetched
LANES = 16  # topics k, k + LANES, k + 2 LANES ... are added up beside those of the other lanes


class DenseSampler:
    """Keeps the counts n_wk of the words that are sampled, in whole rows.

    counts: (words, topics), float32, whole numbers; not changed.
    """

    def __init__(self, counts: Array, prior: Prior) -> None:
        self._before, self._prior = counts, prior
        # The last vector of a row ends in the next row, or in these; there it has no weight.
        self._counts = np.empty(counts.size + LANES, np.float32)
        self._counts[: counts.size] = counts.reshape(-1)
        self._counts[counts.size :] = 0
        self._apart: Array | None = None  # what sweeps apart changed

    def sweep(self, words: Array, starts: Array, z: Array, totals: Array, state: np.uint64) -> float:
        """Draw a new topic for each token, see `SparseSampler.sweep`."""
        p = self._prior
        return float(_sweep(words, starts, z, self._counts, totals, p.alpha, p.beta, p.vocabulary, state))

    def sweep_apart(self, words: Array, starts: Array, z: Array, totals: Array, state: np.uint64) -> float:
        """As `sweep`, but no other sweep sees the changes: see `SparseSampler.sweep_apart`."""
        if self._apart is None:
            self._apart = np.zeros(self._before.size, np.float32)
        before = z.copy()
        loss = self.sweep(words, starts, z, totals, state)
        _take_back(words, before, z, self._before.shape[1], self._counts, self._apart)
        return loss

    def changes(self) -> Array:
        """What all sweeps changed in the counts. It takes the place of the counts, so the sampler is used up."""
        if self._apart is not None:
            return self._apart.reshape(self._before.shape)
        changes: Array = self._counts[: self._before.size].reshape(self._before.shape)
        changes -= self._before
        return changes


@numba.njit(cache=True, nogil=True)
def _take_back(words, before, after, topics, counts, changes):  # type: ignore[no-untyped-def]
    """Undo in the counts that each token went from topic `before` to `after`, and add it to the changes."""
    for t in range(words.size):
        if before[t] != after[t]:
            row = np.int64(words[t]) * topics
            old, new = row + before[t], row + after[t]
            counts[old] += 1
            counts[new] -= 1
            changes[old] -= 1
            changes[new] += 1


@numba.njit(cache=True, nogil=True, inline="never")
def _weigh(row, coefficient, beta, partial):  # type: ignore[no-untyped-def]
    """partial[k] = sum of coefficient (row + beta) over the topics k, k - LANES, k - 2 LANES ..."""
    for k in range(partial.size):
        partial[k] = coefficient[k] * (row[k] + beta)
    for k in range(partial.size - LANES):
        partial[k + LANES] += partial[k]


@numba.njit(cache=True, nogil=True, inline="always")
def _piece(v, a, b, c):  # type: ignore[no-untyped-def]
    """(in which of four pieces v lies that end at a <= b <= c, where it begins), without a branch to guess."""
    i = np.int64(v >= a) + np.int64(v >= b) + np.int64(v >= c)
    nothing = np.float32(0)
    begin = (a if i == 1 else nothing) + (b if i == 2 else nothing) + (c if i == 3 else nothing)
    return i, begin


@numba.njit(cache=True, nogil=True, inline="always")
def _drawn(u, partial, topics):  # type: ignore[no-untyped-def]
    """(topic, sum of all weights). u: float32 in [0, 1).

    In the order lane by lane, the partial sums pass u times the sum at this topic: first a quarter of the lanes is
    found, then the lane, then the place in it.
    """
    last = partial[partial.size - LANES :]
    a = (last[0] + last[1]) + (last[2] + last[3])
    b = (last[4] + last[5]) + (last[6] + last[7])
    c = (last[8] + last[9]) + (last[10] + last[11])
    d = (last[12] + last[13]) + (last[14] + last[15])
    b += a
    total = b + (c + d)
    v = u * total
    quarter, begin = _piece(v, a, b, b + c)
    v -= begin
    lane = 4 * quarter
    a = last[lane]
    b = a + last[lane + 1]
    within, begin = _piece(v, a, b, b + last[lane + 2])
    v -= begin
    # Rounding may lead to a lane without a topic.
    topic = min(lane + within, topics - 1)
    passed = np.int64(0)
    for k in range(topic, topics - LANES, LANES):
        passed += np.int64(partial[k] <= v)
    return topic + LANES * passed, total


@numba.njit(cache=True, nogil=True, inline="always")
def _fetch(counts, topics, w):  # type: ignore[no-untyped-def]
    """Begin to bring row w near: rows are used in no order, and waiting for one took a fifth of the time."""
    bytes_a_row = topics * counts.itemsize
    address = counts.ctypes.data + np.int64(w) * bytes_a_row
    for offset in range(0, bytes_a_row, LINE_BYTES):
        prefetch(np.uintp(address + offset))


@numba.njit(cache=True, nogil=True)
def _sweep(words, starts, z, counts, totals, alpha, beta, vocabulary, state):  # type: ignore[no-untyped-def]
    topics, v_beta = totals.size, vocabulary * beta
    prior, beta_32 = np.float32(alpha), np.float32(beta)
    width = -(-topics // LANES) * LANES
    inverse = np.zeros(width, np.float32)  # 1 / (n_k + V beta); nothing beyond the last topic
    for k in range(topics):
        inverse[k] = 1.0 / (totals[k] + v_beta)
    in_document = np.zeros_like(inverse)  # n_dk
    coefficient = np.zeros_like(inverse)  # (n_dk + alpha) / (n_k + V beta) of the present document
    partial = np.empty_like(inverse)
    loss, product = 0.0, 1.0
    for d in range(starts.size - 1):
        first, stop = starts[d], starts[d + 1]
        in_document[:] = 0
        for t in range(first, stop):
            in_document[z[t]] += 1
        for k in range(topics):
            coefficient[k] = (in_document[k] + prior) * inverse[k]
        others = 1.0 / (stop - first - 1 + topics * alpha)
        for t in range(first, stop):
            row, k = counts[words[t] * topics :][:width], z[t]
            row[k] -= 1
            totals[k] -= 1
            in_document[k] -= 1
            inverse[k] = 1.0 / (totals[k] + v_beta)
            coefficient[k] = (in_document[k] + prior) * inverse[k]
            _fetch(counts, topics, words[min(t + AHEAD, words.size - 1)])
            _weigh(row, coefficient, beta_32, partial)
            state, bits = random_bits(state)
            k, total = _drawn(np.float32(bits >> np.uint64(40)) * np.float32(2.0**-24), partial, topics)
            product *= total * others
            if product < TINY:  # one logarithm for many tokens
                loss -= np.log(product)
                product = 1.0
            z[t] = k
            row[k] += 1
            totals[k] += 1
            in_document[k] += 1
            inverse[k] = 1.0 / (totals[k] + v_beta)
            coefficient[k] = (in_document[k] + prior) * inverse[k]
    return loss - np.log(product)
