"""Rules of versions, sums and drains, each broken once: the thesis' formula, or plain torch, must notice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import pipeline.run.worker as worker_module
from pipeline.run.tree import TreeSum
from pipeline.run.weights import StageWeights
from pipeline.schedule import policies, versions
from pipeline.schedule.versions import Trace
from tests.pipeline.run.test_sequential import job, trained

Break = Callable[[pytest.MonkeyPatch], None]
STAGES, MINIBATCHES, DRAIN = 3, 9, 5


def formula(name: str, lags: tuple[int, ...], **changes: Any) -> tuple[dict[str, Tensor], Any]:
    """The weights of delayed SGD in plain torch (thesis 7.6) with a drain, and the job."""
    made = job(name, mode="stash", minibatches=MINIBATCHES, rate=0.1, epoch=DRAIN, **changes)
    now = {name: value.clone() for name, value in made.start.items()}  # type: ignore[attr-defined]
    history, begin = [now], 0
    for t in range(MINIBATCHES):
        begin = DRAIN if t >= DRAIN else 0
        used = {}
        for key in now:
            lag = lags[min(int(key.split(".")[0]) // 2, STAGES - 1)]
            used[key] = history[max(t - lag, begin)][key].clone().requires_grad_()
        inputs, targets = made.microbatch(t + 1, 0)
        loss = made.loss(torch.func.functional_call(made.model, used, inputs), *targets)
        gradients = torch.autograd.grad(loss, list(used.values()))
        history.append({k: history[-1][k] - 0.1 * g for k, g in zip(used, gradients, strict=True)})
    return history[-1], made


def is_right(**changes: Any) -> bool:
    """Whether stages end with the formula's weights."""
    lags = (STAGES - 1,) * STAGES if changes else tuple(range(STAGES - 1, -1, -1))
    wanted, made = formula("mlp", lags, **changes)
    found, _, _ = trained(made, (2, 4, len(made.traced.layers)), (1,) * STAGES)
    return all(torch.allclose(value, found[key], rtol=1e-5, atol=1e-7) for key, value in wanted.items())


def vertical_sync_takes_the_newest(patch: pytest.MonkeyPatch) -> None:
    original = StageWeights.version
    patch.setattr(StageWeights, "version", lambda self, number: original(self, self.newest))


def stash_is_dropped_early(patch: pytest.MonkeyPatch) -> None:
    original = StageWeights.__init__

    def broken(self: StageWeights, values: Any, names: Any, make: Any, last_use: dict[int, int]) -> None:
        original(self, values, names, make, {version: place - 1 for version, place in last_use.items()})

    patch.setattr(StageWeights, "__init__", broken)


def a_gradient_is_counted_twice(patch: pytest.MonkeyPatch) -> None:
    original = TreeSum.total

    def broken(self: TreeSum) -> Any:
        return [None if g is None else g.add(g) for g in original(self)]

    patch.setattr(TreeSum, "total", broken)


def a_drain_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: Any, **named: Any) -> Any:
        return policies.one_f_one_b(*arguments, **named | {"drains": ()})

    patch.setattr("pipeline.run.job.one_f_one_b", broken)


def vertical_sync_is_off_by_one(patch: pytest.MonkeyPatch) -> None:
    original = versions._not_newer
    patch.setattr(versions, "_not_newer", lambda s, stage, version: max(original(s, stage, version) - 1, 0))


def the_weights_of_another_minibatch(patch: pytest.MonkeyPatch) -> None:
    original = versions.trace

    def broken(*arguments: Any, **named: Any) -> Trace:
        made = original(*arguments, **named)
        shifted = tuple((*uses[1:], uses[-1]) for uses in made.uses)
        return Trace(made.schedule, made.mode, shifted, made.peak, made.group)

    patch.setattr("pipeline.run.job.trace", broken)


def a_layer_is_missing(patch: pytest.MonkeyPatch) -> None:
    original = worker_module.Worker._update

    def broken(self: Any) -> None:
        kept = [tensor.clone() for tensor in self.weights.values().values()] if self.stage == 1 else []
        original(self)
        for tensor, old in zip(self.weights.values().values(), kept, strict=bool(kept)):
            tensor.copy_(old)

    patch.setattr(worker_module.Worker, "_update", broken)


@pytest.mark.parametrize(
    "broken",
    [
        vertical_sync_takes_the_newest,
        stash_is_dropped_early,
        a_gradient_is_counted_twice,
        a_drain_is_forgotten,
        vertical_sync_is_off_by_one,
        the_weights_of_another_minibatch,
        a_layer_is_missing,
    ],
    ids=lambda broken: broken.__name__.replace("_", " "),
)
def test_a_broken_rule_is_noticed(broken: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = {"vertical_sync": True} if "vertical_sync" in broken.__name__ else {}
    assert is_right(**changes)
    broken(monkeypatch)
    try:
        noticed = not is_right(**changes)
    except Exception:  # a version that is not there, or workers that wait for each other
        noticed = True
    assert noticed
