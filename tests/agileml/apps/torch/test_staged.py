"""A torch module in stages: the bits of the whole, of data parallelism, and sentences for what cannot be."""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from agileml.application import InputError, Settings, Unit
from agileml.apps.torch.flat import BUFFERS, COUNTERS
from agileml.apps.torch.module import TorchModule
from agileml.apps.torch.staged.layer_order import places_to_cut
from agileml.config.text import ConfigError

ITEMS = 32


class Block(nn.Module):
    """A shortcut over two layers; one of its linear layers is the same in every block."""

    def __init__(self, shared: nn.Linear, dropout: float) -> None:
        super().__init__()
        self.own, self.shared, self.dropout = nn.Linear(6, 6), shared, nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """[items, 6] -> the same."""
        return x + self.dropout(self.shared(torch.tanh(self.own(x))))


def network(dropout: float = 0.0) -> nn.Module:
    shared = nn.Linear(6, 6)
    return nn.Sequential(nn.Linear(6, 6), Block(shared, dropout), Block(shared, dropout), nn.Linear(6, 3))


def normed(dropout: float = 0.0) -> nn.Module:
    """With running statistics in three layers, and a buffer that nothing changes."""
    shared, last = nn.Linear(6, 6), nn.Linear(6, 3)
    last.register_buffer("unused", torch.full((2,), 3.0))
    first = nn.BatchNorm1d(6, affine=False)  # it has buffers alone
    blocks = (
        Block(shared, dropout),
        nn.BatchNorm1d(6),
        Block(shared, dropout),
        nn.BatchNorm1d(6, momentum=0.3),
    )
    return nn.Sequential(first, *blocks, last)


def partly_frozen() -> nn.Module:
    """As `normed`, without random numbers, and the statistics of one batch norm as they are."""
    net = normed(0.3)
    net[2].eval()
    net[1].dropout.eval()
    net[3].dropout.eval()
    return net


class LeastPeak(nn.Module):
    """Divides by the least of the units' greatest numbers; at first no unit changes it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 3)
        self.register_buffer("peak", torch.full((1,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        self.peak.copy_(torch.minimum(self.peak, x.detach().abs().max()))
        return self.last(x / self.peak)


class HalfInside(nn.Module):
    """What crosses most cuts is bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).bfloat16()
        return self.last(torch.tanh(self.middle(x.float())) + x)


class Encoder(nn.Module):
    """A parameter of its own, which stands before those of its parts and is read behind some of them; and layers that
    make their norms behind what these norm."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(6, 8), nn.Linear(8, 3)
        self.places = nn.Parameter(torch.linspace(-1.0, 1.0, 8))
        self.parts = nn.ModuleList(
            nn.TransformerEncoderLayer(8, 2, 8, dropout=0.0, batch_first=True) for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = (self.into(x) + self.places).unsqueeze(1)
        for part in self.parts:
            x = part(x)
        return self.out(x.squeeze(1))


def made(build: Any = network, *, is_staged: bool = True, slices: int = 2, **model: Any) -> TorchModule:
    x = np.random.default_rng(0).normal(size=(ITEMS, 6)).astype(np.float32)
    y = np.arange(ITEMS) % 3
    given = {"batch_size": 8, "device": "cpu", **model}  # as stages compute
    settings = Settings(model=given, slices=slices, units_per_slice=2, is_staged=is_staged)
    return TorchModule(settings, build=build, dataset=((x, y), (x, y)))


def start(module: TorchModule) -> dict[str, np.ndarray]:
    """Values of all tables, as after some clocks."""
    found = {table.name: module.initial(table).copy() for table in module.tables()}
    for name in found.keys() & {BUFFERS, COUNTERS}:
        found[name] *= 3.0  # gaps stay zero
    return found


@pytest.mark.parametrize(
    "build",
    [network, lambda: normed(0.3), HalfInside, Encoder],
    ids=["plain", "batch norm and dropout", "bfloat16", "in another order"],
)
@pytest.mark.parametrize("defer", [False, True])
def test_any_cut_has_the_bits_of_one_process(build: Any, defer: bool) -> None:
    module = made(build)
    staged, values = module.stages(), start(module)
    borders = staged.borders(64)
    unit, items = Unit(3, 1, 1, 2), module.load(1)
    whole = module.process(unit, items, values)
    count, names = len(borders[0]), list(values)
    for cuts in (cut for size in range(count) for cut in combinations(range(1, count), size)):
        ranges = list(pairwise((0, *cuts, count)))
        stages = [staged.stage(borders, first, stop) for first, stop in ranges]
        for stage, (first, stop) in zip(stages, ranges, strict=True):
            parts = [
                [values[name].reshape(-1)[a:b] for a, b in pairwise((0, *ends)[first : stop + 1])]
                for name, ends in zip(names, borders, strict=True)
            ]
            stage.use(list(zip(*parts, strict=True)))
        wires: Any = ()
        for stage in stages:
            output = stage.forward(unit, items, wires, defer=defer)
            wires = output.outgoing
        assert (output.loss, output.examples) == (whole.loss, whole.examples)
        back: Any = ()
        for stage in reversed(stages):
            back = stage.backward(unit, back)
        blocks = [blocks for stage in stages for blocks in stage.updates(unit)]
        for table, name in enumerate(names):
            found = [of_table for each in blocks if (of_table := each[table]) is not None]
            np.testing.assert_array_equal(np.concatenate(found), whole.tables[name].reshape(-1))


@pytest.mark.parametrize("build", [network, normed, LeastPeak, Encoder])
def test_without_random_numbers_they_are_the_bits_of_data_parallelism(build: Any) -> None:
    staged, plain = made(build), made(build, is_staged=False)
    agree(staged, plain, start(staged))


def test_layers_in_eval_mode_stay_in_it() -> None:
    staged, plain = made(partly_frozen), made(partly_frozen, is_staged=False)
    values = {table.name: staged.initial(table) for table in staged.tables()}
    found = agree(staged, plain, values)
    places = {span.name: span for span in staged.flat.buffers}
    changed = {name for name, place in places.items() if found[BUFFERS][0, place.start : place.stop].any()}
    assert changed == {"0.running_mean", "0.running_var", "4.running_mean", "4.running_var"}


def agree(staged: TorchModule, plain: TorchModule, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The updates of a unit, which are the same in stages and as a whole."""
    unit = Unit(5, 0, 1, 2)
    one = staged.process(unit, staged.load(0), values)
    other = plain.process(unit, plain.load(0), values)
    assert one.tables.keys() == other.tables.keys() == values.keys()
    for name in values:
        np.testing.assert_array_equal(one.tables[name], other.tables[name])
    assert one.loss == other.loss
    return dict(one.tables)


def test_units_between_forward_and_backward_have_buffers_of_their_own() -> None:
    module = made(normed)
    (whole, values), units = (module.stages().stage(module.stages().borders(1), 0, 1), start(module)), 2
    whole.use([tuple(table.reshape(-1) for table in values.values())])
    for part in range(units):
        whole.forward(Unit(0, 0, part, 2), module.load(0), (), defer=False)
    for part in range(units):
        unit = Unit(0, 0, part, 2)
        whole.backward(unit, ())
        alone = module.process(unit, module.load(0), values)
        for block, name in zip(whole.updates(unit)[0], values, strict=True):
            np.testing.assert_array_equal(block, alone.tables[name].reshape(-1))


def test_the_plan_is_the_same_wherever_it_is_asked_and_no_longer_than_asked() -> None:
    staged = made().stages()
    plan = staged.plan(3)
    assert plan.borders == made().stages().borders(3)
    assert len(plan.borders[0]) == len(plan.seconds) == 3
    assert plan.borders[0][-1] == staged.flat.elements
    assert min(plan.seconds) > 0
    assert len(staged.borders(64)[0]) == staged.most_partitions == 5


def test_a_cut_lies_where_all_before_it_are_of_layers_before_it() -> None:
    layers = [2, 3, 0, 5, 4, 6]
    assert places_to_cut(layers, []) == {3: 4, 5: 6}
    assert places_to_cut(layers, [[1, 5], [6]]) == {3: 4, 5: 6}
    assert places_to_cut(layers, [[5, 1]]) == {5: 6}
    assert places_to_cut([1, 0], []) == {}


class Hooked(nn.Module):
    """Its gradients are turned round between the layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x.register_hook(lambda gradient: -gradient)
        return self.last(x)


def test_a_module_whose_gradients_stages_do_not_have_is_refused_where_the_run_begins() -> None:
    staged = made(Hooked).stages()
    with pytest.raises(InputError, match=r"pipeline: .* 'first.weight' another gradient"):
        staged.plan(2, repeats=1)


class Backwards(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.second, self.first = nn.Linear(6, 3), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


class Forgetful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)
        self.register_buffer("calls", torch.zeros(1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1.0)
        return self.linear(x) + self.calls


class Crossed(nn.Module):
    """Its layers have parameters in order, and buffers the other way round."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(6, 6), nn.Linear(6, 3)
        self.late, self.early = nn.BatchNorm1d(3, affine=False), nn.BatchNorm1d(6, affine=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.late(self.two(self.early(self.one(x))))


class Choosy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) if x.sum() > 0 else -self.linear(x)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (Backwards, "reads the parameter 'first.weight' before 'second.bias'"),
        (Choosy, "cannot be cut"),
        (Forgetful, "forward changes the buffer 'calls', expected only buffers that the state dict holds"),
        (
            Crossed,
            "reads the buffer 'early.running_mean' before 'late.running_var', expected buffers in the order",
        ),
    ],
)
def test_a_module_that_has_no_stages_is_one_sentence(build: Any, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        made(build).stages()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ({"batch_size": 6}, "found 6 items in a clock, expected a multiple of the 4 units"),
        ({"evaluate_every": 3}, "no machine has the whole model"),
        ({"autocast": "bfloat16"}, "parameters' own precision"),
        ({"micro_batch": 2}, "a unit is a microbatch already"),
    ],
)
def test_keys_that_stages_do_not_have_are_one_sentence(model: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        made(**model).stages()
