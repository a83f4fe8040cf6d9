"""Multinomial logistic regression (softmax) by minibatch gradients (thesis 2.2).

It minimises what scikit-learn's LogisticRegression(C=1/l2) minimises, divided by the number N of training items:
    (1/N) (sum_i -log p(y_i | x_i) + (l2/2) |W|^2),  p(k | x) = exp(w_k . x + b_k) / sum_j exp(w_j . x + b_j)
where the intercepts b, the last column of the table `weights`, are not penalised.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from agileml.application import Application, Array, Settings, Table, Unit, Updates
from agileml.apps.data import Draw, share_of
from agileml.apps.few_classes import add_gradient, logits_of
from agileml.apps.labelled import Labelled, load_labelled
from agileml.config.section import Section, validate

ROWS_AT_ONCE = 8192  # when whole splits are evaluated
WARM_ROWS = 512  # items of which the second product finds in the cache what the first one has read


class RegressionConfig(Section):
    """Settings of the model: `l2` is 1/C of scikit-learn's LogisticRegression."""

    l2: Annotated[float, Field(ge=0)] = 1.0


@dataclass(frozen=True)
class LabelledSlice:
    """The items of a slice in a fixed shuffled order: features with a column of ones, (n, features + 1) float32."""

    features: Array
    labels: Array


class LogisticRegression(Application):
    """`mlr`: digits, an .npz file or made blobs."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.model = validate(RegressionConfig, settings.model, ("model",))

    @cached_property
    def data(self) -> Labelled:
        """All items and their split. Raises InputError."""
        return load_labelled(self.settings)

    def tables(self) -> Sequence[Table]:
        return [Table("weights", len(self.data.labels), self.data.features + 1)]

    def load(self, slice_index: int) -> LabelledSlice:
        data = self.data
        order = self.settings.rng(Draw.SHUFFLE).permutation(len(data.train_labels))
        mine = order[share_of(len(order), slice_index, self.settings)]
        return LabelledSlice(_with_ones(data.scaled(data.train_items[mine])), data.train_labels[mine])

    def warm_up(self) -> None:
        table = self.tables()[0]
        nothing = np.zeros((2, table.columns), np.float32)
        loss_and_gradient(np.zeros((table.rows, table.columns), np.float32), nothing, np.zeros(2, np.int64))

    def process(self, unit: Unit, items: LabelledSlice, parameters: Mapping[str, Array]) -> Updates:
        return self._updates([self._range(unit, items)], [items], parameters["weights"])

    def process_many(
        self,
        units: Sequence[Unit],
        items: Sequence[Any],
        rows: Mapping[str, Array],
        parameters: Mapping[str, Array],
    ) -> Updates:
        ranges = [self._range(unit, share) for unit, share in zip(units, items, strict=True)]
        return self._updates(ranges, items, parameters["weights"])

    def _range(self, unit: Unit, items: LabelledSlice) -> slice:
        return slice(*unit.range_of(len(items.labels), self.settings.clocks_per_pass))

    def _updates(self, ranges: Sequence[slice], items: Sequence[LabelledSlice], weights: Array) -> Updates:
        """The gradient of the objective over some items, as their share in the mean over a clock's items."""
        pieces = [(share.features[r], share.labels[r]) for share, r in zip(items, ranges, strict=True)]
        here = sum(len(y) for _, y in pieces)
        if len(pieces) > 1 and here <= WARM_ROWS:
            x, y = (np.concatenate(columns) for columns in zip(*pieces, strict=True))
            pieces = [(x, y)]
        count = len(self.data.train_labels)
        loss, gradient = loss_and_gradient(weights, *pieces[0])
        for x, y in pieces[1:]:
            more_loss, more = loss_and_gradient(weights, x, y)
            loss += more_loss
            gradient += more
        # Each item brings its share of the penalty, so that a clock has it once.
        gradient[:, :-1] += np.float32(self.model.l2 * here / count) * weights[:, :-1]
        gradient *= np.float32(self.settings.clocks_per_pass / count)
        return Updates({"weights": gradient}, loss, here)

    def evaluate(self, parameters: Mapping[str, Array]) -> dict[str, float]:
        data = self.data
        metrics = self._score("train", parameters["weights"], data.train_items, data.train_labels)
        if len(data.test_labels):
            metrics |= self._score("test", parameters["weights"], data.test_items, data.test_labels)
        return metrics

    def _score(self, name: str, weights: Array, items: Array, labels: Array) -> dict[str, float]:
        right, loss = 0, 0.0
        for start in range(0, len(labels), ROWS_AT_ONCE):
            at = slice(start, start + ROWS_AT_ONCE)
            logits = logits_of(weights, _with_ones(self.data.scaled(items[at])))
            right += int((logits.argmax(axis=0) == labels[at]).sum())
            loss += _log_loss(logits, labels[at])[0]
        return {f"{name}_accuracy": right / len(labels), f"{name}_log_loss": loss / len(labels)}

    def describe(self) -> dict[str, Any]:
        data = self.data
        return {
            "data": data.name,
            "classes": len(data.labels),
            "features": data.features,
            "train_items": len(data.train_labels),
            "test_items": len(data.test_labels),
            "split": data.split,
        }


def loss_and_gradient(weights: Array, x: Array, y: Array) -> tuple[float, Array]:
    """(sum over the items of -log p(y | x), its gradient): sum_i (p(k | x_i) - [k = y_i]) x_i for each class k.

    Classes lie in rows, items in columns: what is done for all items then goes through memory in order.
    """
    loss, gradient = 0.0, np.zeros_like(weights)
    for start in range(0, max(1, len(y)), WARM_ROWS):
        some, labels = x[start : start + WARM_ROWS], y[start : start + WARM_ROWS]
        more_loss, p = _log_loss(logits_of(weights, some), labels)
        p[labels, np.arange(len(labels))] -= 1
        loss += more_loss
        add_gradient(gradient, p, some)
    return loss, gradient


def _log_loss(logits: Array, y: Array) -> tuple[float, Array]:
    """(sum of -log p(y | x), all p(k | x)); `logits` (classes, items) are overwritten with the probabilities."""
    logits -= logits.max(axis=0, initial=-np.inf)
    right = logits[y, np.arange(len(y))]
    p = np.exp(logits, out=logits)
    total = p.sum(axis=0)
    loss = float((np.log(total) - right).sum(dtype=np.float64))
    p /= total
    return loss, p


def _with_ones(features: Array) -> Array:
    return np.concatenate([features, np.ones((len(features), 1), np.float32)], axis=1)
