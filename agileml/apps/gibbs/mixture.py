"""The topics of a new document, given the topics' shares of words."""

from __future__ import annotations

import numba
import numpy as np


@numba.njit(cache=True, nogil=True)
def mixture_of(words, topic_shares, alpha, mixture, rounds):  # type: ignore[no-untyped-def]
    """Fit the mixture of a document to some of its tokens by fixed-point steps; `mixture` (topics,) is overwritten.

    theta_k <- (alpha + sum_i p(k | w_i, theta)) / norm, where p(k | w, theta) is proportional to theta_k phi_kw;
    `topic_shares` (V, topics) is phi.
    """
    topics = mixture.size
    mixture[:] = 1.0 / topics
    found = np.empty(topics)
    for _ in range(rounds):
        found[:] = alpha
        for w in words:
            shares = topic_shares[w]
            total = 0.0
            for k in range(topics):
                total += mixture[k] * shares[k]
            for k in range(topics):
                found[k] += mixture[k] * shares[k] / total
        mixture[:] = found / (words.size + topics * alpha)
