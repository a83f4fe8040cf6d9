"""The compiled passes of the optimizers over a block. All arrays are flat; p_new, m_new, ... may be p, m, ..."""

from __future__ import annotations

import math

import numba
import numpy as np


@numba.njit(cache=True, nogil=True, inline="always")
def _shaped(g, p, scale, decay, clip):  # type: ignore[no-untyped-def]
    """The gradient times scale, clipped to [-clip, clip] (0: not), plus decay p. NaN stays NaN."""
    g = g * scale
    if clip > 0:
        g = clip if g > clip else (-clip if g < -clip else g)
    return g + decay * p if decay > 0 else g


@numba.njit(cache=True, nogil=True)
def sgd(rate, scale, decay, clip, p, g, p_new):  # type: ignore[no-untyped-def]
    for i in range(p.size):
        p_new[i] = p[i] - rate * _shaped(g[i], p[i], scale, decay, clip)


@numba.njit(cache=True, nogil=True)
def momentum(rate, mu, scale, decay, clip, p, g, m, p_new, m_new):  # type: ignore[no-untyped-def]
    for i in range(p.size):
        velocity = mu * m[i] + _shaped(g[i], p[i], scale, decay, clip)
        m_new[i] = velocity
        p_new[i] = p[i] - rate * velocity


@numba.njit(cache=True, nogil=True)
def nesterov(rate, mu, scale, decay, clip, p, g, m, p_new, m_new):  # type: ignore[no-untyped-def]
    for i in range(p.size):
        shaped = _shaped(g[i], p[i], scale, decay, clip)
        velocity = mu * m[i] + shaped
        m_new[i] = velocity
        p_new[i] = p[i] - rate * (shaped + mu * velocity)


@numba.njit(cache=True, nogil=True)
def adagrad(rate, epsilon, weight, scale, decay, clip, p, g, s, p_new, s_new):  # type: ignore[no-untyped-def]
    for i in range(p.size):
        shaped = _shaped(g[i], p[i], scale, decay, clip)
        squares = s[i] + weight * (shaped * shaped)
        s_new[i] = squares
        p_new[i] = p[i] - rate * (shaped / (math.sqrt(squares) + epsilon))


@numba.njit(cache=True, nogil=True)
def adam(  # type: ignore[no-untyped-def]
    rate,
    beta1,
    beta2,
    rest1,
    rest2,
    epsilon,
    unbias2,
    keep,
    scale,
    decay,
    clip,
    p,
    g,
    m,
    v,
    p_new,
    m_new,
    v_new,
):
    for i in range(p.size):
        shaped = _shaped(g[i], p[i], scale, decay, clip)
        first = beta1 * m[i] + rest1 * shaped
        second = beta2 * v[i] + rest2 * (shaped * shaped)
        m_new[i] = first
        v_new[i] = second
        p_new[i] = keep * p[i] - rate * (first / (math.sqrt(second * unbias2) + epsilon))


@numba.njit(cache=True, nogil=True, inline="always")
def _direction(first, second, unbias1, unbias2, epsilon, decay, p):  # type: ignore[no-untyped-def]
    """LAMB's r of one element, from its new moments."""
    return (first * unbias1) / (math.sqrt(second * unbias2) + epsilon) + decay * p


@numba.njit(cache=True, nogil=True)
def lamb_squares(  # type: ignore[no-untyped-def]
    beta1, beta2, rest1, rest2, epsilon, unbias1, unbias2, scale, decay, clip, p, g, m, v, of_p, of_r
):
    """For every 16 elements the square sums of p and of r, which `lamb` goes along."""
    none = p.dtype.type(0)
    for leaf in range(of_p.size):
        sum_p = sum_r = 0.0
        for i in range(leaf * 16, min(leaf * 16 + 16, p.size)):
            shaped = _shaped(g[i], p[i], scale, none, clip)
            first = beta1 * m[i] + rest1 * shaped
            second = beta2 * v[i] + rest2 * (shaped * shaped)
            r = np.float64(_direction(first, second, unbias1, unbias2, epsilon, decay, p[i]))
            sum_p += np.float64(p[i]) * np.float64(p[i])
            sum_r += r * r
        of_p[leaf] = sum_p
        of_r[leaf] = sum_r


@numba.njit(cache=True, nogil=True)
def lamb(  # type: ignore[no-untyped-def]
    rate,
    beta1,
    beta2,
    rest1,
    rest2,
    epsilon,
    unbias1,
    unbias2,
    scale,
    decay,
    clip,
    p,
    g,
    m,
    v,
    p_new,
    m_new,
    v_new,
):
    none = p.dtype.type(0)
    for i in range(p.size):
        shaped = _shaped(g[i], p[i], scale, none, clip)
        first = beta1 * m[i] + rest1 * shaped
        second = beta2 * v[i] + rest2 * (shaped * shaped)
        m_new[i] = first
        v_new[i] = second
        p_new[i] = p[i] - rate * _direction(first, second, unbias1, unbias2, epsilon, decay, p[i])
