"""NARX: a speed from past speeds and from the CPU and memory that drive it (Chen et al., equation 4).

    v^k = F(v^{k-1}, v^{k-2}, c^k, c^{k-1}, m^k, m^{k-1})

F is one hidden layer of two tanh units: 6 x 2 + 2 + 2 + 1 = 17 weights, one net per worker. Everything is in
logarithms, where speed = CPU share x memory's effect is a sum. Training is Levenberg-Marquardt: with so few
weights it needs a few milliseconds, which a `Trainer` spends here and now or in the background.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from straggler.speed import FREE, Ema, Resources, check_speed

Floats = npt.NDArray[np.float64]

INPUTS, HIDDEN = 6, 2
WEIGHTS = INPUTS * HIDDEN + 2 * HIDDEN + 1
LEAST_SHARE = 0.01  # of CPU or memory, before the logarithm


@dataclass(frozen=True)
class Net:
    """`weights` (17,): input to hidden, hidden biases, hidden to output, output bias; and how data are scaled."""

    weights: Floats
    center: Floats  # (7,): the inputs', then the output's
    scale: Floats

    def __call__(self, inputs: Floats) -> Floats:
        """log speeds (N,) for log inputs (N, 6)."""
        hidden, _ = _hidden(self.weights, (inputs - self.center[:-1]) / self.scale[:-1])
        return _output(self.weights, hidden) * self.scale[-1] + self.center[-1]


def fresh_weights(seed: int, starts: int = 4) -> Floats:
    """Small random weights to start from, (starts, 17): some of them end in poor local minima."""
    return np.random.default_rng(seed).normal(0, 0.5, (starts, WEIGHTS))


def train(starts: Floats, inputs: Floats, targets: Floats, most_steps: int = 60) -> Net:
    """Fit log inputs (N, 6) to log speeds (N,), from each of `starts` (k, 17); the net of least loss.

    Stops when the loss (mean square, of scaled data) fell by less than 0.0001 in each of 4 steps (section 4.3).
    """
    everything = np.column_stack([inputs, targets])
    center = everything.mean(axis=0)
    scale = np.maximum(everything.std(axis=0), 1e-6)
    x, y = (inputs - center[:-1]) / scale[:-1], (targets - center[-1]) / scale[-1]
    fits = [_descend(weights, x, y, most_steps) for weights in starts]
    return Net(min(fits, key=lambda fit: fit[0])[1], center, scale)


def _descend(weights: Floats, x: Floats, y: Floats, most_steps: int) -> tuple[float, Floats]:
    """Levenberg-Marquardt: (loss, weights)."""
    damping, small = 1e-2, 0
    jacobian, residual = _jacobian(weights, x, y)
    loss = float(residual @ residual) / len(y)
    for _ in range(most_steps):
        curvature, slope = jacobian.T @ jacobian, jacobian.T @ residual
        step = np.linalg.solve(curvature + damping * np.diag(np.diag(curvature) + 1e-9), slope)
        candidate = weights - step
        new_jacobian, new_residual = _jacobian(candidate, x, y)
        new_loss = float(new_residual @ new_residual) / len(y)
        if new_loss < loss:
            small = small + 1 if loss - new_loss < 1e-4 else 0
            weights, jacobian, residual, loss = candidate, new_jacobian, new_residual, new_loss
            damping = max(damping / 3, 1e-9)
        else:
            damping *= 4
        if small >= 4 or damping > 1e9:
            break
    return loss, weights


def _hidden(weights: Floats, x: Floats) -> tuple[Floats, Floats]:
    first = weights[: INPUTS * HIDDEN].reshape(INPUTS, HIDDEN)
    biases = weights[INPUTS * HIDDEN : INPUTS * HIDDEN + HIDDEN]
    return np.tanh(x @ first + biases), weights[-HIDDEN - 1 : -1]


def _output(weights: Floats, hidden: Floats) -> Floats:
    return hidden @ weights[-HIDDEN - 1 : -1] + weights[-1]


def _jacobian(weights: Floats, x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """d residual / d weights (N, 17), and the residuals (N,)."""
    hidden, outer = _hidden(weights, x)
    inner = (1 - hidden**2) * outer
    wide = (x[:, :, None] * inner[:, None, :]).reshape(len(x), -1)
    return np.column_stack([wide, inner, hidden, np.ones(len(x))]), _output(weights, hidden) - y


class Trainer(Protocol):
    """Where nets are trained."""

    def submit(self, starts: Floats, inputs: Floats, targets: Floats) -> Future[Net]:
        """Train on a copy of these; the result comes some time."""


class Inline:
    """Trains at once: for simulations, where results must not depend on the machine."""

    def submit(self, starts: Floats, inputs: Floats, targets: Floats) -> Future[Net]:
        """See `Trainer`."""
        future: Future[Net] = Future()
        future.set_result(train(starts, inputs, targets))
        return future


class Narx:
    """The predictor: an EMA (or an old net) for the first `warm_up` iterations, then the net.

    Retrained every `retrain` iterations on the last `window`, from the weights it has.
    """

    def __init__(
        self,
        trainer: Trainer | None = None,
        seed: int = 0,
        *,
        warm_up: int = 500,
        window: int = 1000,
        retrain: int = 100,
        pretrained: Net | None = None,
    ) -> None:
        self._trainer = trainer or Inline()
        self._warm_up = warm_up
        self._retrain = retrain
        self._rows: deque[tuple[float, float, float]] = deque(maxlen=window + 2)  # log v, c, m
        self._ema = Ema()
        self._seen = 0
        self._pending: Future[Net] | None = None
        self._starts = pretrained.weights[None] if pretrained else fresh_weights(seed)
        self.net: Net | None = pretrained

    def observe(self, speed: float, resources: Resources = FREE) -> None:
        """See `SpeedPredictor`."""
        self._ema.observe(check_speed(speed))
        self._rows.append((float(np.log(speed)), _log(resources.cpu), _log(resources.memory)))
        self._seen += 1
        self._collect()
        due = self._seen >= self._warm_up and (self._seen - self._warm_up) % self._retrain == 0
        if due and self._pending is None:
            self._pending = self._trainer.submit(self._starts, *self._examples())

    def predict(self, resources: Resources = FREE) -> float:
        """See `SpeedPredictor`; kept within a factor of four of the moving average."""
        usual = self._ema.predict()
        self._collect()
        if self.net is None or len(self._rows) < 2:
            return usual
        (v2, _, _), (v1, c1, m1) = self._rows[-2], self._rows[-1]
        inputs = np.array([[v1, v2, _log(resources.cpu), c1, _log(resources.memory), m1]])
        return float(np.clip(np.exp(self.net(inputs)[0]), usual / 4, usual * 4))

    def _collect(self) -> None:
        if self._pending is not None and self._pending.done():
            self.net = self._pending.result()
            self._starts, self._pending = self.net.weights[None], None

    def _examples(self) -> tuple[Floats, Floats]:
        rows = np.array(self._rows)
        v, c, m = rows[:, 0], rows[:, 1], rows[:, 2]
        inputs = np.column_stack([v[1:-1], v[:-2], c[2:], c[1:-1], m[2:], m[1:-1]])
        return inputs, v[2:]


def _log(share: float) -> float:
    return float(np.log(max(share, LEAST_SHARE)))
