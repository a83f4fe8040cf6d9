"""Matrix factorization by SGD over the known ratings (thesis 2.2; Koren, Bell and Volinsky 2009, equations 5-7).

A rating is predicted as mean + b_u + b_i + p_u . q_i. With e = rating - prediction, each rating moves
p_u by rate (e q_i - l2 p_u), q_i by rate (e p_u - l2 q_i), and b_u and b_i by rate (e - l2 b).
The tables `users` and `items` have p_u and q_i in their first `rank` columns and the bias, if any, in the last.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, Literal

import numba
import numpy as np
from pydantic import Field

from agileml.application import Application, Array, Settings, Table, Unit, Update, Updates
from agileml.apps.data import Draw, share_of
from agileml.apps.ratings import RatingsSplit, load_split
from agileml.config.section import Section, validate


class FactorizationConfig(Section):
    """Settings of the model.

    `steps`: each unit walks its ratings one by one on a copy of the rows it read, and the moves are added up
    (`rate` is theirs). `gradients`: each unit sums the gradients at what it read, and the job's optimizer applies them.
    """

    mode: Literal["steps", "gradients"] = "steps"
    rank: Annotated[int, Field(ge=1)] = 32
    rate: Annotated[float, Field(gt=0)] = 0.02
    l2: Annotated[float, Field(ge=0)] = 0.1
    biases: bool = True
    initial_scale: Annotated[float, Field(ge=0)] = 0.1


@dataclass(frozen=True)
class UnitRatings:
    """The ratings of a unit. `user_rows`, `item_rows`: what it reads; `users`, `items` count within these."""

    user_rows: Array
    item_rows: Array
    users: Array
    items: Array
    values: Array  # float32, less the mean


@dataclass(frozen=True)
class RatingSlice:
    """The ratings of a slice, in the order of their walk, and the pieces that were cut from them."""

    users: Array
    items: Array
    values: Array
    _pieces: dict[tuple[int, int], UnitRatings] = field(default_factory=dict)

    def piece(self, start: int, stop: int) -> UnitRatings:
        """Ratings start .. stop - 1. Every pass asks for the same ones, so they are kept."""
        if (start, stop) not in self._pieces:
            user_rows, users = np.unique(self.users[start:stop], return_inverse=True)
            item_rows, items = np.unique(self.items[start:stop], return_inverse=True)
            self._pieces[start, stop] = UnitRatings(
                user_rows, item_rows, users.astype(np.int32), items.astype(np.int32), self.values[start:stop]
            )
        return self._pieces[start, stop]


class MatrixFactorization(Application):
    """`mf`: ratings of a file or made ones."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.model = validate(FactorizationConfig, settings.model, ("model",))

    @cached_property
    def data(self) -> RatingsSplit:
        """All ratings and their split. Raises InputError."""
        return load_split(self.settings)

    def tables(self) -> Sequence[Table]:
        ratings = self.data.ratings
        columns = self.model.rank + self.model.biases
        update = Update.STEP if self.model.mode == "steps" else Update.GRADIENT
        return [
            Table("users", ratings.user_count, columns, sparse=True, update=update),
            Table("items", ratings.item_count, columns, sparse=True, update=update),
        ]

    def initial(self, table: Table) -> Array:
        rng = self.settings.rng(Draw.INITIAL, *(() if table.name == "users" else (1,)))
        values = rng.normal(0, self.model.initial_scale, (table.rows, table.columns)).astype(np.float32)
        if self.model.biases:
            values[:, -1] = 0
        return values

    def warm_up(self) -> None:
        # One rating of one user: the kernel is compiled for these types.
        at, value = np.zeros(1, np.int32), np.zeros(1, np.float32)
        rows = np.zeros((1, self.model.rank + self.model.biases), np.float32)
        rows.flags.writeable = False  # as in `process`
        piece = UnitRatings(at, at, at, at, value)
        self._walk([piece], None, {"users": rows, "items": rows})

    def load(self, slice_index: int) -> RatingSlice:
        data = self.data
        train = data.train[share_of(len(data.train), slice_index, self.settings)]
        ratings = data.ratings
        return RatingSlice(
            ratings.users[train], ratings.items[train], ratings.values[train] - np.float32(data.mean)
        )

    def _piece(self, unit: Unit, items: RatingSlice) -> UnitRatings:
        return items.piece(*unit.range_of(len(items.values), self.settings.clocks_per_pass))

    def reads(self, unit: Unit, items: RatingSlice) -> Mapping[str, Array]:
        piece = self._piece(unit, items)
        return {"users": piece.user_rows, "items": piece.item_rows}

    def process(self, unit: Unit, items: RatingSlice, parameters: Mapping[str, Array]) -> Updates:
        return self._walk([self._piece(unit, items)], None, parameters)

    def process_many(
        self,
        units: Sequence[Unit],
        items: Sequence[Any],
        rows: Mapping[str, Array],
        parameters: Mapping[str, Array],
    ) -> Updates:
        pieces = [self._piece(unit, share) for unit, share in zip(units, items, strict=True)]
        return self._walk(pieces, rows, parameters)

    def _walk(
        self, pieces: Sequence[UnitRatings], rows: Mapping[str, Array] | None, parameters: Mapping[str, Array]
    ) -> Updates:
        """All pieces, one after the other; `rows` is what the parameters hold, None: the rows of the only piece."""
        model = self.model
        rate, l2 = np.float32(model.rate), np.float32(model.l2)
        users, items = parameters["users"], parameters["items"]
        steps = model.mode == "steps"
        new_users, new_items = (
            (users.copy(), items.copy()) if steps else (np.zeros_like(users), np.zeros_like(items))
        )
        loss = 0.0
        for piece in pieces:
            at_user, at_item = piece.users, piece.items
            if rows is not None:
                at_user = np.searchsorted(rows["users"], piece.user_rows).astype(np.int32)[at_user]
                at_item = np.searchsorted(rows["items"], piece.item_rows).astype(np.int32)[at_item]
            if steps:
                loss += _steps(at_user, at_item, piece.values, new_users, new_items, model.biases, rate, l2)
            else:
                loss += _gradients(
                    at_user, at_item, piece.values, users, items, new_users, new_items, model.biases, l2
                )
        if steps:
            new_users -= users
            new_items -= items
        examples = sum(len(piece.values) for piece in pieces)
        return Updates({"users": new_users, "items": new_items}, loss, examples)

    def rmse(self, parameters: Mapping[str, Array], numbers: Array) -> float:
        """Root mean square error of the ratings with these numbers; nan without any."""
        if not len(numbers):
            return math.nan
        ratings = self.data.ratings
        squares = _squared_error(
            ratings.users[numbers],
            ratings.items[numbers],
            ratings.values[numbers] - np.float32(self.data.mean),
            parameters["users"],
            parameters["items"],
            self.model.biases,
        )
        return math.sqrt(squares / len(numbers))

    def evaluate(self, parameters: Mapping[str, Array]) -> dict[str, float]:
        metrics = {"train_rmse": self.rmse(parameters, self.data.train)}
        if len(self.data.test):
            metrics["test_rmse"] = self.rmse(parameters, self.data.test)
        return metrics

    def describe(self) -> dict[str, Any]:
        data = self.data
        return {
            "data": data.ratings.name,
            "users": data.ratings.user_count,
            "items": data.ratings.item_count,
            "train_ratings": len(data.train),
            "test_ratings": len(data.test),
            "split_seed": self.settings.seed,
            "mean": data.mean,
        }


@numba.njit(cache=True, nogil=True, inline="always")
def _error(p, q, value, rank, biases):  # type: ignore[no-untyped-def]
    """e = value - prediction, where value and prediction are less the mean."""
    dot = np.float32(0)
    for f in range(rank):
        dot += p[f] * q[f]
    if biases:
        dot += p[rank] + q[rank]
    return value - dot


@numba.njit(cache=True, nogil=True)
def _steps(users, items, values, P, Q, biases, rate, l2):  # type: ignore[no-untyped-def]
    """Walk the ratings one by one, in place. Returns the sum of the squared errors, each before its step."""
    rank = P.shape[1] - 1 if biases else P.shape[1]
    loss = 0.0
    for n in range(values.size):
        p = P[users[n]]
        q = Q[items[n]]
        e = _error(p, q, values[n], rank, biases)
        loss += e * e
        for f in range(rank):
            p_f = p[f]
            q_f = q[f]
            p[f] = p_f + rate * (e * q_f - l2 * p_f)
            q[f] = q_f + rate * (e * p_f - l2 * q_f)
        if biases:
            p[rank] += rate * (e - l2 * p[rank])
            q[rank] += rate * (e - l2 * q[rank])
    return loss


@numba.njit(cache=True, nogil=True)
def _gradients(users, items, values, P, Q, P_gradient, Q_gradient, biases, l2):  # type: ignore[no-untyped-def]
    """Add the gradients of (e^2 + l2 (|p|^2 + |q|^2 + b_u^2 + b_i^2)) / 2 over all ratings. Returns the sum of e^2."""
    rank = P.shape[1] - 1 if biases else P.shape[1]
    loss = 0.0
    for n in range(values.size):
        p = P[users[n]]
        q = Q[items[n]]
        to_p = P_gradient[users[n]]
        to_q = Q_gradient[items[n]]
        e = _error(p, q, values[n], rank, biases)
        loss += e * e
        for f in range(rank):
            to_p[f] += l2 * p[f] - e * q[f]
            to_q[f] += l2 * q[f] - e * p[f]
        if biases:
            to_p[rank] += l2 * p[rank] - e
            to_q[rank] += l2 * q[rank] - e
    return loss


@numba.njit(cache=True, nogil=True)
def _squared_error(users, items, values, P, Q, biases):  # type: ignore[no-untyped-def]
    """The sum of e^2 over the ratings."""
    rank = P.shape[1] - 1 if biases else P.shape[1]
    loss = 0.0
    for n in range(values.size):
        e = _error(P[users[n]], Q[items[n]], values[n], rank, biases)
        loss += e * e
    return loss
