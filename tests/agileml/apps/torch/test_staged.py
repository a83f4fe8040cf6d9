"""A torch module in stages: the bits of the whole, of data parallelism, and sentences for what cannot be."""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from agileml.application import InputError, Settings, Unit
from agileml.apps.torch.flat import PARAMETERS
from agileml.apps.torch.module import TorchModule
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


def made(build: Any = network, *, is_staged: bool = True, slices: int = 2, **model: Any) -> TorchModule:
    x = np.random.default_rng(0).normal(size=(ITEMS, 6)).astype(np.float32)
    y = np.arange(ITEMS) % 3
    given = {"batch_size": 8, **model}
    settings = Settings(model=given, slices=slices, units_per_slice=2, is_staged=is_staged)
    return TorchModule(settings, build=build, dataset=((x, y), (x, y)))


def start(module: TorchModule) -> np.ndarray:
    return module.initial(module.tables()[0]).copy()


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("defer", [False, True])
def test_any_cut_has_the_bits_of_one_process(dropout: float, defer: bool) -> None:
    module = made(lambda: network(dropout))
    staged, parameters = module.stages(), start(module)
    borders = staged.borders(64)
    unit, items = Unit(3, 1, 1, 2), module.load(1)
    whole = module.process(unit, items, {PARAMETERS: parameters})
    flat, count = parameters.reshape(-1), len(borders)
    for cuts in (cut for size in range(count) for cut in combinations(range(1, count), size)):
        ranges = list(pairwise((0, *cuts, count)))
        stages = [staged.stage(borders, first, stop) for first, stop in ranges]
        for stage, (first, stop) in zip(stages, ranges, strict=True):
            stage.use([flat[a:b] for a, b in pairwise((0, *borders)[first : stop + 1])])
        wires: Any = ()
        for stage in stages:
            output = stage.forward(unit, items, wires, defer=defer)
            wires = output.outgoing
        assert (output.loss, output.examples) == (whole.loss, whole.examples)
        back: Any = ()
        for stage in reversed(stages):
            back = stage.backward(unit, back)
        blocks = [block for stage in stages for block in stage.updates(unit)]
        np.testing.assert_array_equal(np.concatenate(blocks), whole.tables[PARAMETERS].reshape(-1))


def test_without_random_numbers_they_are_the_bits_of_data_parallelism() -> None:
    staged, plain = made(), made(is_staged=False)
    parameters, unit = start(staged), Unit(5, 0, 1, 2)
    one = staged.process(unit, staged.load(0), {PARAMETERS: parameters})
    other = plain.process(unit, plain.load(0), {PARAMETERS: parameters})
    np.testing.assert_array_equal(one.tables[PARAMETERS], other.tables[PARAMETERS])
    assert one.loss == other.loss


def test_the_plan_is_the_same_wherever_it_is_asked_and_no_longer_than_asked() -> None:
    staged = made().stages()
    plan = staged.plan(3)
    assert plan.borders == made().stages().borders(3)
    assert len(plan.borders) == len(plan.seconds) == 3
    assert plan.borders[-1] == staged.flat.elements
    assert min(plan.seconds) > 0
    assert len(staged.borders(64)) == staged.most_partitions == 5


class Backwards(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.second, self.first = nn.Linear(6, 3), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


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
        (lambda: nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3)), "has the buffer '0.running_mean'"),
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
