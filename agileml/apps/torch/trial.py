"""One training batch and one test batch, tried before any machine starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import torch

from agileml.application import Array, InputError
from agileml.apps.torch.batches.trees import copied, mapped
from agileml.apps.torch.data import DataSet
from agileml.apps.torch.export import exported
from agileml.apps.torch.flat import changed_parameter
from agileml.apps.torch.objective import evaluating
from agileml.apps.torch.seeding import seeded
from agileml.apps.torch.step import Batch, Stepper
from agileml.core.compute.traces import is_in_user_code

MOST_ITEMS = 8  # of a batch that is tried
KEYS = "see model.module, model.loss or model.step, and data"  # what must fit together in the config

Augment = Callable[..., Any]


def try_batches(
    data: DataSet, numbers: Array, stepper: Stepper | None, augment: Augment | None, times: int = 1
) -> None:
    """Make a training batch of the first of these items, and one of the test split; compute with them, with the first
    so many `times`, if there is a stepper. Raises InputError, and the user's own errors with a note of what was
    tried."""
    numbers = numbers[:MOST_ITEMS]
    with _tried(f"one training batch of {len(numbers)} items ({KEYS})"):
        batch = placed_batch(data.train.take(numbers), len(numbers), augment, stepper)
        if stepper is not None:
            tables = {table.name: stepper.flat.values(table) for table in stepper.flat.tables()}
            for _ in range(times):
                _step(stepper, batch, tables)
            exported(tables, stepper.flat)  # what the end of the run writes
    if data.test is not None and len(data.test):
        items = min(len(data.test), MOST_ITEMS)
        with tried_test_batch(items):
            batch = placed_batch(data.test.take(np.arange(items)), items, None, stepper)
            if stepper is not None:
                stepper.use(tables)
                with evaluating(stepper.module):
                    stepper.judged(batch)
    if stepper is not None:
        stepper.let_go()  # this process stays for all of the run


def placed_batch(tree: Any, items: int, augment: Augment | None, stepper: Stepper | None) -> Batch:
    """A batch, augmented, where the module computes. Without a stepper it stays where it is."""
    if augment is not None and isinstance(tree, tuple) and len(tree) >= 2:
        found = augment(*tree[:-1])
        tree = (*(found if isinstance(found, tuple | list) else (found,)), tree[-1])
    elif augment is not None:
        tree = augment(tree)
    return Batch(tree if stepper is None else mapped(tree, stepper.placed), items)


def _step(stepper: Stepper, batch: Batch, values: Mapping[str, Array]) -> None:
    """One forward and backward with these values of the module's tables."""
    rows = {}
    if stepper.rows:
        with _seeded_for(stepper):
            stepper.record_look_ups(_again(batch))
        rows = stepper.rows.looked_up()
    tables = {name: table[rows[name]] if name in rows else table for name, table in values.items()}
    stepper.use(tables, rows)
    before = stepper.flat.sums()
    with _seeded_for(stepper):
        gradient, loss = stepper.gradient([_again(batch)], batch.items)
    if changed := [name for name, total in stepper.flat.sums().items() if total != before[name]]:
        raise changed_parameter(changed[0])
    if gradient is None:
        raise InputError(
            f"model.loss: the first {batch.items} items have the loss {loss}, expected a finite number"
        )
    stepper.flat.check_names()
    stepper.flat.buffer_changes(tables, 1.0)


def _again(batch: Batch) -> Batch:
    """The batch as it was made, to compute with it more than once: the user's code may change it in place."""
    return Batch(copied(batch.tree), batch.items)


def _seeded_for(stepper: Stepper) -> AbstractContextManager[object]:
    """The same random numbers each time: ids that forward draws are recorded before they are looked up."""
    return seeded(0, torch.get_num_threads(), stepper.device)


def tried_test_batch(items: int) -> AbstractContextManager[None]:
    """The context of what is done with one test batch: errors of the user's code say so."""
    return _tried(f"one test batch of {items} items ({KEYS})")


@contextmanager
def _tried(what: str) -> Iterator[None]:
    """Add to errors of the user's code the call that was tried."""
    try:
        yield
    except InputError:
        raise
    except torch.OutOfMemoryError as error:
        why = str(error).partition(". ")[0].rstrip(".")
        raise InputError(f"model.device: {what} does not fit into the device's memory ({why})") from None
    except Exception as error:
        if not is_in_user_code(error):  # model, loss and data do not fit together
            why = " ".join(str(error).split())
            raise InputError(f"{what} cannot be computed: {type(error).__name__}: {why}") from error
        error.add_note(what)
        raise
