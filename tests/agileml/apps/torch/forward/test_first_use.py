"""Forward waits for each parameter at its first use, whoever uses it and however."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from agileml.application import ArrivingTables
from agileml.apps.torch.flat import PARAMETERS, FlatModule
from agileml.apps.torch.objective import OutputLoss
from agileml.apps.torch.step import Batch, Stepper


class Tied(nn.Module):
    """The first layer's weight again at the end, and a layer that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.twice = nn.Linear(8, 8)
        self.last = nn.Linear(8, 8)
        self.last.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.twice(torch.tanh(self.twice(self.first(x)))))


class ReadsChild(nn.Module):
    """Reads the weight of a child that is never called, and a list of parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.child = nn.Linear(8, 8)
        self.scales = nn.ParameterList([torch.ones(8), torch.zeros(8)])
        self.named = nn.ParameterDict({"end": torch.ones(8)})

    def forward(self, x: Tensor) -> Tensor:
        y = functional.linear(x, self.child.weight)
        return y * self.scales[0] + self.scales[1] + self.child.bias * self.named["end"]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.unsqueeze(1)).squeeze(1)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTM(8, 8, num_layers=2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.cell(x.unsqueeze(1))[0].squeeze(1)


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
        self.outer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(checkpoint(self.inner, x, use_reentrant=False))


class Normalised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.layer(x))


class Scripted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Linear(8, 8)
        self.script = torch.jit.script(nn.Linear(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        return self.script(self.before(x))


@torch.jit.script
def shifted(x: Tensor, by: Tensor) -> Tensor:
    return torch.tanh(x + by)


class ScriptedFunction(nn.Module):
    """A function of TorchScript reads the bias, which is seen behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8, bias=False)
        self.bias = nn.Parameter(torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        return shifted(self.layer(x), self.bias) + self.bias.pow(2).sum()


class Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        weights = {name: 2 * parameter for name, parameter in self.inner.named_parameters()}
        return torch.func.functional_call(self.inner, weights, (x,))


MODULES: list[Callable[[], nn.Module]] = [
    Tied, ReadsChild, Attention, Recurrent, Checkpointed, Normalised, Functional
]  # fmt: skip


class Arriving:
    """Tables whose elements are NaN until they are waited for."""

    def __init__(self, flat: FlatModule, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.true = {t.name: rng.uniform(0.1, 1, (1, t.columns)).astype(t.dtype) for t in flat.tables()}
        self.now = {name: np.full_like(table, np.nan) for name, table in self.true.items()}
        self.waits: list[tuple[str, int]] = []
        self.tables = ArrivingTables(self.now, self.wait)

    def wait(self, table: str, start: int, stop: int) -> None:
        self.waits.append((table, start))
        self.now[table][0, start:stop] = self.true[table][0, start:stop]


def gradient(stepper: Stepper, tables: dict[str, np.ndarray], seed: int) -> np.ndarray:
    torch.manual_seed(seed)
    batch = Batch((torch.rand(4, 8), torch.rand(4, 8)), 4)
    stepper.use(tables)
    found, loss = stepper.gradient([batch, batch], 8)
    assert found is not None and np.isfinite(loss), "it read what was not here"
    return found.copy()


@pytest.mark.parametrize("build", [*MODULES, Scripted])
def test_nothing_is_read_before_it_is_here_and_the_bits_are_the_same(build: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    stepper = Stepper(FlatModule(build(), "here"), OutputLoss(functional.mse_loss))
    for clock in range(3):
        arriving = Arriving(stepper.flat, clock)
        found = gradient(stepper, arriving.tables, clock)
        whole = gradient(stepper, arriving.true, clock)
        assert found.tobytes() == whole.tobytes()


@pytest.mark.parametrize("build", MODULES)
def test_from_the_second_clock_on_parameters_are_waited_for_one_by_one(
    build: Callable[[], nn.Module],
) -> None:
    torch.manual_seed(0)
    stepper = Stepper(FlatModule(build(), "here"), OutputLoss(functional.mse_loss))
    spans = {span.start for span in stepper.flat.spans}
    for clock in range(2):
        arriving = Arriving(stepper.flat, clock)
        gradient(stepper, arriving.tables, clock)
    waited = [start for table, start in arriving.waits if table == PARAMETERS]
    assert set(waited) == spans
    assert len(waited) == len(spans) + 1, "each once, and all before backward"


def test_the_order_of_waiting_is_that_of_use() -> None:
    class Backwards(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last, self.first = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            assert self.last.weight.shape == (8, 8), "to ask for a shape is no use"
            return self.last(self.first(x))

    stepper = Stepper(FlatModule(Backwards(), "here"), OutputLoss(functional.mse_loss))
    for clock in range(2):
        arriving = Arriving(stepper.flat, clock)
        gradient(stepper, arriving.tables, clock)
    assert [start for _, start in arriving.waits] == [64, 0, 0]


def test_what_torchscript_reads_is_waited_for_first() -> None:
    stepper = Stepper(FlatModule(Scripted(), "here"), OutputLoss(functional.mse_loss))
    script = {span.start for span in stepper.flat.spans if span.name.startswith("script")}
    for clock in range(2):
        arriving = Arriving(stepper.flat, clock)
        gradient(stepper, arriving.tables, clock)
    assert {start for _, start in arriving.waits[: len(script)]} == script


def test_what_a_torchscript_function_reads_is_waited_for_too() -> None:
    torch.manual_seed(0)
    stepper = Stepper(FlatModule(ScriptedFunction(), "here"), OutputLoss(functional.mse_loss))
    for clock in range(3):
        arriving = Arriving(stepper.flat, clock)
        found = gradient(stepper, arriving.tables, clock)
        # TorchScript compiles after the first calls, which changes roundings.
        np.testing.assert_allclose(found, gradient(stepper, arriving.true, clock), rtol=1e-5)


@pytest.mark.parametrize("in_place", [False, True])
def test_a_compiled_module_has_all_parameters_before_its_forward(in_place: bool) -> None:
    module = Tied()
    if in_place:
        module.compile(backend="eager")
    built = module if in_place else torch.compile(module, backend="eager")
    stepper = Stepper(FlatModule(built, "here"), OutputLoss(functional.mse_loss))  # type: ignore[arg-type]
    for clock in range(2):
        arriving = Arriving(stepper.flat, clock)
        gradient(stepper, arriving.tables, clock)
        assert arriving.waits == [(PARAMETERS, 0)]


def test_a_parameter_that_is_used_for_the_first_time_late_is_waited_for() -> None:
    class Sometimes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.always, self.late = nn.Linear(8, 8), nn.Linear(8, 8)
            self.uses_late = False

        def forward(self, x: Tensor) -> Tensor:
            return self.late(self.always(x)) if self.uses_late else self.always(x)

    module = Sometimes()
    stepper = Stepper(FlatModule(module, "here"), OutputLoss(functional.mse_loss))
    for clock in range(3):
        module.uses_late = clock == 2
        arriving = Arriving(stepper.flat, clock)
        found = gradient(stepper, arriving.tables, clock)
        assert found.tobytes() == gradient(stepper, arriving.true, clock).tobytes()
