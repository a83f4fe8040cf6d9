"""Any cut of a model computes the bits of the whole model: loss, gradients, buffers."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from pipeline.stages.cut import balanced_ends, cut
from pipeline.stages.layering import StageError
from pipeline.stages.measure import measured_profile
from pipeline.stages.passes import StageCompute, leaves_of
from pipeline.stages.traced import TracedModel, trace_model
from tests.pipeline.stages.models import EXAMPLES, language, residual, sequence
from tests.thorough import examples

Result = tuple[Tensor, dict[str, Tensor | None], dict[str, Tensor]]


@cache
def traced(name: str) -> tuple[TracedModel, nn.Module, tuple[Any, ...], Callable[..., Tensor]]:
    torch.manual_seed(3)
    model, inputs, loss = EXAMPLES[name]() if name in EXAMPLES else language(0.3)
    untouched = copy.deepcopy(model)
    return trace_model(model, inputs), untouched, inputs, loss


def run(
    whole: TracedModel,
    inputs: Sequence[Any],
    loss: Callable[..., Tensor],
    ends: Sequence[int],
    *,
    key: int = 5,
    defer: bool = False,
    recompute: bool = False,
) -> Result:
    """Loss, gradients by parameter, and changed buffers of one step of the model in stages."""
    stages = [
        StageCompute(whole, code, loss=loss if code.is_last else None, recompute=recompute)
        for code in cut(whole, ends)
    ]
    passes, values = [], []
    for stage in stages:  # each process has its own inputs and buffers
        flat = whole.flat_inputs(copy.deepcopy(inputs))
        stage.buffers = [buffer.clone() for buffer in stage.buffers]
        weights = leaves_of(whole.values, stage.code.parameters)
        passes.append(stage.forward(weights, values, flat, (), key, defer=defer))
        values = [v.detach().clone(memory_format=torch.preserve_format) for v in passes[-1].outgoing]
    result, gradients, found = values[0], [torch.ones(())], {}
    for stage, kept in reversed(list(zip(stages, passes, strict=True))):
        gradients, own = stage.backward(kept, gradients)
        for place, gradient in stage.deferred(kept).items():
            own[place] = gradient
        found.update(zip(stage.code.parameters, own, strict=True))
    each = (pair for stage in stages for pair in zip(stage.code.buffers, stage.buffers, strict=True))
    return result, found, {name: buffer for name, buffer in each if name in whole.changed}


def same(a: Result, b: Result) -> None:
    assert torch.equal(a[0], b[0])
    for one, other in ((a[1], b[1]), (a[2], b[2])):
        assert one.keys() == other.keys()
        for name, value in one.items():
            assert (value is None) == (other[name] is None), name
            assert value is None or torch.equal(value, other[name]), name


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_whole_as_one_stage_is_plain_torch(name: str) -> None:
    whole, model, inputs, loss = traced(name)
    result, gradients, changed = run(whole, inputs, loss, (len(whole.layers),))
    model.train()
    plain = loss(model(*copy.deepcopy(inputs)))
    plain.backward()
    assert torch.equal(result, plain)
    assert {n for n, p in model.named_parameters() if p.grad is not None} == set(gradients)
    for name_of, parameter in model.named_parameters():
        assert torch.equal(gradients[name_of], parameter.grad), name_of
    for name_of, value in changed.items():
        assert torch.equal(value, dict(model.named_buffers())[name_of])


@pytest.mark.parametrize("name", [*EXAMPLES, "dropout"])
@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_any_cut_has_the_bits_of_the_whole(name: str, data: st.DataObject) -> None:
    whole, _, inputs, loss = traced(name)
    count = len(whole.layers)
    middle = data.draw(st.sets(st.integers(1, count - 1))) if count > 1 else set()
    defer, recompute = data.draw(st.booleans()), data.draw(st.booleans())
    key = data.draw(st.integers(0, 2**62))
    cut_up = run(whole, inputs, loss, (*sorted(middle), count), key=key, defer=defer, recompute=recompute)
    same(run(whole, inputs, loss, (count,), key=key), cut_up)


@pytest.mark.parametrize(
    "name", ["buffer by view", "input by view", "without gradients", "type_as", "einsum"]
)
def test_no_cut_separates_memory_from_what_overwrites_it(name: str) -> None:
    whole, _, inputs, loss = traced(name)
    count = len(whole.layers)
    assert 1 < count < 4
    for end in range(1, count):
        same(run(whole, inputs, loss, (count,)), run(whole, inputs, loss, (end, count)))


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("name", ["buffer in use", "input by view"])
def test_microbatches_in_flight_compute_what_they_do_one_after_the_other(name: str, recompute: bool) -> None:
    torch.manual_seed(4)
    model, inputs, loss = EXAMPLES[name]()
    whole, minibatches = trace_model(model, inputs), [torch.randn(5, 4) for _ in range(3)]
    plain = copy.deepcopy(model)
    (code,) = cut(whole, (len(whole.layers),))
    stage = StageCompute(whole, code, loss=loss, recompute=recompute)
    weights = leaves_of(whole.values, code.parameters)
    passes = [stage.forward(weights, [], [x.clone()], (), 0) for x in minibatches]
    for x, kept in zip(minibatches, passes, strict=True):
        value = loss(plain(x.clone()))
        expected = torch.autograd.grad(value, [plain.get_parameter(name) for name in code.parameters])
        assert torch.equal(kept.outgoing[0], value)
        _, found = stage.backward(kept, [torch.ones(())])
        assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    assert all(torch.equal(whole.values[name], plain.get_buffer(name)) for name in whole.changed)


@pytest.mark.parametrize(("rows", "inner"), [(1, 1), (1, 3), (3, 1), (4, 5)])
def test_gradients_that_are_put_off_have_the_same_bits_for_any_size(rows: int, inner: int) -> None:
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(4, inner), nn.Tanh(), nn.Linear(inner, 130))
    inputs = (torch.randn(rows, 4),)
    whole = trace_model(model, inputs)

    def loss(output: Tensor) -> Tensor:
        return torch.log_softmax(output, 1)[:, 0].mean()

    for key in range(10):
        with torch.no_grad():
            for value in whole.values.values():
                value.normal_()
        at_once, put_off = (run(whole, inputs, loss, (3,), key=key, defer=defer) for defer in (False, True))
        same(at_once, put_off)


def test_dropout_depends_on_the_microbatch_alone() -> None:
    whole, _, inputs, loss = traced("dropout")
    ends = (len(whole.layers),)
    first, again, other = (run(whole, inputs, loss, ends, key=key)[0] for key in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_random_numbers_of_the_loss_depend_on_the_microbatch_alone() -> None:
    whole, _, inputs, _ = traced("own stages")

    def loss(output: Tensor) -> Tensor:
        return (output * torch.rand_like(output)).mean()

    count = len(whole.layers)
    one = run(whole, inputs, loss, (count,))
    torch.manual_seed(7)  # whatever a process has drawn before
    same(one, run(whole, inputs, loss, (1, count)))
    same(one, run(whole, inputs, loss, (count,), recompute=True))
    assert not torch.equal(one[0], run(whole, inputs, loss, (count,), key=6)[0])


def test_a_weight_of_two_layers_belongs_to_the_first_and_returns_its_gradient_there() -> None:
    whole, _, _, _ = traced("language")
    first, last = cut(whole, (1, len(whole.layers)))
    assert "embed.weight" in first.parameters
    assert not {"embed.weight", "last.weight"} & set(last.parameters)
    assert (11, 8) in [fact.shape for fact in last.incoming]


def test_layers_have_the_names_of_modules() -> None:
    whole, _, _, _ = traced("residual")
    names = [layer.name for layer in whole.layers]
    assert names[0] == "first Conv2d"
    assert names[1] == "norm BatchNorm2d+"  # with the ReLU that overwrites its result
    assert names[-1] == "head Linear"


def test_what_export_cannot_follow_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    class Choosy(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2 if x.sum() > 0 else x

    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(Choosy()), nn.Linear(2, 2))
    with pytest.raises(StageError, match=r"layer 1.0 \(Choosy\) cannot be cut"):
        trace_model(model, (torch.randn(3, 2),))
    assert capfd.readouterr().err == ""


def test_bad_cuts_and_losses_are_one_sentence() -> None:
    whole, _, inputs, _ = traced("sequence")
    count = len(whole.layers)
    with pytest.raises(StageError, match=f"stages are more than the {count} layers"):
        cut(whole, range(1, count + 2))
    with pytest.raises(StageError, match="stages must end behind layers"):
        cut(whole, (1, count - 1))
    with pytest.raises(StageError, match="expected one number"):
        run(whole, inputs, lambda output: output, (count,))
    with pytest.raises(StageError, match="as in the example"):
        whole.flat_inputs((torch.ones(1), 3))
    with pytest.raises(StageError, match=r"input 0 of the minibatch is \(\(5, 4\)"):
        whole.flat_inputs((torch.ones(5, 4),))
    tokens, mask, _ = traced("language")[2]
    with pytest.raises(StageError, match="input 2 of the minibatch is False, expected True"):
        traced("language")[0].flat_inputs((tokens, mask, False))


@settings(deadline=None, max_examples=examples(50))
@given(st.lists(st.integers(0, 9), min_size=1, max_size=7), st.data())
def test_balanced_ends_are_the_best(seconds: list[float], data: st.DataObject) -> None:
    replicas = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=len(seconds)))

    def slowest(ends: Sequence[int]) -> float:
        bounds = zip((0, *ends[:-1]), ends, strict=True)
        return max(sum(seconds[a:b]) / r for (a, b), r in zip(bounds, replicas, strict=True))

    found = balanced_ends(seconds, replicas)
    every = itertools.combinations(range(1, len(seconds)), len(replicas) - 1)
    assert slowest(found) == min(slowest((*middle, len(seconds))) for middle in every)


def test_a_profile_of_the_layers_that_run() -> None:
    model, inputs, loss = residual()
    whole = trace_model(model, inputs)
    before = {name: value.clone() for name, value in whole.values.items()}
    profile = measured_profile(whole, loss, inputs, (), model="residual", batch=4, repeats=2)
    assert [layer.name for layer in profile.layers] == [layer.name for layer in whole.layers]
    assert profile.parameter_bytes == sum(p.nbytes for p in model.parameters())
    assert all(layer.compute_s > 0 for layer in profile.layers)
    assert {end for edge in profile.edges for end in edge} == set(range(len(profile.layers)))
    assert all(torch.equal(value, before[name]) for name, value in whole.values.items())
    model, inputs, loss = sequence()
    straight = measured_profile(trace_model(model, inputs), loss, inputs, (), model="mlp", batch=6, repeats=1)
    assert straight.edges == tuple((i, i + 1) for i in range(len(straight.layers) - 1))
