"""Contributions as arrays without gaps, which an all-reduce adds up, and what their sum says."""

from __future__ import annotations

import numpy as np
import pytest

from agileml.application import Range, Table, Update
from agileml.core.parameters.fold import Contribution
from agileml.core.parameters.layout import Dense, Layout
from agileml.core.parameters.whole_updates import summed_blocks, whole_blocks

TABLES = (
    Table("weights", 1, 32),
    Table("steps", 1, 32, update=Update.STEP),
    Table("named", 1, 32, ranges=(Range("named", 32),)),
)
LAYOUT = Layout(TABLES, 2)


def contribution(**values: float) -> Contribution:
    """One number in all elements of a table's block; nothing for other tables."""
    return Contribution(
        tuple(
            Dense(np.full(16, values[table.name], np.float32)) if table.name in values else None
            for table in TABLES
        )
    )


@pytest.mark.parametrize(
    ("machines", "weights"),
    [
        ([{}, {}], None),
        ([{"named": 1.0}, {"steps": 2.0}], None),
        ([{"weights": 2.0}, {}], 2.0),
        ([{"weights": 2.0}, {"weights": -2.0}], 0.0),
        ([{"weights": -0.0}, {}], 0.0),
        ([{"weights": -0.0}, {"weights": -0.0}], 0.0),
    ],
)
def test_a_table_that_no_machine_updated_takes_no_step(
    machines: list[dict[str, float]], weights: float | None
) -> None:
    """With momentum, or decay of weights, a step along zeros moves it."""
    here = [whole_blocks(LAYOUT, 1, contribution(**each)) for each in machines]
    of_weights, of_steps, of_named = summed_blocks(
        TABLES, [sum(blocks[1:], blocks[0]) for blocks in zip(*here, strict=True)]
    )
    if weights is None:
        assert of_weights is None
    else:
        assert isinstance(of_weights, Dense) and (of_weights.values == weights).all()
    assert of_steps is not None and of_named is not None, "adding -0.0 changes nothing; ranges are looked at"
