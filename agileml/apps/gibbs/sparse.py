"""SparseLDA (Yao, Mimno and McCallum 2009, equations 7 to 9): one sweep over some documents.

The formula's sum over all topics is split in
    s = sum_k alpha beta / (n_k + V beta)            small, all topics
    r = sum_k n_dk beta / (n_k + V beta)             only topics of the document
    q = sum_k (n_dk + alpha) n_wk / (n_k + V beta)   only topics of the word: nearly always drawn from
so that a token costs about as many steps as its word has topics. A word's topics are kept in descending order of their
counts, as whole numbers count << TOPIC_BITS | topic.
"""

from __future__ import annotations

import numba
import numpy as np

from agileml.application import Array
from agileml.apps.gibbs.draws import TINY, Prior, random_bits
from agileml.apps.gibbs.moves import add_moves
from agileml.apps.gibbs.prefetch import prefetch
from agileml.core.parameters.layout import read_only

TOPIC_BITS = 20
MOST_TOPICS = 1 << TOPIC_BITS
_TOPIC = MOST_TOPICS - 1
_LOOK = 64  # topics of a word that are looked at together
AHEAD = 4  # tokens: the first topics of this one's word are fetched
_RESTART = 32  # documents between two fresh sums s, so that rounding does not pile up


class SparseSampler:
    """Keeps for each word (row of `counts`, float32, not changed) the topics with a count, in descending order, with
    room for more: word w has `entries[begin[w] : begin[w] + length[w]]`."""

    def __init__(self, counts: Array, prior: Prior) -> None:
        rooms = np.minimum(counts.shape[1], counts.sum(axis=1)).astype(np.int64)
        self.begin = np.concatenate([[0], np.cumsum(rooms)])
        self.entries = np.empty(self.begin[-1], np.int64)
        self.length = np.zeros(len(counts), np.int64)
        self._change, self._prior = np.zeros_like(counts), prior
        # A read-only view, so that numba compiles one kernel for all arrays.
        _list_topics(read_only(counts), self.begin, self.entries, self.length)
        self._listed: tuple[Array, Array] | None = None  # entries and lengths before all sweeps apart
        self._sweeps = 0  # apart
        self._swept = np.zeros(len(counts), np.int64)  # the last of these that had the word

    def sweep(self, words: Array, starts: Array, z: Array, totals: Array, state: np.uint64) -> float:
        """Draw a new topic for each token. Returns the sum of -log p(token | the other tokens), each before its draw.

        Document d has the tokens starts[d] .. starts[d + 1] - 1; `words` (int32) are their rows in the counts, `z`
        (int32) their topics and `totals` (float64) n_k; both are changed in place. `state`: of the random numbers.
        """
        p, entries, before = self._prior, (self.begin, self.entries, self.length), z.copy()
        loss = _sweep(words, starts, z, *entries, totals, p.alpha, p.beta, p.vocabulary, state)
        add_moves(words, before, z, self._change)
        return float(loss)

    def sweep_apart(self, words: Array, starts: Array, z: Array, totals: Array, state: np.uint64) -> float:
        """As `sweep`, but no other sweep sees the changes in the counts: all begin with those that the sampler was
        given. `changes` has them. One sampler makes sweeps of one kind only."""
        if self._listed is None:
            self._listed = self.entries.copy(), self.length.copy()
        loss = self.sweep(words, starts, z, totals, state)
        self._sweeps += 1
        _list_again(words, self._swept, self._sweeps, self.begin, *self._listed, self.entries, self.length)
        return loss

    def changes(self) -> Array:
        """The changes of the counts by all sweeps."""
        return self._change


@numba.njit(cache=True, nogil=True)
def _list_again(words, swept, sweep, begin, listed, listed_length, entries, length):  # type: ignore[no-untyped-def]
    """Give the words of a sweep the entries that they had before it. swept[w]: the sweep that had w last."""
    for w in words:
        if swept[w] != sweep:
            swept[w] = sweep
            first, n = begin[w], listed_length[w]
            for i in range(first, first + n):
                entries[i] = listed[i]
            length[w] = n


@numba.njit(cache=True, nogil=True, fastmath={"reassoc"}, inline="never")
def _sum(row):  # type: ignore[no-untyped-def]
    """In vector lanes: sums of whole numbers are exact in any order."""
    total = row.dtype.type(0)
    for value in row:
        total += value
    return total


@numba.njit(cache=True, nogil=True)
def _list_topics(counts, begin, entries, length):  # type: ignore[no-untyped-def]
    topics = counts.shape[1]
    for w in range(counts.shape[0]):
        row, first, n = counts[w], begin[w], 0
        for some in range(0, topics, _LOOK):
            stop = min(some + _LOOK, topics)
            if _sum(row[some:stop]) == 0:  # most words have few topics
                continue
            for k in range(some, stop):
                if row[k] > 0:
                    entry = (np.int64(row[k]) << TOPIC_BITS) | k
                    i = n
                    while i > 0 and entries[first + i - 1] < entry:
                        entries[first + i] = entries[first + i - 1]
                        i -= 1
                    entries[first + i] = entry
                    n += 1
        length[w] = n


@numba.njit(cache=True, nogil=True, inline="always")
def _drawn_from_word(u, entries, first, n, old, coefficient):  # type: ignore[no-untyped-def]
    """The topic in which the partial sums of q pass u; the token itself still counts in its `old` topic's entry."""
    topic = old
    for i in range(first, first + n):
        k = entries[i] & _TOPIC
        count = (entries[i] >> TOPIC_BITS) - (k == old)
        if count > 0:
            topic = k
            u -= coefficient[k] * count
            if u < 0:
                break
    return topic


@numba.njit(cache=True, nogil=True, inline="always")
def _drawn_from_document(u, topics, n, in_document, inverse, old):  # type: ignore[no-untyped-def]
    """The topic in which the partial sums of r / beta pass u."""
    topic = old
    for i in range(n):
        k = topics[i]
        if in_document[k] > 0:
            topic = k
            u -= in_document[k] * inverse[k]
            if u < 0:
                break
    return topic


@numba.njit(cache=True, nogil=True, inline="always")
def _drawn_from_all(u, inverse):  # type: ignore[no-untyped-def]
    """The topic in which the partial sums of s / (alpha beta) pass u."""
    for k in range(inverse.size - 1):
        u -= inverse[k]
        if u < 0:
            return k
    return inverse.size - 1


@numba.njit(cache=True, nogil=True, inline="always")
def _move(entries, first, n, old, new):  # type: ignore[no-untyped-def]
    """One token of a word from topic `old` to `new`. Returns the new length."""
    i = first
    while entries[i] & _TOPIC != old:
        i += 1
    entry = entries[i] - (1 << TOPIC_BITS)
    if entry <= _TOPIC:  # none left
        n -= 1
        for j in range(i, first + n):
            entries[j] = entries[j + 1]
    else:
        while i + 1 < first + n and entries[i + 1] > entry:
            entries[i] = entries[i + 1]
            i += 1
        entries[i] = entry
    i = first
    while i < first + n and entries[i] & _TOPIC != new:
        i += 1
    if i == first + n:
        entry = np.int64((1 << TOPIC_BITS) | new)
        n += 1
    else:
        entry = entries[i] + (1 << TOPIC_BITS)
    while i > first and entries[i - 1] < entry:
        entries[i] = entries[i - 1]
        i -= 1
    entries[i] = entry
    return n


@numba.njit(cache=True, nogil=True)
def _sweep(words, starts, z, begin, entries, length, totals, alpha, beta, vocabulary, state):  # type: ignore[no-untyped-def]
    """Changes of n_wk are made in the entries.

    Long because sums, counts and caches of one token change together, and calls that pass them all are no clearer.
    """
    topics_all = totals.size
    v_beta = vocabulary * beta
    inverse = 1.0 / (totals + v_beta)
    coefficient = alpha * inverse  # (n_dk + alpha) / (n_k + V beta) of the present document
    in_document = np.zeros(topics_all, np.int64)  # n_dk
    topics = np.empty(topics_all, np.int64)  # that the document has, or had in this sweep
    loss, product, s = 0.0, 1.0, 0.0
    for d in range(starts.size - 1):
        first, stop = starts[d], starts[d + 1]
        if d % _RESTART == 0:
            s = alpha * beta * inverse.sum()
        n = 0
        for t in range(first, stop):
            k = z[t]
            if in_document[k] == 0:
                topics[n] = k
                n += 1
            in_document[k] += 1
        r = 0.0
        for i in range(n):
            k = topics[i]
            coefficient[k] = (alpha + in_document[k]) * inverse[k]
            r += beta * in_document[k] * inverse[k]
        others = 1.0 / (stop - first - 1 + topics_all * alpha)
        for t in range(first, stop):
            w, old = words[t], z[t]
            before = inverse[old]
            totals[old] -= 1
            in_document[old] -= 1
            after = 1.0 / (totals[old] + v_beta)
            s += alpha * beta * (after - before)
            r += beta * (in_document[old] * after - (in_document[old] + 1) * before)
            inverse[old] = after
            coefficient[old] = (alpha + in_document[old]) * after
            soon = begin[words[min(t + AHEAD, words.size - 1)]]
            prefetch(np.uintp(entries.ctypes.data + soon * entries.itemsize))
            begins, entered = begin[w], length[w]
            q = -coefficient[old]
            for i in range(begins, begins + entered):
                q += coefficient[entries[i] & _TOPIC] * (entries[i] >> TOPIC_BITS)
            state, bits = random_bits(state)
            u = (bits >> np.uint64(11)) * 2.0**-53 * (s + r + q)
            if u < q:
                new = _drawn_from_word(u, entries, begins, entered, old, coefficient)
            elif u < q + r:
                new = _drawn_from_document((u - q) / beta, topics, n, in_document, inverse, old)
            else:
                new = _drawn_from_all((u - q - r) / (alpha * beta), inverse)
            product *= (s + r + q) * others
            if product < TINY:  # one logarithm for many tokens
                loss -= np.log(product)
                product = 1.0
            before = inverse[new]
            totals[new] += 1
            after = 1.0 / (totals[new] + v_beta)
            s += alpha * beta * (after - before)
            r += beta * ((in_document[new] + 1) * after - in_document[new] * before)
            if in_document[new] == 0:
                i = 0
                while i < n and topics[i] != new:
                    i += 1
                if i == n:
                    topics[n] = new
                    n += 1
            in_document[new] += 1
            inverse[new] = after
            coefficient[new] = (alpha + in_document[new]) * after
            if new != old:
                z[t] = new
                length[w] = _move(entries, begins, entered, old, new)
        for i in range(n):
            k = topics[i]
            in_document[k] = 0
            coefficient[k] = alpha * inverse[k]
    return loss - np.log(product)
