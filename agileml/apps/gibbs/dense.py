"""One sweep over some documents that weighs all topics of each token, a vector of LANES topics at a time: topics k,
k + LANES, k + 2 LANES ... are added up beside those of the other lanes.

A token takes the same time in any state; SparseLDA's from a random start as long as there are topics. Weights are
float32, so a topic's probability has an error of about 1e-6 of the token's sum. Each operation is a plain sum or
product, never reordered, so all CPUs round alike, whatever the width of their vectors.
"""

from __future__ import annotations

import numba
import numpy as np

from agileml.application import Array
from agileml.apps.gibbs.draws import TINY, Prior, random_bits
from agileml.apps.gibbs.moves import add_moves, take_back
from agileml.apps.gibbs.prefetch import LINE_BYTES, prefetch
from agileml.apps.gibbs.running_sums import LANES, add_up
from agileml.core.parameters.layout import read_only

AHEAD = 2  # tokens: the row of this one's word is fetched
MOST_NARROW = np.iinfo(np.uint16).max  # tokens of a word


class DenseSampler:
    """Keeps the counts n_wk of the words that are sampled, in whole rows.

    counts: (words, topics), float32, whole numbers; not changed.
    """

    def __init__(self, counts: Array, prior: Prior) -> None:
        self._before, self._prior = counts, prior
        # The last vector of a row ends in the next row, or in the room behind the last one; there it has no weight.
        # Half of the time goes into bringing rows near, so counts have 16 bits where they may.
        self._counts = np.zeros(counts.size + LANES, np.uint16)
        if not _narrowed(read_only(counts), self._counts):
            self._counts = np.zeros(counts.size + LANES, np.float32)
            self._counts[: counts.size] = counts.reshape(-1)
        self._apart: Array | None = None  # what sweeps apart changed

    def sweep(self, words: Array, starts: Array, z: Array, totals: Array, state: np.uint64) -> float:
        """Draw a new topic for each token, see `SparseSampler.sweep`."""
        p = self._prior
        return float(_sweep(words, starts, z, self._counts, totals, p.alpha, p.beta, p.vocabulary, state))

    def sweep_apart(self, words: Array, starts: Array, z: Array, totals: Array, state: np.uint64) -> float:
        """As `sweep`, but no other sweep sees the changes: see `SparseSampler.sweep_apart`."""
        if self._apart is None:
            self._apart = np.zeros_like(self._before)
        before = z.copy()
        loss = self.sweep(words, starts, z, totals, state)
        add_moves(words, before, z, self._apart)
        take_back(words, before, z, self._before.shape[1], self._counts)
        return loss

    def changes(self) -> Array:
        """The changes of the counts by all sweeps."""
        if self._apart is not None:
            return self._apart
        changes: Array = self._counts[: self._before.size].reshape(self._before.shape) - self._before
        return changes


@numba.njit(cache=True, nogil=True)
def _narrowed(counts, narrow):  # type: ignore[no-untyped-def]
    """Copy the counts. False if a word has more tokens than a count can hold, wherever they may move."""
    words, topics = counts.shape
    for w in range(words):
        tokens, row = np.float32(0), narrow[w * topics :]
        for k in range(topics):
            count = counts[w, k]
            tokens += count
            row[k] = np.uint16(count)
        if tokens > MOST_NARROW:
            return False
    return True


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
    # The sums of a lane ascend: halve the places left, without a branch to guess, until none is left.
    places = np.uint64(topics - 1 - topic) // np.uint64(LANES)
    while places > 0:
        half = (places + np.uint64(1)) >> np.uint64(1)
        has_passed = partial[np.uint64(topic) + (half - np.uint64(1)) * np.uint64(LANES)] <= v
        topic += np.int64(half) * LANES if has_passed else 0
        places = places - half if has_passed else half - np.uint64(1)
    return topic, total


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
            add_up(row, coefficient, beta_32, partial)  # of topics k, k - LANES, k - 2 LANES ...
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
