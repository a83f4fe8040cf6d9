"""Pipelines in one process: the bits do not depend on stages, replicas or order; versions are those of the thesis."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pipeline.run.config import PipelineConfig, RunError
from pipeline.run.job import Job, StageShape
from pipeline.run.sequential import run_sequential
from pipeline.run.tree import TreeSum, slice_of
from pipeline.run.worker import Worker


@cache
def job(name: str, rate: float | None = None, momentum: float = 0.0, **changes: Any) -> Job:
    values = {
        "training": f"tests.pipeline.run.training:{name}",
        "minibatches": 3,
        "optimizer": {"kind": "SGD", "lr": rate, "momentum": momentum}
        if rate
        else {"kind": "Adam", "lr": 0.01},
        **changes,
    }
    made = Job(PipelineConfig.model_validate(values))
    made.start = {k: v.detach().clone() for k, v in made.traced.values.items()}  # type: ignore[attr-defined]
    return made


def trained(
    made: Job, ends: tuple[int, ...], replicas: tuple[int, ...], recompute: bool = False
) -> tuple[dict[str, Tensor], dict[int, float], list[Worker]]:
    """(weights and changed buffers after the run, loss by place of the schedule, workers)."""
    with torch.no_grad():
        for name, value in made.start.items():  # type: ignore[attr-defined]
            made.traced.values[name].copy_(value)
    shape = StageShape(ends, replicas, (recompute,) * len(ends))
    codes, lists = made.codes(shape), made.schedule(shape)
    workers = run_sequential(
        lists.schedule, lambda number, ends: made.worker(lists, shape, codes, number, ends)
    )
    found: dict[str, Tensor] = {}
    for worker in workers:
        for name, value in worker.weights.values().items():
            assert name not in found or torch.equal(found[name], value), "replicas differ"
            found[name] = value.clone()
    found |= {name: made.traced.values[name].clone() for name in made.traced.changed}
    losses = {b: loss for worker in workers for b, loss in worker.losses.items()}
    return found, losses, workers


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(value, b[name]) for name, value in a.items())


@cache
def whole(name: str, **changes: Any) -> dict[str, Tensor]:
    made = job(name, **changes)
    return trained(made, (len(made.traced.layers),), (1,))[0]


@pytest.mark.parametrize("name", ["mlp", "language", "residual"])
@settings(max_examples=4, deadline=None)
@given(data=st.data())
def test_flush_has_the_bits_of_one_process(name: str, data: st.DataObject) -> None:
    order = data.draw(st.sampled_from(["1f1b", "zero-bubble"]))
    made = job(name, order=order)
    count = len(made.traced.layers)
    middle = sorted(data.draw(st.sets(st.integers(1, count - 1), max_size=3)))
    most = 1 if name == "residual" else 4
    replicas = tuple(data.draw(st.integers(1, most)) for _ in range(len(middle) + 1))
    found, _, _ = trained(made, (*middle, count), replicas, data.draw(st.booleans()))
    assert same(found, whole(name))


def test_flush_is_plain_torch_on_equal_parts_of_the_minibatch() -> None:
    made = job("mlp")
    found, losses, _ = trained(made, (3, len(made.traced.layers)), (1, 2))
    with torch.no_grad():
        for name, value in made.start.items():  # type: ignore[attr-defined]
            made.traced.values[name].copy_(value)
    optimizer = torch.optim.Adam(made.model.parameters(), lr=0.01)
    for number in (1, 2, 3):
        parts = []
        for part in range(4):
            optimizer.zero_grad()
            (x,), (target,) = made.microbatch(number, part)
            loss = made.loss(made.model(x), target)
            (loss * 0.25).backward()
            parts.append([p.grad.clone() for p in made.model.parameters()])
        for p, a, b, c, d in zip(made.model.parameters(), *parts, strict=True):
            p.grad = (a + b) + (c + d)
        optimizer.step()
    assert same(found, {name: p.detach() for name, p in made.model.named_parameters()})
    assert len(losses) == 12


@pytest.mark.parametrize("recompute", [False, True])
def test_thirds_of_a_minibatch_are_as_exact_as_the_model(recompute: bool) -> None:
    made = job("thirds", rate=0.5, microbatches=3)
    found, _, _ = trained(made, (2, len(made.traced.layers)), (1, 1), recompute)
    with torch.no_grad():
        for name, value in made.start.items():  # type: ignore[attr-defined]
            made.traced.values[name].copy_(value)
    optimizer = torch.optim.SGD(made.model.parameters(), lr=0.5)
    for number in (1, 2, 3):
        optimizer.zero_grad()
        (x,), (target,) = made.minibatch(number)
        made.loss(made.model(x), target).backward()
        optimizer.step()
    for name, parameter in made.model.named_parameters():
        torch.testing.assert_close(found[name], parameter.detach(), rtol=1e-13, atol=1e-14)


def test_minibatches_that_are_drawn_anew_are_refused() -> None:
    with pytest.raises(RunError, match=r"minibatch\(1\) of .*:drawn made two unlike minibatches"):
        job("drawn")


def test_a_minibatch_whose_targets_would_not_be_cut_with_it_is_refused() -> None:
    with pytest.raises(
        RunError, match="has 12 items by the first dimension of its first input, and 8 by that of its"
    ):
        job("time_first")


def test_so_many_microbatches_may_be_in_flight_as_there_are() -> None:
    assert job("mlp", minibatches=1, microbatches=8, in_flight=8).config.in_flight == 8
    with pytest.raises(ValueError, match="in_flight is 2, expected at most minibatches = 1"):
        job("mlp", mode="stash", minibatches=1, in_flight=2)


@pytest.mark.parametrize(
    ("changes", "lag"), [({}, lambda stages, stage: stages - 1 - stage), ({"vertical_sync": True}, None)]
)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("stages", [2, 4])
def test_stash_is_the_formula_of_the_thesis(
    stages: int, momentum: float, changes: dict[str, Any], lag: Any
) -> None:
    """w_l^(t+1) = w_l^(t) - nu grad f(w_1^(t-n+1), ..., w_n^(t)); with vertical sync all of w^(t-n+1) (7.6)."""
    made = job("mlp", mode="stash", minibatches=7, rate=0.1, momentum=momentum, **changes)
    count = len(made.traced.layers)
    ends = (*range(2, 2 * stages, 2), count)
    found, _, workers = trained(made, ends, (1,) * stages)
    names = [worker.weights.names for worker in workers]
    start = {name: made.start[name] for stage in names for name in stage}  # type: ignore[attr-defined]
    history = [start]
    speed = {name: torch.zeros_like(value) for name, value in start.items()}
    for t in range(7):
        behind = [stages - 1 - stage if lag else stages - 1 for stage in range(stages)]
        used = {
            name: history[max(t - behind[stage], 0)][name].clone().requires_grad_()
            for stage in range(stages)
            for name in names[stage]
        }
        inputs, targets = made.microbatch(t + 1, 0)
        loss = made.loss(torch.func.functional_call(made.model, used, inputs), *targets)
        gradients = torch.autograd.grad(loss, list(used.values()))
        speed = {n: momentum * speed[n] + g for n, g in zip(used, gradients, strict=True)}
        history.append({n: history[-1][n] - 0.1 * speed[n] for n in used})
    for name, value in history[-1].items():
        assert torch.allclose(value, found[name], rtol=1e-5, atol=1e-7), name
    assert workers[-1].weights.peak == (1 if lag else min(stages, 7))


def test_the_last_stage_keeps_no_version_and_the_first_as_many_as_are_in_flight() -> None:
    made = job("mlp", mode="stash", minibatches=12, rate=0.1)
    _, _, workers = trained(made, (2, 4, 6, len(made.traced.layers)), (1, 1, 1, 1))
    assert [worker.weights.peak for worker in workers] == [4, 3, 2, 1]
    none = job("mlp", mode="none", minibatches=12, rate=0.1)
    other, _, workers = trained(none, (2, 4, 6, len(made.traced.layers)), (1, 1, 1, 1))
    assert [worker.weights.peak for worker in workers] == [1, 1, 1, 1]
    assert not same(other, trained(made, (2, 4, 6, len(made.traced.layers)), (1, 1, 1, 1))[0])


@settings(max_examples=10, deadline=None)
@given(
    replicas=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    epoch=st.none() | st.integers(1, 6),
    kind=st.sampled_from([{}, {"vertical_sync": True}, {"double_buffered": True}]),
    in_flight=st.none() | st.integers(1, 4),
)
def test_replicated_stages_end_with_equal_weights(
    replicas: list[int], epoch: int | None, kind: dict[str, Any], in_flight: int | None
) -> None:
    made = job("mlp", mode="stash", minibatches=7, epoch=epoch, in_flight=in_flight, **kind)
    count = len(made.traced.layers)
    ends = (3, 6, count)[-len(replicas) :] if len(replicas) > 1 else (count,)
    found, losses, _ = trained(made, ends, tuple(replicas))  # asserts that replicas agree
    assert sorted(losses) == list(range(1, 8))
    assert all(torch.isfinite(value).all() for value in found.values())


def test_batch_norm_over_replicas_is_refused() -> None:
    made = job("residual")
    with pytest.raises(RunError, match=r"changes the buffer norm.running_mean"):
        trained(made, (len(made.traced.layers),), (2,))


def test_weights_that_a_forward_changes_are_not_replicated() -> None:
    made = job("with_max_norm")
    count = len(made.traced.layers)
    whole, *_ = trained(made, (count,), (1,))
    assert same(trained(made, (1, count), (1, 1))[0], whole)
    with pytest.raises(
        RunError, match=r"stage 1 has 2 replicas, and its forward changes the parameter 0\.weight"
    ):
        trained(made, (1, count), (2, 1))


@given(count=st.integers(1, 12), data=st.data())
def test_the_tree_is_the_engines(count: int, data: st.DataObject) -> None:
    from agileml.core.parameters.fold import Contribution, Fold
    from agileml.core.parameters.layout import Dense

    whole_tree = 1 << (count - 1).bit_length()
    values = torch.randn(count, 5)
    ours, theirs = TreeSum(), Fold(True)
    for leaf in data.draw(st.permutations(range(count))):
        ours.add(leaf, 1, [values[leaf].clone()])
    total = ours.total()[0]
    if count == whole_tree:
        for leaf in range(count):
            theirs.add(1 << leaf, Contribution((Dense(values[leaf].numpy().copy()),)))
        block = theirs.total().blocks[0]
        assert torch.equal(total, torch.from_numpy(block.values))


@given(replicas=st.sampled_from([1, 2, 4]), others=st.sampled_from([1, 2, 4]), each=st.integers(1, 4))
def test_a_replicas_microbatches_are_neighbours(replicas: int, others: int, each: int) -> None:
    most, count = max(replicas, others), max(replicas, others) * each
    leaves = [slice_of(place, count, most) for place in range(count)]
    assert sorted(leaves) == list(range(count))
    for replica in range(replicas):
        mine = sorted(leaves[place] for place in range(replica, count, replicas))
        assert mine == list(range(mine[0], mine[0] + count // replicas))
