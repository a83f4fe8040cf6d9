"""Models and losses whose gradients stages would not have are refused where their layers are measured."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pipeline.stages.faithful import check_gradients
from pipeline.stages.layering import StageError
from pipeline.stages.measure import measured_profile
from pipeline.stages.traced import trace_model
from tests.pipeline.stages.models import EXAMPLES, language


class Rounded(torch.autograd.Function):
    """A straight-through estimator."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]


class Doubled(torch.autograd.Function):
    """With the backward that autograd would have found."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return 2 * gradients[0]


def reversed_by_hook(x: Tensor) -> Tensor:
    x.register_hook(lambda gradient: -gradient)
    return x


class Net(nn.Module):
    """Two layers and something between them."""

    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last, self.between = nn.Linear(4, 4), nn.Linear(4, 2), between

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.between(self.first(x))))


def mean_square(output: Tensor) -> Tensor:
    return output.square().mean()


def check(model: nn.Module, loss: Callable[..., Tensor] = mean_square) -> None:
    inputs = (torch.randn(5, 4),)
    check_gradients(trace_model(model, inputs), loss, inputs, ())


@pytest.mark.parametrize("name", [*EXAMPLES, "dropout"])
def test_what_stages_compute_alike_is_taken_and_left_as_it_was(name: str) -> None:
    model, inputs, loss = EXAMPLES[name]() if name in EXAMPLES else language(0.3)
    whole, state = trace_model(model, inputs), torch.get_rng_state()
    before = {name: value.clone() for name, value in whole.values.items()}
    given = [value.clone() for value in inputs if isinstance(value, Tensor)]
    check_gradients(whole, loss, inputs, ())
    assert all(torch.equal(value, before[name]) for name, value in whole.values.items())
    assert all(map(torch.equal, given, [value for value in inputs if isinstance(value, Tensor)]))
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), state)


def test_an_autograd_function_is_taken_where_its_backward_is_autograds() -> None:
    check(Net(Doubled.apply))


def test_what_the_backward_alone_does_is_named() -> None:
    with pytest.raises(StageError, match=r"'first.weight' another gradient .* \(found Rounded\)$"):
        check(Net(Rounded.apply))
    with pytest.raises(StageError, match="records neither hooks on gradients nor"):
        check(Net(reversed_by_hook))
    hooked = Net(torch.tanh)
    hooked.last.register_full_backward_hook(lambda module, into, out: (3 * into[0],))
    with pytest.raises(StageError, match=r"'first.weight' another gradient"):
        check(hooked)


def test_random_numbers_of_numpy_are_named() -> None:
    draws = np.random.default_rng(0)
    with pytest.raises(StageError, match="constants of random numbers of Python and NumPy"):
        check(Net(lambda x: x * float(draws.uniform(1.0, 9.0))))


def dropped_by_python(x: Tensor) -> Tensor:
    """Hardly ever dropped, so that the recorded way is nearly always the module's."""
    return x if random.random() > 1e-9 else 0 * x


def dropped_by_numpy(x: Tensor) -> Tensor:
    return x if np.random.rand() > 1e-9 else 0 * x


@pytest.mark.parametrize("between", [dropped_by_python, dropped_by_numpy])
def test_random_numbers_of_others_are_named_though_they_made_no_difference(
    between: Callable[[Tensor], Tensor],
) -> None:
    with pytest.raises(StageError, match="draws random numbers of Python or NumPy, expected those of torch"):
        check(Net(between))


def test_a_loss_reads_no_parameters_by_itself() -> None:
    model, inputs = Net(torch.tanh), (torch.randn(5, 4),)

    def decayed(output: Tensor) -> Tensor:
        return output.square().mean() + 1e-6 * model.first.weight.square().sum()

    with pytest.raises(StageError, match=r"the loss reads the parameter 'first.weight' by itself"):
        measured_profile(trace_model(model, inputs), decayed, inputs, (), model="net", batch=5, repeats=1)


def test_what_is_sparse_is_named() -> None:
    embedding, ids = nn.Embedding(7, 2, sparse=True), (torch.tensor([1, 2, 2]),)
    with pytest.raises(StageError, match=r"the parameter 'weight' has a sparse gradient"):
        check_gradients(trace_model(embedding, ids), mean_square, ids, ())
    linear = Net(torch.tanh)
    linear.register_buffer("graph", torch.eye(5).to_sparse())
    linear.between = lambda x: torch.sparse.mm(linear.graph, x)
    with pytest.raises(StageError, match=r"the buffer 'graph' is a sparse tensor"):
        check(linear)


def test_a_loss_has_no_parameters_of_its_own_that_nothing_would_train() -> None:
    scores = nn.Linear(2, 1)

    def scored(output: Tensor) -> Tensor:
        return scores(output).square().mean()

    with pytest.raises(
        StageError, match=r"the loss has a parameter of its own, of shape \[1(, 2)?\], expected only"
    ):
        check(Net(torch.tanh), scored)
    scores.requires_grad_(False)
    check(Net(torch.tanh), scored)
