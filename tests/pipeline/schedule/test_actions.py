"""Schedules: the figures, every random case sound, every mutant caught."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.schedule.actions import Action, Kind, Schedule, ScheduleError, parse_schedule
from pipeline.schedule.check import problems
from pipeline.schedule.policies import flush, full_rate_in_flight, gpipe, model_parallel, noam, one_f_one_b
from tests.thorough import examples

GOLDEN = Path(__file__).resolve().parents[2] / "golden"

FIGURES = {
    "pipeline_figure_5_2_model_parallel": lambda: model_parallel([1] * 4, 3),
    "pipeline_figure_5_3_gpipe": lambda: gpipe([1] * 4, 8, 4),
    "pipeline_figure_5_4_1f1b": lambda: one_f_one_b([1] * 4, 8),
    "pipeline_1f1b_flush": lambda: flush([1] * 4, 8, 8),
    "pipeline_zero_bubble": lambda: flush([1] * 4, 8, 8, zero_bubble=True),
    "pipeline_zero_bubble_2_1_groups": lambda: flush([2, 1], 8, 4, zero_bubble=True),
    "pipeline_1f1b_rr_2_1": lambda: one_f_one_b([2, 1], 7),
    "pipeline_1f1b_rr_1_4_1": lambda: one_f_one_b([1, 4, 1], 16, in_flight=9),
}


@pytest.mark.parametrize("name", FIGURES)
def test_equals_the_golden_text(name: str) -> None:
    assert str(FIGURES[name]()) == (GOLDEN / f"{name}.txt").read_text()


def test_noam() -> None:
    assert [noam(r) for r in ([1, 1, 1, 1], [2, 1], [3, 1], [12, 1], [1, 4, 1])] == [4, 2, 2, 2, 6]
    assert full_rate_in_flight([1, 4, 1]) == 9
    assert full_rate_in_flight([3, 1]) == noam([3, 1])


def random_schedule(rng: random.Random, *, barrier: bool) -> Schedule:
    replicas = [rng.choice([1, 1, 1, 2, 3, 4]) for _ in range(rng.randint(1, 5))]
    minibatches = rng.randint(1, 24)
    drains = sorted(rng.sample(range(1, minibatches + 1), rng.randint(0, min(2, minibatches))))
    in_flight = rng.choice([None, None, 1, 2, full_rate_in_flight(replicas)])
    seconds = None
    if rng.random() < 0.3:
        seconds = [rng.randint(1, 9) for _ in replicas]
    return one_f_one_b(
        replicas, minibatches, in_flight=in_flight, drains=drains, forward_s=seconds, barrier=barrier
    )


@pytest.mark.parametrize("cases", [250, pytest.param(5_000, marks=pytest.mark.slow)])
def test_random_schedules_are_sound(cases: int) -> None:
    rng = random.Random(1)
    for case in range(cases):
        barrier = case % 2 == 1
        schedule = random_schedule(rng, barrier=barrier)
        assert problems(schedule, barrier=barrier) == [], f"case {case}\n{schedule}"


@given(
    replicas=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    minibatches=st.integers(1, 20),
    group=st.integers(1, 6),
)
@settings(deadline=None, derandomize=True, max_examples=examples(100))
def test_other_policies_are_sound_and_text_parses_back(
    replicas: list[int], minibatches: int, group: int
) -> None:
    for schedule in (
        gpipe(replicas, minibatches, group, drains=[(minibatches + 1) // 2]),
        model_parallel(replicas, minibatches),
        flush(replicas, minibatches, group),
        flush(replicas, minibatches, group, zero_bubble=True),
        one_f_one_b(replicas, minibatches),
    ):
        assert problems(schedule) == []
        assert parse_schedule(str(schedule)) == schedule


def _swap(schedule: Schedule, worker: int, i: int, j: int) -> Schedule:
    actions = list(schedule.workers[worker])
    actions[i], actions[j] = actions[j], actions[i]
    return _with(schedule, worker, actions)


def _with(schedule: Schedule, worker: int, actions: list[Action]) -> Schedule:
    workers = list(schedule.workers)
    workers[worker] = tuple(actions)
    return replace(schedule, workers=tuple(workers))


STRAIGHT = one_f_one_b([1] * 4, 8)
REPLICATED = one_f_one_b([2, 1], 8)
DRAINED = one_f_one_b([1] * 3, 8, drains=[4])
EARLY = "F1 B1 F2 B2 F3 B3 F4 F5 B4 B5 F6 B6 F7 B7 F8 B8"
GROUPS = gpipe([1] * 3, 8, 4)

FLUSHED = flush([1] * 3, 8, 4)
PUT_OFF = flush([1, 1], 2, 2, zero_bubble=True)

MUTANTS = {
    "an action is missing": (_with(STRAIGHT, 1, list(STRAIGHT.workers[1][:-1])), "is missing"),
    "an action twice": (_with(STRAIGHT, 2, [*STRAIGHT.workers[2], Action(Kind.BACKWARD, 8)]), "twice"),
    "forwards out of order": (_swap(STRAIGHT, 0, 0, 1), "ascending"),
    "backwards out of order": (_swap(STRAIGHT, 0, 4, 6), "ascending"),
    "backward before its forward": (_swap(STRAIGHT, 3, 0, 1), "deadlock"),
    "backward on another replica": (
        replace(REPLICATED, workers=(REPLICATED.workers[1], REPLICATED.workers[0], REPLICATED.workers[2])),
        "belongs elsewhere",
    ),
    "one admitted too early": (_swap(STRAIGHT, 0, 4, 5), "in flight"),
    "next epoch before the drain": (
        _with(
            replace(DRAINED, in_flight=(3, 2, 2)),
            2,
            [Action(Kind(word[0]), int(word[1:])) for word in EARLY.split()],
        ),
        "drain",
    ),
    "a gradient of weights too early": (
        _with(PUT_OFF, 1, [Action(Kind(w[0]), int(w[1:])) for w in ["F1", "W1", "B1", "F2", "B2", "W2"]]),
        "deadlock",
    ),
    "a gradient of weights is missing": (_with(PUT_OFF, 1, list(PUT_OFF.workers[1][:-1])), "is missing"),
    "the first stage puts off": (
        _with(PUT_OFF, 0, [*PUT_OFF.workers[0], Action(Kind.WEIGHTS, 1)]),
        "belongs elsewhere",
    ),
    "an update in the middle of a group": (
        _with(FLUSHED, 1, [*FLUSHED.workers[1][8:], *FLUSHED.workers[1][:8]]),
        "ascending",
    ),
    "a worker too few": (replace(STRAIGHT, workers=STRAIGHT.workers[:3]), "workers"),
    "groups mixed": (_swap(GROUPS, 1, 3, 4), "mixed"),
    # Stage 3 wants B1 before it runs F2, stage 4 wants F2 before it runs B1.
    "circular wait": (
        _swap(_swap(replace(STRAIGHT, in_flight=(4, 3, 2, 2)), 3, 1, 2), 2, 1, 2),
        "deadlock",
    ),
    "a minibatch from nowhere": (
        _with(STRAIGHT, 3, [*STRAIGHT.workers[3], Action(Kind.FORWARD, 9)]),
        "belongs elsewhere",
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_caught(name: str) -> None:
    mutant, word = MUTANTS[name]
    found = problems(mutant)
    assert found, "the mutant was not caught"
    assert any(word in sentence for sentence in found), found


def test_lists_that_run_without_a_barrier_can_stop_at_one() -> None:
    plain = one_f_one_b([1, 4, 1, 1], 13)
    assert problems(plain) == []
    assert "deadlock" in problems(plain, barrier=True)[0]
    assert problems(one_f_one_b([1, 4, 1, 1], 13, barrier=True), barrier=True) == []


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: one_f_one_b([1, 0], 4), "replica"),
        (lambda: one_f_one_b([1, 1], 0), "minibatch"),
        (lambda: one_f_one_b([1, 1], 4, in_flight=0), "in flight"),
        (lambda: one_f_one_b([1, 1], 4, drains=[3, 2]), "drains"),
        (lambda: one_f_one_b([1, 1], 4, forward_s=[1.0]), "stages"),
        (lambda: one_f_one_b([1, 1], 4, forward_s=[math.nan, 1.0]), r"forward_s is \[nan, 1.0\]"),
        (lambda: one_f_one_b([1, 1], 4, backward_s=[1.0, -1.0]), "backward_s is"),
        (lambda: flush([1, 1], 4, 4, link_s=[math.inf]), "link_s is"),
        (
            lambda: flush([1, 1], 4, 4, zero_bubble=True, backward_s=[2, 2], weights_s=[3, 3]),
            "at most backward_s",
        ),
        (lambda: gpipe([1], 4, 0), "group"),
        (lambda: parse_schedule("what"), "line 1"),
        (lambda: parse_schedule(str(STRAIGHT).replace("F3", "X3")), "line 2"),
        (lambda: parse_schedule("\n".join(str(STRAIGHT).splitlines()[:3])), "workers"),
        (lambda: parse_schedule(str(STRAIGHT).replace("in_flight=4-3-2-1", "in_flight=4-3")), "line 1"),
        (lambda: parse_schedule(str(GROUPS).replace("group=4", "group=0")), "line 1"),
        (lambda: parse_schedule(str(REPLICATED).replace("replicas=2-1", "replicas=2-0-1")), "line 1"),
        (lambda: parse_schedule(str(DRAINED).replace("drains=4-8", "drains=8-4")), "line 1"),
        (lambda: parse_schedule(str(STRAIGHT).replace("minibatches=8", "minibatches=9")), "line 1"),
    ],
)
def test_bad_input_is_one_sentence(make, word: str) -> None:
    with pytest.raises(ScheduleError, match=word):
        make()
