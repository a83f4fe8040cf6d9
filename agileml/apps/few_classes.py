"""Products of many items with few classes, and back: where BLAS is at its worst.

A matrix of items is read once from memory for 2 x classes x features x items operations. BLAS copies it into panels
first, which for ten classes costs more than the arithmetic. Here blocks of rows and classes stay in registers instead:
two rows by four classes for the logits, four rows by two classes for the gradient. Sums are re-associated
(`reassoc`), so that they run in vector lanes; in which order is fixed when the code is compiled.
"""

from __future__ import annotations

import numba
import numpy as np

from agileml.application import Array
from agileml.core.parameters.layout import read_only

MOST_CLASSES = 32  # beyond them BLAS is faster
_REORDER = {"reassoc", "contract", "nsz"}  # NaN and infinities stay what they are


def logits_of(weights: Array, items: Array) -> Array:
    """weights (classes, features) x items (n, features) -> (classes, n), contiguous."""
    if len(weights) > MOST_CLASSES:
        return weights @ items.T
    found = np.empty((len(weights), len(items)), items.dtype)
    _logits(read_only(weights), read_only(items), found)
    return found


def add_gradient(gradient: Array, p: Array, items: Array) -> None:
    """gradient (classes, features) += p (classes, n) x items (n, features)."""
    if len(p) > MOST_CLASSES:
        gradient += p @ items
    else:
        _add_gradient(read_only(p), read_only(items), gradient)


@numba.njit(cache=True, nogil=True, fastmath=_REORDER)
def _logits(w, x, z):  # type: ignore[no-untyped-def]
    zero = x.dtype.type(0)
    classes, items, features = w.shape[0], x.shape[0], x.shape[1]
    i = 0
    while i + 2 <= items:
        u, v = x[i], x[i + 1]
        k = 0
        while k + 4 <= classes:
            w0, w1, w2, w3 = w[k], w[k + 1], w[k + 2], w[k + 3]
            a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = zero
            for f in range(features):
                a, b = u[f], v[f]
                a0 += a * w0[f]
                a1 += a * w1[f]
                a2 += a * w2[f]
                a3 += a * w3[f]
                b0 += b * w0[f]
                b1 += b * w1[f]
                b2 += b * w2[f]
                b3 += b * w3[f]
            z[k, i], z[k + 1, i], z[k + 2, i], z[k + 3, i] = a0, a1, a2, a3
            z[k, i + 1], z[k + 1, i + 1], z[k + 2, i + 1], z[k + 3, i + 1] = b0, b1, b2, b3
            k += 4
        while k < classes:
            w0 = w[k]
            a0 = b0 = zero
            for f in range(features):
                a0 += u[f] * w0[f]
                b0 += v[f] * w0[f]
            z[k, i], z[k, i + 1] = a0, b0
            k += 1
        i += 2
    if i < items:
        u = x[i]
        for k in range(classes):
            w0 = w[k]
            a0 = zero
            for f in range(features):
                a0 += u[f] * w0[f]
            z[k, i] = a0


@numba.njit(cache=True, nogil=True, fastmath=_REORDER)
def _add_gradient(p, x, g):  # type: ignore[no-untyped-def]
    classes, items, features = p.shape[0], x.shape[0], x.shape[1]
    i = 0
    while i + 4 <= items:
        x0, x1, x2, x3 = x[i], x[i + 1], x[i + 2], x[i + 3]
        k = 0
        while k + 2 <= classes:
            a0, a1, a2, a3 = p[k, i], p[k, i + 1], p[k, i + 2], p[k, i + 3]
            b0, b1, b2, b3 = p[k + 1, i], p[k + 1, i + 1], p[k + 1, i + 2], p[k + 1, i + 3]
            ga, gb = g[k], g[k + 1]
            for f in range(features):
                s, t, u, v = x0[f], x1[f], x2[f], x3[f]
                ga[f] += a0 * s + a1 * t + a2 * u + a3 * v
                gb[f] += b0 * s + b1 * t + b2 * u + b3 * v
            k += 2
        if k < classes:
            a0, a1, a2, a3 = p[k, i], p[k, i + 1], p[k, i + 2], p[k, i + 3]
            ga = g[k]
            for f in range(features):
                ga[f] += a0 * x0[f] + a1 * x1[f] + a2 * x2[f] + a3 * x3[f]
        i += 4
    while i < items:
        x0 = x[i]
        for k in range(classes):
            a0, ga = p[k, i], g[k]
            for f in range(features):
                ga[f] += a0 * x0[f]
        i += 1
