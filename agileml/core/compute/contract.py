"""Checks of the values that user code returns. Each error is one sentence that names the method and what to change."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from agileml.application import Application, Array, DeviceVector, Table, Update, Updates
from agileml.core.parameters.loss_scale import initial_table


class ContractError(ValueError):
    """User code returned something that the engine cannot use."""


@dataclass(frozen=True)
class CheckedUpdates:
    """Updates of units that keep the contract. `rows`: of each sparse table, the rows that its array updates."""

    tables: Mapping[str, Array | DeviceVector]
    rows: Mapping[str, Array]
    loss: float
    examples: int
    metrics: Mapping[str, tuple[float, float]]


def checked_tables(application: Application) -> tuple[Table, ...]:
    """The application's tables. Raises ContractError if there is none, or two have one name."""
    tables = tuple(application.tables())
    names = [table.name for table in tables]
    if not tables:
        raise ContractError("tables() returned no table, expected at least one")
    if len(set(names)) < len(names):
        raise ContractError(f"tables() returned the names {', '.join(names)}, expected each name once")
    return tables


def initial_values(
    application: Application, tables: Sequence[Table], *, copied: bool = True
) -> dict[str, Array]:
    """All tables before clock 0. `copied` False: the application's own arrays, which must not be written.

    Raises ContractError.
    """
    values = {}
    for table in tables:
        if table.update is Update.LOSS_SCALE:
            rule = application.loss_scale()
            assert rule is not None, table
            values[table.name] = initial_table(table, rule)
            continue
        if table.update is Update.NONE:
            values[table.name] = np.zeros((table.rows, table.columns), table.dtype)
            continue
        what = f"initial() of table {table.name!r}"
        array = _checked_array(what, table, application.initial(table), (table.rows, table.columns))
        is_wrong = np.isnan(array).any() if table.may_be_infinite else not np.isfinite(array).all()
        if is_wrong:
            raise ContractError(f"{what} returned values that are not finite")
        values[table.name] = array.copy() if copied else array
    return values


def checked_reads(tables: Sequence[Table], rows: Mapping[str, Array]) -> Mapping[str, Array]:
    """The rows that a unit reads, unchanged. Raises ContractError."""
    sparse = {table.name: table for table in tables if table.sparse}
    for name in rows:
        if name not in sparse:
            raise ContractError(f"reads() named {name!r}, expected only sparse tables ({_names(sparse)})")
    for name, table in sparse.items():
        if name not in rows:
            raise ContractError(
                f"reads() named no rows of the sparse table {name!r}, expected an array, empty for none"
            )
        what = f"reads() of table {name!r} returned"
        found = _checked_rows(what, rows[name])
        if found.size and (found[0] < 0 or found[-1] >= table.rows):
            raise ContractError(
                f"{what} rows {found[0]} to {found[-1]}, expected rows from 0 to {table.rows - 1}"
            )
    return rows


def checked_updates(
    method: str, tables: Sequence[Table], rows: Mapping[str, Array], updates: Any
) -> CheckedUpdates:
    """Check the updates that `process` or `process_many` made of units that read these rows. Raises ContractError."""
    if not isinstance(updates, Updates):
        raise ContractError(f"{method}() returned {_describe(updates)}, expected agileml.application.Updates")
    known = {table.name: table for table in tables}
    arrays: dict[str, Array | DeviceVector] = {}
    updated = dict(rows)
    for name, some in updates.rows.items():
        if name not in rows:
            raise ContractError(
                f"{method}() named rows of {name!r}, expected only sparse tables ({_names(rows)})"
            )
        if np.array_equal(some, rows[name]):
            continue
        what = f"{method}() of table {name!r} returned"
        updated[name] = _checked_rows(what, some)
        if not np.isin(some, rows[name], assume_unique=True).all():
            raise ContractError(f"{what} rows to update that reads() did not name, expected some of those")
    for name, found in updates.tables.items():
        if name not in known:
            raise ContractError(f"{method}() updated {name!r}, expected one of {_names(known)}")
        table = known[name]
        if isinstance(found, DeviceVector):
            arrays[name] = _checked_vector(f"{method}() of table {name!r}", table, found)
            continue
        shape = (len(updated[name]) if table.sparse else table.rows, table.columns)
        arrays[name] = _checked_array(f"{method}() of table {name!r}", table, found, shape)
    loss, examples = float(updates.loss), int(updates.examples)
    is_scaled = any(table.update is Update.LOSS_SCALE for table in tables)
    if not math.isfinite(loss) and not (is_scaled and arrays):  # an overflow, which the clock skips
        raise ContractError(
            f"{method}() returned a loss of {loss}: the training diverged (a lower learning rate may help) "
            "or an item is not finite"
        )
    return CheckedUpdates(arrays, updated, loss, examples, updates.metrics)


def _checked_rows(what: str, found: Any) -> Array:
    if not isinstance(found, np.ndarray) or found.dtype not in (np.int32, np.int64) or found.ndim != 1:
        raise ContractError(f"{what} {_describe(found)}, expected a vector of int32 or int64")
    if found.size and not (found[1:] > found[:-1]).all():
        raise ContractError(f"{what} rows that are not ascending and distinct (np.unique makes them so)")
    return found


def _checked_array(what: str, table: Table, found: Any, shape: tuple[int, int]) -> Array:
    if not isinstance(found, np.ndarray) or found.shape != shape or found.dtype != table.dtype:
        raise ContractError(
            f"{what} returned {_describe(found)}, expected an array of shape {shape} and dtype {table.dtype}"
        )
    return np.ascontiguousarray(found)


def _checked_vector(what: str, table: Table, found: DeviceVector) -> DeviceVector:
    elements = table.rows * table.columns
    if not table.resident or found.size != elements or found.dtype != table.dtype:
        expected = f"one of {elements} elements and dtype {table.dtype}" if table.resident else "an array"
        raise ContractError(
            f"{what} returned a vector on a device, of {found.size} elements and dtype {found.dtype}, expected "
            f"{expected}"
        )
    return found


def _describe(found: Any) -> str:
    if isinstance(found, np.ndarray):
        return f"an array of shape {found.shape} and dtype {found.dtype}"
    return "nothing" if found is None else f"a value of type {type(found).__name__}"


def _names(tables: Mapping[str, Any]) -> str:
    return ", ".join(tables) or "there are none"
