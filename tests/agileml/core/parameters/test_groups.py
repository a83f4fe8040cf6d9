"""Groups of parameters: each takes the step of its own rule, wherever blocks are cut, and some take none."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agileml.application import Range, Table
from agileml.core.parameters.groups import GroupedOptimizer
from agileml.core.parameters.layout import Layout
from agileml.core.parameters.optimizer import optimizer, take_step

KINDS = {"sgd": {}, "momentum": {}, "adagrad": {}, "adam": {}, "adamw": {}}


def rules(kind: str) -> GroupedOptimizer:
    one = optimizer(kind, learning_rate=0.1, weight_decay=0.1)
    other = optimizer(kind, learning_rate=0.01, weight_decay=0.0)
    return GroupedOptimizer(one, {"b": other, "d": other, "e": other})


@given(
    kind=st.sampled_from(sorted(KINDS)),
    sizes=st.lists(st.integers(1, 40), min_size=5, max_size=5),
    unreached=st.sets(st.sampled_from("abcde")),
    partitions=st.integers(1, 4),
    in_place=st.booleans(),
    seed=st.integers(0, 9),
)
def test_each_parameter_takes_the_step_of_its_rule_or_none(
    kind: str, sizes: list[int], unreached: set[str], partitions: int, in_place: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    stops = np.cumsum(sizes)
    table = Table("t", 1, int(stops[-1]), ranges=tuple(map(Range, "abcde", map(int, stops))))
    grouped, layout = rules(kind), Layout((table,), partitions)
    parameters = rng.normal(size=stops[-1]).astype(np.float32)
    gradient = rng.normal(size=stops[-1]).astype(np.float32)
    gradient[rng.random(stops[-1]) < 0.2] = 0.0  # a gradient that exists and is zero
    state = [rng.random(stops[-1]).astype(np.float32) for _ in range(grouped.slots)]
    spans = dict(zip("abcde", zip([0, *stops], stops, strict=False), strict=True))
    for name in unreached:
        gradient[slice(*spans[name])] = -0.0
    wanted, wanted_state = parameters.copy(), [array.copy() for array in state]
    for name, (start, stop) in spans.items():
        if name not in unreached:
            rule = grouped.by_name.get(name, grouped.default)
            at = slice(start, stop)
            new, slots = take_step(
                rule,
                3,
                parameters[at].copy(),
                gradient[at].copy(),
                [s[at].copy() for s in state],
                in_place=False,
            )
            wanted[at] = new
            for goal, slot in zip(wanted_state, slots, strict=True):
                goal[at] = slot
    for partition in range(partitions):
        start, stop = layout.range_of(0, partition)
        if start == stop:
            continue
        block, slots = parameters[start:stop].copy(), [array[start:stop].copy() for array in state]
        found, found_state = take_step(
            grouped.for_block(table, start, stop), 3, block, gradient[start:stop], slots, in_place=in_place
        )
        assert np.array_equal(found, wanted[start:stop])
        for ours, theirs in zip(found_state, wanted_state, strict=True):
            assert np.array_equal(ours, theirs[start:stop])


def test_a_sparse_table_takes_the_rule_of_its_parameter() -> None:
    grouped = rules("momentum")
    named = next(iter(grouped.by_name))
    sparse = Table("t", 9, 4, sparse=True, ranges=(Range(named, 36),))
    assert grouped.for_block(sparse, 3, 9) is grouped.by_name[named]
    other = Table("t", 9, 4, sparse=True, ranges=(Range("another", 36),))
    assert grouped.for_block(other, 0, 3) is grouped.default
    assert grouped.for_block(Table("t", 9, 4, sparse=True), 0, 3) is grouped.default


def test_a_table_without_names_takes_the_default() -> None:
    grouped = rules("sgd")
    assert grouped.for_block(Table("t", 1, 8), 0, 8) is grouped.default
    assert grouped.rate_at(5) == pytest.approx(0.1)
