"""Pulls in batches: one after the other, first such as measure, then those with which forward is over soonest."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest

from agileml.core.node.overlap.choice import SETTLE, WINDOW, Chosen
from agileml.core.node.overlap.pull_batches import PullBatches, growing
from agileml.core.node.reading import Reading
from agileml.core.protocol.commands import Begin
from pipeline.ibatch.batches import batches

MB = 1 << 20


class Machine:
    """Clocks of a machine on a link that takes `startup_s` to answer a pull, and `mb_s` for each MB."""

    def __init__(self, partitions: int, startup_s: float, mb_s: float, needed_s: Sequence[float]) -> None:
        self.startup_s, self.mb_s = startup_s, mb_s
        self.needed_s = tuple(needed_s)
        self.wanted = range(partitions)
        self.batches = PullBatches([MB] * partitions)
        self.batches.begin_view(set(self.wanted))
        self.asked: list[tuple[int, ...]] = []  # of the last clock
        self.clock = 0

    def go(self, clocks: int) -> list[Chosen]:
        return [chosen for _ in range(clocks) if (chosen := self.one()) is not None]

    def one(self) -> Chosen | None:
        """Pull and compute a clock, then come to the next one."""
        reading, self.asked = Reading(self.clock, Begin(1, self.clock, (1,))), []
        late_s = 0.4  # the first answer also waits for other machines
        while due := self.batches.due(reading, self.wanted):
            assert self.batches.due(reading, self.wanted) == due, "until it is asked"
            reading.asked.update(due)
            assert not self.batches.due(reading, self.wanted), "one batch at a time"
            self.asked.append(tuple(due))
            self.batches.now_s += late_s + self.startup_s + self.mb_s * len(due)
            late_s = 0.0
            reading.parts |= dict.fromkeys(due, ())
        self.batches.computed(self.needed_s)
        self.clock += 1
        return self.batches.reached(self.clock)


@pytest.mark.parametrize(
    ("startup_s", "mb_s", "step_s"),
    [(0.01, 0.01, 0.01), (0.0, 0.01, 0.01), (0.2, 0.01, 0.01), (0.01, 0.1, 0.001)],
)
def test_a_machine_finds_the_best_batches_of_its_link_and_its_forward(
    startup_s: float, mb_s: float, step_s: float
) -> None:
    machine = Machine(12, startup_s, mb_s, [step_s * partition for partition in range(12)])
    (chosen,) = machine.go(30)
    assert (chosen.clock, chosen.overlaps) == (SETTLE + WINDOW + 1, True)
    best = batches(startup_s, [mb_s] * 12, [step_s] * 11 + [0.0])
    assert len(machine.asked) == len(best.ends) or startup_s == 0
    assert f"forward has its last parameters {best.makespan_s:.3g} s after" in chosen.reason
    assert [p for batch in machine.asked for p in batch] == list(range(12))


def test_the_reason_names_the_batches_and_the_ways_there_would_be() -> None:
    (chosen,) = Machine(4, 0.1, 0.1, [0.0, 0.1, 0.2, 0.3]).go(20)
    assert chosen.reason == (
        "pulls in 2 batches (partitions 0-1, 2-3): with 100 ms to start a pull and 95.4 ms a MB, forward has its last "
        "parameters 0.7 s after the first pull, with one pull of all after 0.8 s, with an ordered stream (overlap: "
        "true) after 0.5 s"
    )


def test_forward_that_waits_for_everything_at_once_gets_one_pull() -> None:
    machine = Machine(8, 0.01, 0.01, ())
    machine.needed_s = (0.0,) * 8
    machine.go(20)
    assert machine.asked == [tuple(range(8))]


def test_what_came_under_an_older_view_is_not_asked_for() -> None:
    machine = PullBatches([MB] * 8)
    reading = Reading(0, Begin(1, 0, (1,)))
    reading.parts |= dict.fromkeys((0, 2, 3), ())
    assert machine.due(reading, range(8)) == [1], "the first batch that lacks something"
    reading.asked.add(1)
    assert machine.due(reading, range(8)) == []
    reading.parts[1] = ()
    assert machine.due(reading, range(8)) == [4, 5, 6, 7]


def test_every_view_is_measured_anew() -> None:
    machine = Machine(4, 0.1, 0.1, [0.0, 0.1, 0.2, 0.3])
    assert len(machine.go(30)) == 1
    machine.batches.begin_view({1})
    assert machine.batches.ends == growing(4)
    assert len(machine.go(30)) == 1


@pytest.mark.parametrize("partitions", [1, 2, 3, 8, 33])
def test_batches_that_measure_grow_and_cover_all(partitions: int) -> None:
    sizes = [stop - start for start, stop in pairwise((0, *growing(partitions)))]
    assert sum(sizes) == partitions and min(sizes) > 0
