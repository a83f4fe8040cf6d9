"""One process that follows the stages of a log: the thesis' formulas, bit by bit, and the log that says too little."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agileml.application import Array
from agileml.core.async_stages.replay import StagesMissingError, StagesReplay, stages_in
from agileml.core.protocol.view import StagesFrom
from agileml.core.sequential import run_sequential
from agileml.events.run import StagesArranged
from tests.model.async_reference import async_reference
from tests.model.staged_toy import NAME, SEEN, StagedToy
from tests.model.toy import ASYNC, toy_job

PARTITIONS, CLOCKS = 4, 9


def replayed(mode: str, algorithm: str, stages: tuple[StagesFrom, ...]) -> tuple[bytes, bytes]:
    """The result of the replay, and by the formulas."""
    toy, job = toy_job(mode, algorithm, 4, 1, PARTITIONS, CLOCKS)
    assert isinstance(toy, StagedToy) and job.pipeline is not None
    plan = toy.plan(PARTITIONS)
    clocks: list[int] = []
    again = StagesReplay(toy, job.optimizer, 1, plan, job.pipeline, lambda clock, *_: clocks.append(clock))
    found, wanted = again.train(stages, CLOCKS).tables, async_reference(toy, job, stages)
    assert clocks == list(range(CLOCKS))
    return bits(found), bits(wanted)


def bits(tables: Mapping[str, Array]) -> bytes:
    return b"".join(tables[name].tobytes() for name in (NAME, SEEN))


@st.composite
def arrangements(draw: st.DrawFn) -> tuple[StagesFrom, ...]:
    """Stages that change at some clocks, some of which exchange sums while they compute."""
    found = []
    for clock in (0, *sorted(draw(st.sets(st.integers(1, CLOCKS - 1), max_size=3)))):
        ends = (*sorted(draw(st.sets(st.integers(1, PARTITIONS - 1)))), PARTITIONS)
        overlapping = draw(st.sets(st.integers(0, len(ends) - 2))) if len(ends) > 1 else ()
        found.append(StagesFrom(clock, ends, tuple(sorted(overlapping))))
    return tuple(found)


@settings(max_examples=25)
@given(st.sampled_from(ASYNC), st.sampled_from(["sgd", "adam"]), arrangements())
def test_any_stages_end_with_what_the_formulas_say(
    mode: str, algorithm: str, stages: tuple[StagesFrom, ...]
) -> None:
    found, wanted = replayed(mode, algorithm, stages)
    assert found == wanted


def test_each_mode_reads_other_weights_and_one_stage_is_plain_training() -> None:
    four, one = (StagesFrom(0, (1, 2, 3, 4)),), (StagesFrom(0, (4,)),)
    toy, job = toy_job("stash", "sgd", 4, 1, PARTITIONS, CLOCKS)
    plain = run_sequential(toy, optimizer=job.optimizer, clocks=CLOCKS)
    assert {replayed(mode, "sgd", one)[0] for mode in ASYNC} == {bits(plain)}
    assert len({bits(plain), *(replayed(mode, "sgd", four)[0] for mode in ASYNC)}) == len(ASYNC) + 1


@pytest.mark.parametrize("mode", ["stash", "none", "vertical_sync"])
def test_a_stage_that_exchanges_sums_while_it_computes_reads_weights_a_clock_older(mode: str) -> None:
    waiting, overlapping = ((StagesFrom(0, (2, 4), numbers),) for numbers in ((), (0,)))
    found, wanted = replayed(mode, "adam", overlapping)
    assert found == wanted != replayed(mode, "adam", waiting)[0]


def test_two_versions_give_any_number_of_stages_the_same_bits() -> None:
    two, four = (StagesFrom(0, (1, 4)),), (StagesFrom(0, (1, 2, 3, 4)),)
    assert replayed("double_buffered", "adam", two)[0] == replayed("double_buffered", "adam", four)[0]


def test_a_later_epoch_replaces_what_a_rollback_has_undone() -> None:
    events = [
        StagesArranged(1, 0, (1, 2), (0,)),
        StagesArranged(2, 8, (2,)),
        StagesArranged(4, 5, (1, 2)),  # back to clock 5
        StagesArranged(3, 6, (2,)),  # told late
        StagesArranged(5, 9, (2,)),
    ]
    assert stages_in(events, 9) == (StagesFrom(0, (1, 2), (0,)), StagesFrom(5, (1, 2)))
    assert stages_in(events, 10)[-1] == StagesFrom(9, (2,))
    again = [replace(event, epoch=6) for event in (events[0], events[2], events[4])]
    assert stages_in([*events, *again], 10) == stages_in(events, 10)


@pytest.mark.parametrize(
    ("events", "told"), [([], "no stages"), ([StagesArranged(1, 6, (2,))], "from clock 6")]
)
def test_a_log_that_does_not_begin_at_the_start_is_one_sentence(
    events: list[StagesArranged], told: str
) -> None:
    with pytest.raises(StagesMissingError, match=f"found .*{told}.*expected from clock 0 on"):
        stages_in(events, 10)
