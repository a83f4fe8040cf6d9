"""Metrics of a module on test items, as sums and weights, so that machines can share the items."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from agileml.application import InputError
from agileml.apps.torch.data import Examples
from agileml.apps.torch.objective import autocasting, evaluating, right_places
from agileml.apps.torch.seeding import BeginBatch
from agileml.apps.torch.step import Batch, Stepper
from agileml.apps.torch.trial import MOST_ITEMS, placed_batch, tried_test_batch

LOSS, ACCURACY = "test_loss", "test_accuracy"
Sums = dict[str, tuple[float, float]]  # by metric, a sum and its weight
Metric = Callable[[Any, Any], Any]
Measure = Callable[[nn.Module, Any], Mapping[str, Any]]


@dataclass(frozen=True)
class Evaluation:
    """Evaluates test items, at most `at_once` together, with the parameters that the stepper has now.

    functions: the user's own metrics, of (output, target): the mean over the items of the batch, or a pair of a sum and
    its weight.
    """

    stepper: Stepper
    test: Examples
    functions: Mapping[str, Metric]
    at_once: int

    def of(self, start: int, stop: int, begin: BeginBatch = lambda number: None) -> Sums:
        """The sums over the test items [start, stop). `begin(number)` is called before each batch is made."""
        found: Sums = {}
        with evaluating(self.stepper.module):
            for batch in self._batches(start, stop, begin):
                add(found, self.measured(batch))
        return found

    def of_first(self) -> Sums:
        """The sums over the first test items, as a batch that is tried. Errors of the user's code say so."""
        items = min(len(self.test), MOST_ITEMS)
        with tried_test_batch(items):
            return self.of(0, items)

    def record_look_ups(self, start: int, stop: int, begin: BeginBatch) -> None:
        """Note in the stepper which rows `of` will look up."""
        with evaluating(self.stepper.module):
            for batch in self._batches(start, stop, begin):
                self.stepper.rows.record_look_ups(partial(self.measured, batch), "evaluation")

    def _batches(self, start: int, stop: int, begin: BeginBatch) -> Iterator[Batch]:
        for number, first in enumerate(range(start, stop, self.at_once)):
            begin(number)
            numbers = np.arange(first, min(first + self.at_once, stop))
            yield placed_batch(self.test.take(numbers), len(numbers), None, self.stepper)

    def measured(self, batch: Batch) -> Sums:
        """The sums over a batch."""
        judged = self.stepper.judged(batch)
        found: Sums = {LOSS: (float(judged.loss) * batch.items, batch.items)}
        if (places := right_places(judged.output, judged.target)) is not None:
            found[ACCURACY] = float(places.sum()), places.numel()
        for name, function in self.functions.items():
            found[name] = sum_and_weight(
                f"model.metrics: {name}", function(judged.output, judged.target), batch.items
            )
        return found


@dataclass(frozen=True)
class OwnEvaluation(Evaluation):
    """The metrics that a function of the user's measures: by name, the mean over the items of the batch, or a pair of a
    sum and its weight."""

    measure: Measure
    autocast: str | None

    def measured(self, batch: Batch) -> Sums:
        with autocasting(self.stepper.device, self.autocast):
            return measured_by(self.measure, self.stepper.module, batch)


def measured_by(measure: Measure, module: nn.Module, batch: Batch) -> Sums:
    """The sums over a batch that a function of the user's measures. Raises InputError."""
    with torch.no_grad():
        found = measure(module, batch.tree)
    if not isinstance(found, Mapping):
        raise InputError(
            f"evaluate(): returned {type(found).__name__}, expected a mapping of metrics by name"
        )
    return {str(name): sum_and_weight(f"metric {name}", value, batch.items) for name, value in found.items()}


def means(sums: Sums) -> dict[str, float]:
    """Each metric's mean."""
    return {name: total / weight for name, (total, weight) in sums.items() if weight}


def add(sums: Sums, more: Sums) -> None:
    """Add to sums and weights."""
    for name, (total, weight) in more.items():
        before = sums.get(name, (0.0, 0.0))
        sums[name] = before[0] + total, before[1] + weight


def sum_and_weight(what: str, found: Any, items: int) -> tuple[float, float]:
    """The value `found` that a metric returned for a batch of `items`, as a sum and its weight. Raises InputError."""
    pair = found if isinstance(found, tuple) and len(found) == 2 else None
    numbers = [float(each) for each in pair or (found,) if _is_number(each)]
    if len(numbers) != (1 if pair is None else 2):
        raise InputError(
            f"{what} returned {type(found).__name__}, expected a number, the mean over the items of the "
            "batch, or a pair of a sum and its weight"
        )
    return (numbers[0], numbers[1]) if pair is not None else (numbers[0] * items, items)


def _is_number(found: Any) -> bool:
    return found.numel() == 1 if isinstance(found, Tensor) else isinstance(found, int | float | np.number)
