"""A trainer in numpy that runs a schedule with its versions and gives exact weights: every sum has one order.

Stages are layers y = tanh(x W_1) W_2 ... with any number of matrices; the loss is half the mean squared distance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pipeline.schedule.actions import Action, Kind, Schedule
from pipeline.schedule.rules import needs, update_members
from pipeline.schedule.versions import Trace, Versions, trace

Array = npt.NDArray[np.float64]
Weights = tuple[Array, ...]


def stage_forward(weights: Weights, x: Array) -> tuple[Array, list[Array]]:
    """A stage's output [batch, out], and what its backward needs: each matrix's input and tanh."""
    kept = [x]
    for matrix in weights:
        x = np.tanh(x @ matrix)
        kept.append(x)
    return x, kept


def stage_backward(weights: Weights, kept: Sequence[Array], gradient: Array) -> tuple[Array, Weights]:
    """(gradient of the stage's input, gradients of its matrices), on any version of the weights."""
    found: list[Array] = []
    for index in range(len(weights) - 1, -1, -1):
        inner = gradient * (1.0 - kept[index + 1] ** 2)
        found.append(kept[index].T @ inner)
        gradient = inner @ weights[index].T
    return gradient, tuple(reversed(found))


def loss_gradient(y: Array, target: Array) -> Array:
    """Of half the mean over the batch of |y - target|^2."""
    return (y - target) / len(y)


@dataclass
class _Run:
    schedule: Schedule
    traced: Trace
    inputs: Sequence[Array]
    targets: Sequence[Array]
    learning_rate: float
    # Per stage: version -> weights.
    store: list[dict[int, Weights]]
    outputs: dict[tuple[int, int], Array] = field(default_factory=dict)
    kept: dict[tuple[int, int], list[Array]] = field(default_factory=dict)
    upstream: dict[tuple[int, int], Array] = field(default_factory=dict)
    gradients: dict[tuple[int, int], Weights] = field(default_factory=dict)
    put_off: dict[tuple[int, int], Weights] = field(default_factory=dict)

    def act(self, stage: int, action: Action, version: int) -> None:
        """Compute one forward or backward on a version of the weights."""
        b = action.minibatch
        weights = self.store[stage][version]
        if action.kind is Kind.WEIGHTS:
            self.gradients[stage, b] = self.put_off.pop((stage, b))
            self.update(stage, b)
            return
        if action.kind is Kind.FORWARD:
            x = self.inputs[b - 1] if stage == 0 else self.outputs.pop((stage - 1, b))
            self.outputs[stage, b], self.kept[stage, b] = stage_forward(weights, x)
            return
        if stage + 1 == self.schedule.stages:
            gradient = loss_gradient(self.outputs.pop((stage, b)), self.targets[b - 1])
        else:
            gradient = self.upstream.pop((stage + 1, b))
        self.upstream[stage, b], own = stage_backward(weights, self.kept.pop((stage, b)), gradient)
        if self.schedule.kinds(stage)[-1] is Kind.WEIGHTS:
            self.put_off[stage, b] = own
        else:
            self.gradients[stage, b] = own
            self.update(stage, b)

    def update(self, stage: int, b: int) -> None:
        """Make the next version once all gradients that go into it, and the version before it, are there."""
        members = update_members(self.schedule, stage, b, self.traced.group)
        before = self.store[stage].get(members[0] - 1)
        if before is None or any((stage, member) not in self.gradients for member in members):
            return
        sums = self.gradients.pop((stage, members[0]))
        for member in members[1:]:
            sums = tuple(x + y for x, y in zip(sums, self.gradients.pop((stage, member)), strict=True))
        # A group's gradients are added up; replicas and double buffers average them.
        count = 1 if self.schedule.updates_by_group else len(members)
        self.store[stage][members[-1]] = tuple(
            w - self.learning_rate * (g / count) for w, g in zip(before, sums, strict=True)
        )
        if members[-1] < self.schedule.minibatches:
            # A faster replica may have finished the next round already.
            self.update(stage, members[-1] + 1)


def train(
    schedule: Schedule,
    mode: Versions,
    stages: Sequence[Weights],
    inputs: Sequence[Array],
    targets: Sequence[Array],
    learning_rate: float,
    *,
    group: int | None = None,
) -> list[Weights]:
    """Weights of each stage after all minibatches of a schedule.

    stages: first weights, matrices [in, out] per stage. inputs, targets: one [batch, width] per minibatch.
    """
    return history(schedule, mode, stages, inputs, targets, learning_rate, group=group)[-1]


def history(
    schedule: Schedule,
    mode: Versions,
    stages: Sequence[Weights],
    inputs: Sequence[Array],
    targets: Sequence[Array],
    learning_rate: float,
    *,
    group: int | None = None,
) -> list[list[Weights]]:
    """As `train`, the newest weights of each stage after the first t minibatches, t = 0, 1, ..."""
    assert len(stages) == schedule.stages
    assert len(inputs) == len(targets) == schedule.minibatches
    traced = trace(schedule, mode, group=group)
    run = _Run(schedule, traced, inputs, targets, learning_rate, [{0: weights} for weights in stages])
    at = [0] * len(schedule.workers)
    done: set[tuple[int, Action]] = set()
    progress = True
    while progress:
        progress = False
        for worker, actions in enumerate(schedule.workers):
            while at[worker] < len(actions):
                action, version = actions[at[worker]], traced.uses[worker][at[worker]]
                need = needs(schedule, worker, action)
                stage = schedule.stage_of(worker)
                if (need is not None and need not in done) or version not in run.store[stage]:
                    break
                run.act(stage, action, version)
                done.add((worker, action))
                at[worker] += 1
                progress = True
    assert all(n == len(actions) for n, actions in zip(at, schedule.workers, strict=True)), "stuck"
    result = []
    for t in range(schedule.minibatches + 1):
        result.append([store[max(v for v in store if v <= t)] for store in run.store])
    return result
