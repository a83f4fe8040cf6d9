"""Linear layers that write their weight's gradient themselves: autograd's results, whatever a module does with them."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from agileml.apps.torch.flat import PARAMETERS, FlatModule
from agileml.apps.torch.objective import OutputLoss
from agileml.apps.torch.step import Batch, Stepper


class Net(nn.Module):
    """Two linear layers and what is done with them."""

    def __init__(self, use: Callable[["Net", Tensor], Tensor]) -> None:
        super().__init__()
        self.a = nn.Linear(6, 6, bias=False)
        self.b = nn.Linear(6, 6)
        self.use = use

    def forward(self, x: Tensor) -> Tensor:
        return self.use(self, x)


def penalised(net: Net, x: Tensor) -> Tensor:
    y = net.b(net.a(x))
    inner = functional.mse_loss(y, torch.ones_like(y))
    (slope,) = torch.autograd.grad(inner, x_needing(net), create_graph=True)
    return y + slope.square().sum()


def again(net: Net, x: Tensor) -> Tensor:
    """One of a chain of checkpoints around the same layers."""
    y: Tensor = checkpoint(lambda t: net.b(net.a(t)), x, use_reentrant=False)
    return y


def overwritten(net: Net, x: Tensor) -> Tensor:
    """A residual and an activation that go where the layers' results lie."""
    y: Tensor = net.a(x).relu_()
    y = net.b(y)
    y += x
    return y


def dual(net: Net, x: Tensor) -> Tensor:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(net.b(forward_ad.make_dual(net.a(x), x))).tangent


def x_needing(net: Net) -> Tensor:
    return net.a.weight


USES: dict[str, Callable[[Net, Tensor], Tensor]] = {
    "once": lambda net, x: net.b(net.a(x)),
    "twice": lambda net, x: net.b(net.b(net.a(net.a(x)))),
    "elsewhere too": lambda net, x: functional.linear(net.b(net.a(x)), net.a.weight) * net.b.weight.sum(),
    "elsewhere first": lambda net, x: net.b(net.a(functional.linear(x, net.b.weight))) + net.a.weight.norm(),
    "not at all": lambda net, x: net.b(x),
    "one item": lambda net, x: torch.stack([net.b(net.a(row)) for row in x]),
    "more axes": lambda net, x: net.b(net.a(x.view(2, 4, 6))).view(8, 6),
    "overwritten": lambda net, x: overwritten(net, x.view(2, 4, 6)).view(8, 6),
    "checkpointed": lambda net, x: checkpoint(lambda t: net.b(net.a(t)), x, use_reentrant=False),
    "checkpointed twice": lambda net, x: again(net, again(net, x)),
    "bfloat16": lambda net, x: _autocast(net, x),
    "under vmap": lambda net, x: torch.vmap(net.b)(net.a(x)),
    "under a gradient": lambda net, x: net.a(x) + torch.func.grad(lambda t: net.b(t).square().sum())(x),
    "forward mode": lambda net, x: torch.func.jvp(net.b, (net.a(x),), (x,))[1],
    "dual numbers": lambda net, x: dual(net, x),
    "gradient of a gradient": penalised,
}


def said_to(said: list[tuple[int, int]]) -> Callable[[int, int], None]:
    return lambda start, stop: said.append((start, stop))


def _autocast(net: Net, x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return net.b(net.a(x)).float()


@pytest.mark.parametrize("name", USES)
def test_the_gradient_is_autograds(name: str) -> None:
    torch.manual_seed(0)
    theirs = Net(USES[name])
    ours = Net(USES[name])
    ours.load_state_dict(theirs.state_dict())
    x, y = torch.randn(8, 6), torch.randn(8, 6)
    functional.mse_loss(theirs(x), y).backward()
    flat = FlatModule(ours, "test")
    stepper = Stepper(flat, OutputLoss(functional.mse_loss))
    tables = {table.name: flat.values(table) for table in flat.tables()}
    for _ in range(2):  # nothing is left over from the first time
        stepper.use(tables)
        said: list[tuple[int, int]] = []
        found, total = stepper.gradient([Batch((x, y), 8)], 8, lambda _, said=said: said_to(said))
        assert found is not None and np.isfinite(total)
        assert sorted(said) == [(span.start, span.end) for span in flat.spans]
        for span, parameter in zip(flat.spans, theirs.parameters(), strict=True):
            expected = torch.zeros(span.shape) if parameter.grad is None else parameter.grad
            given = torch.from_numpy(found[span.start : span.stop]).view(span.shape)
            torch.testing.assert_close(given, expected, rtol=1e-5, atol=1e-6, msg=span.name)
            assert not found[span.stop : span.end].any()
    assert tables[PARAMETERS].shape == (1, flat.elements)


def test_nothing_is_copied_for_a_weight_used_once(monkeypatch: pytest.MonkeyPatch) -> None:
    flat = FlatModule(Net(USES["once"]), "test")
    stepper = Stepper(flat, OutputLoss(functional.mse_loss))
    stepper.use({table.name: flat.values(table) for table in flat.tables()})
    copied: list[tuple[int, ...]] = []
    copy = Tensor.copy_
    monkeypatch.setattr(Tensor, "copy_", lambda to, of: (copied.append(tuple(to.shape)), copy(to, of))[1])
    stepper.gradient([Batch((torch.randn(8, 6), torch.randn(8, 6)), 8)], 8)
    assert copied == [(6,)], "the bias alone"


def test_reentrant_checkpointing_is_summed_or_refused() -> None:
    def use(net: Net, x: Tensor) -> Tensor:
        x = x.requires_grad_()
        return checkpoint(net.b, checkpoint(net.b, x, use_reentrant=True), use_reentrant=True)

    torch.manual_seed(0)
    theirs, ours = Net(use), Net(use)
    ours.load_state_dict(theirs.state_dict())
    x, y = torch.randn(8, 6), torch.randn(8, 6)
    functional.mse_loss(theirs(x.clone()), y).backward()
    flat = FlatModule(ours, "test")
    stepper = Stepper(flat, OutputLoss(functional.mse_loss))
    stepper.use({table.name: flat.values(table) for table in flat.tables()})
    found, _ = stepper.gradient([Batch((x.clone(), y), 8)], 8)
    assert found is not None
    span = next(span for span in flat.spans if span.name == "b.weight")
    given = torch.from_numpy(found[span.start : span.stop]).view(span.shape)
    torch.testing.assert_close(given, theirs.b.weight.grad, rtol=1e-5, atol=1e-6)
    with pytest.raises(RuntimeError, match="use_reentrant=False"):
        stepper.gradient([Batch((x.clone(), y), 8)], 8, lambda _: lambda a, b: None)


def test_a_reentrant_second_gradient_is_refused_where_losses_are_scaled() -> None:
    """The first one was divided by the scale already."""

    def use(net: Net, x: Tensor) -> Tensor:
        x = x.requires_grad_()
        return checkpoint(net.b, checkpoint(net.b, x, use_reentrant=True), use_reentrant=True)

    flat = FlatModule(Net(use), "test")
    stepper = Stepper(flat, OutputLoss(functional.mse_loss))
    stepper.use({table.name: flat.values(table) for table in flat.tables()})
    stepper.loss_scale = 8.0
    with pytest.raises(RuntimeError, match="use_reentrant=False"):
        stepper.gradient([Batch((torch.randn(8, 6), torch.randn(8, 6)), 8)], 8)


def test_a_layer_that_comes_to_a_weight_later_adds_to_its_gradient() -> None:
    """Of two micro batches the first uses the weight without the layer, so the layer's place is still free."""
    uses = iter((lambda net, x: functional.linear(x, net.b.weight, net.b.bias), lambda net, x: net.b(x)))
    torch.manual_seed(0)
    theirs, ours = Net(USES["not at all"]), Net(lambda net, x: next(uses)(net, x))
    ours.load_state_dict(theirs.state_dict())
    x, y = torch.randn(8, 6), torch.randn(8, 6)
    functional.mse_loss(theirs(x), y).backward()
    flat = FlatModule(ours, "test")
    stepper = Stepper(flat, OutputLoss(functional.mse_loss))
    stepper.use({table.name: flat.values(table) for table in flat.tables()})
    found, _ = stepper.gradient([Batch((x[:4], y[:4]), 4), Batch((x[4:], y[4:]), 4)], 8)
    assert found is not None
    span = next(span for span in flat.spans if span.name == "b.weight")
    given = torch.from_numpy(found[span.start : span.stop]).view(span.shape)
    torch.testing.assert_close(given, theirs.b.weight.grad, rtol=1e-5, atol=1e-6)


def test_what_autograd_grad_returns_stays_as_it_is() -> None:
    kept: list[tuple[Tensor, Tensor]] = []

    def use(net: Net, x: Tensor) -> Tensor:
        y = net.b(x)
        (slope,) = torch.autograd.grad(y.sum(), net.b.weight, retain_graph=True)
        kept.append((slope, slope.clone()))
        return y

    flat = FlatModule(Net(use), "test")
    stepper = Stepper(flat, OutputLoss(functional.mse_loss))
    stepper.use({table.name: flat.values(table) for table in flat.tables()})
    stepper.gradient([Batch((torch.randn(8, 6), torch.randn(8, 6)), 8)], 8)
    assert all(torch.equal(slope, before) for slope, before in kept)
