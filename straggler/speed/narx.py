"""NARX: a speed from past speeds and from the CPU and memory that drive it (Chen et al., equation 4).

    v^k = F(v^{k-1}, v^{k-2}, c^k, c^{k-1}, m^k, m^{k-1})

F is one hidden layer of two tanh units: 6 x 2 + 2 + 2 + 1 = 17 weights, one net per worker. All quantities are
logarithms, so that speed = CPU share x memory's effect becomes a sum, and the net gives the change from v^{k-1}: what
it has not learned leaves the last speed as it is. Training stays near the weights it starts from, so that hours of one
regime do not erase what the net knows of others. It takes a few milliseconds; a `Trainer` does it at once or in the
background.
"""

from __future__ import annotations

import json
import math
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
from scipy.optimize import leastsq

from straggler.speed.predictors import FREE, Ema, Resources, check_speed

Floats = npt.NDArray[np.float64]

INPUTS, HIDDEN = 6, 2
WEIGHTS = INPUTS * HIDDEN + 2 * HIDDEN + 1
LEAST_SHARE = 0.01  # of CPU or memory, before the logarithm
MOST_CHANGE = float(np.log(10))
# Logarithms are divided by this before they enter the net (a speed or share that is a third more or less).
SCALE = 0.3
# Weight of the distance from the starting weights against the mean square error: of a trained net, of random ones.
HOLD, HOLD_NOTHING = 0.03, 1e-6


@dataclass(frozen=True)
class Net:
    """`weights` (17,): input to hidden, hidden biases, hidden to output, output bias."""

    weights: Floats

    def __call__(self, inputs: Floats) -> Floats:
        """log v^k - log v^{k-1}, (N,), for scaled inputs (N, 6); see `as_inputs`."""
        hidden, outer = _hidden(self.weights, inputs)
        return (hidden @ outer + self.weights[-1]) * SCALE


GENERAL_FILE = Path(__file__).with_name("general_net.json")  # `python -m straggler.speed.general` makes it
GENERAL = Net(np.array(json.loads(GENERAL_FILE.read_text(encoding="utf-8"))["weights"]))


def as_inputs(usual: float, v1: Floats, v2: Floats, c: Floats, c1: Floats, m: Floats, m1: Floats) -> Floats:
    """The net's inputs (N, 6) from logarithms (N,); `usual`: the worker's mean log speed."""
    return np.column_stack([v1 - usual, v2 - v1, c, c - c1, m, m - m1]) / SCALE


def fresh_weights(seed: int, starts: int = 4) -> Floats:
    """Small random weights to start from, (starts, 17): some of them end in poor local minima."""
    return np.random.default_rng(seed).normal(0, 0.3, (starts, WEIGHTS))


def train(starts: Floats, inputs: Floats, changes: Floats, hold: float = HOLD, most_steps: int = 60) -> Net:
    """Fit scaled inputs (N, 6) to changes of log speed (N,), from each of `starts` (k, 17); the best net.

    Each fit is Levenberg-Marquardt (MINPACK's lmder) on mean square + hold |w - start|^2. It stops when a step
    lowers that by less than 0.001 of itself (after Chen et al., 4.3), at the latest after `most_steps` evaluations.
    """
    fits = []
    for start in starts:
        settings = (start, inputs, changes / SCALE, hold)
        weights, _, report, _, _ = leastsq(
            _residuals,
            start,
            settings,
            _jacobian,
            full_output=True,
            col_deriv=True,
            ftol=1e-3,
            maxfev=most_steps,
        )
        fits.append((float(report["fvec"] @ report["fvec"]), weights))
    return Net(min(fits, key=lambda fit: fit[0])[1])


def _residuals(weights: Floats, start: Floats, x: Floats, y: Floats, hold: float) -> Floats:
    """The errors and the distance from `start`, (N + 17,), so weighted that their squares add up to the loss."""
    hidden, outer = _hidden(weights, x)
    errors = hidden @ outer + weights[-1] - y
    return np.concatenate([errors * len(x) ** -0.5, (weights - start) * hold**0.5])


def _jacobian(weights: Floats, start: Floats, x: Floats, y: Floats, hold: float) -> Floats:
    """Derivatives of `_residuals` by the weights, (17, N + 17)."""
    hidden, outer = _hidden(weights, x)
    inner = (1 - hidden**2) * outer
    first = (x.T[:, None, :] * inner.T[None]).reshape(INPUTS * HIDDEN, -1)
    of_errors = np.vstack([first, inner.T, hidden.T, np.ones(len(x))]) * len(x) ** -0.5
    return np.hstack([of_errors, np.eye(WEIGHTS) * hold**0.5])


def _hidden(weights: Floats, x: Floats) -> tuple[Floats, Floats]:
    first = weights[: INPUTS * HIDDEN].reshape(INPUTS, HIDDEN)
    biases = weights[INPUTS * HIDDEN : INPUTS * HIDDEN + HIDDEN]
    return np.tanh(x @ first + biases), weights[-HIDDEN - 1 : -1]


class Trainer(Protocol):
    """Where nets are trained."""

    def submit(self, starts: Floats, inputs: Floats, changes: Floats, hold: float) -> Future[Net]:
        """Train on a copy of these; the result comes some time."""


class Inline:
    """Trains at once: for simulations, where results must not depend on the machine."""

    def submit(self, starts: Floats, inputs: Floats, changes: Floats, hold: float) -> Future[Net]:
        future: Future[Net] = Future()
        future.set_result(train(starts, inputs, changes, hold))
        return future


class Narx:
    """The predictor: a `pretrained` net (None: an EMA) for the first `warm_up` iterations, then its own.

    Retrained every `retrain` iterations on the last `window`, from the weights it has; first after FEWEST of them.
    """

    FEWEST = 3  # iterations: the last two speeds, and what came of them

    def __init__(
        self,
        trainer: Trainer | None = None,
        seed: int = 0,
        *,
        warm_up: int = 500,
        window: int = 1000,
        retrain: int = 100,
        pretrained: Net | None = GENERAL,
    ) -> None:
        if window < 1 or retrain < 1:
            raise ValueError(f"window is {window}, retrain {retrain}; expected at least 1 each")
        self._trainer = trainer or Inline()
        self._warm_up = max(self.FEWEST, warm_up)
        self._retrain = retrain
        self._rows: deque[tuple[float, float, float]] = deque(maxlen=window + 2)  # log v, c, m
        self._ema = Ema()
        self._seen = 0
        self._usual = 0.0  # mean log speed, of about the window
        self._pending: Future[Net] | None = None
        self._starts = pretrained.weights[None] if pretrained else fresh_weights(seed)
        self.net: Net | None = pretrained

    def observe(self, speed: float, resources: Resources = FREE) -> None:
        self._ema.observe(check_speed(speed))
        self._rows.append(log_row(speed, resources))
        self._seen += 1
        self._usual += (self._rows[-1][0] - self._usual) / min(self._seen, len(self._rows))
        self._collect()
        due = self._seen >= self._warm_up and (self._seen - self._warm_up) % self._retrain == 0
        if due and self._pending is None:
            self._pending = self._trainer.submit(
                self._starts, *self._examples(), HOLD_NOTHING if self.net is None else HOLD
            )

    def predict(self, resources: Resources = FREE) -> float:
        """See `SpeedPredictor`; within a factor of ten of the last speed."""
        self._collect()
        if self.net is None or len(self._rows) < 2:
            return self._ema.predict()
        (v2, _, _), (v1, c1, m1) = self._rows[-2], self._rows[-1]
        known = np.array([v1, v2, _log(resources.cpu), c1, _log(resources.memory), m1])[:, None]
        change = float(self.net(as_inputs(self._usual, *known))[0])
        return float(np.exp(v1 + np.clip(change, -MOST_CHANGE, MOST_CHANGE)))

    def _collect(self) -> None:
        """Take the net that was trained, if it is there. Where its training broke off, the one before stays."""
        if self._pending is None or not self._pending.done():
            return
        if self._pending.exception() is None:
            self.net = self._pending.result()
            self._starts = self.net.weights[None]
        self._pending = None

    def _examples(self) -> tuple[Floats, Floats]:
        return examples(np.array(self._rows), self._usual)


def examples(rows: Floats, usual: float) -> tuple[Floats, Floats]:
    """Arguments of `train`: inputs (N - 2, 6) and changes (N - 2,) from rows (N, 3) of log speed, CPU and memory."""
    v, c, m = rows[:, 0], rows[:, 1], rows[:, 2]
    return as_inputs(usual, v[1:-1], v[:-2], c[2:], c[1:-1], m[2:], m[1:-1]), np.diff(v)[1:]


def log_row(speed: float, resources: Resources) -> tuple[float, float, float]:
    """An iteration as a row of `examples`."""
    return math.log(speed), _log(resources.cpu), _log(resources.memory)


def _log(share: float) -> float:
    return math.log(max(share, LEAST_SHARE))
