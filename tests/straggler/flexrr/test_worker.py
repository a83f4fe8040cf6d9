"""FlexRR's protocol: by the book, under 5,000 random schedules, and with its rules broken one by one."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from straggler.flexrr.groups import helper_groups
from straggler.flexrr.help_queue import HelpQueue
from straggler.flexrr.protocol import (
    BegunHelping,
    Bundle,
    CancelAck,
    CancelHelp,
    ClockDone,
    Compute,
    Cut,
    Discard,
    DoThis,
    FlexRrParameters,
    HelpCompleted,
    Progress,
    ProgressReport,
    Push,
    Received,
    Send,
    StartClock,
    Stop,
    TaskDone,
    WakeAt,
)
from straggler.flexrr.tasks import Fate, Offer, Offers
from straggler.flexrr.worker import FlexRrWorker
from tests.straggler.flexrr.protocol_model import Model, ViolationError
from tests.thorough import examples

SCHEDULES = 5000


@pytest.mark.parametrize("schedules", [1500, pytest.param(SCHEDULES, marks=pytest.mark.slow)])
def test_random_schedules(schedules: int, capsys: pytest.CaptureFixture[str]) -> None:
    seen: Counter = Counter()
    for seed in range(schedules):
        try:
            seen += Model(FlexRrWorker, seed).run()
        except ViolationError as violation:
            pytest.fail(f"Model(FlexRrWorker, seed={seed}): {violation}")
    with capsys.disabled():
        print(f"\nFlexRR: {schedules} schedules clean; {dict(sorted(seen.items()))}")
    for what in ("moved", "both started", "death", "lost", "doubled", "CancelAck", "duplicate"):
        assert seen[what] > schedules / 100, what


# Rules of the protocol, each broken by a replacement of one method: called with the original first.


def a_cancelled_range_is_pushed_without_waiting_for_the_answer(original, self):
    self.fate = Fate.SETTLED
    return True


def the_helper_keeps_cancelled_requests(original, self):
    pass


def a_late_request_is_taken_up_after_its_cancel(original, self, helpee, request):
    return False


def the_helper_denies_that_it_has_begun(original, self, helpee, cancel):
    answer = original(self, helpee, cancel)
    return replace(answer, begun=False) if isinstance(answer, CancelAck) else answer


def the_next_clock_does_not_wait_for_helpers(original, self):
    return all(offer.fate in (Fate.SETTLED, Fate.BEGUN) for offer in self)


def no_question_is_asked_again(original, self):
    return []


def ranges_of_a_dead_helper_do_not_come_back(original, self, helper):
    return [offer for offer in original(self, helper) if offer.fate is Fate.OFFERED]


def a_range_that_was_given_away_is_computed_as_well(original, self, event, now_ns):
    stop = self.stop
    commands = original(self, event, now_ns)
    if any(isinstance(one, Send) and isinstance(one.message, DoThis) for one in commands):
        self.stop = stop
    return commands


def a_doubled_request_is_served_twice(original, self, helpee, request):
    return False


def a_held_result_is_pushed_when_a_helper_has_begun(original, self, event, now_ns):
    commands = original(self, event, now_ns)
    return [
        Push(one.bundle) if isinstance(one, Discard) and one.bundle.owner == self.worker else one
        for one in commands
    ]


def items_that_the_helper_does_not_hold_are_given(original, self, units):
    return 0


MUTANTS = [
    (Offer.computed, a_cancelled_range_is_pushed_without_waiting_for_the_answer),
    (HelpQueue.drop_cancelled, the_helper_keeps_cancelled_requests),
    (HelpQueue.is_cancelled, a_late_request_is_taken_up_after_its_cancel),
    (HelpQueue.cancel, the_helper_denies_that_it_has_begun),
    (Offers.all_settled, the_next_clock_does_not_wait_for_helpers),
    (Offers.unanswered, no_question_is_asked_again),
    (Offers.open_at, ranges_of_a_dead_helper_do_not_come_back),
    (FlexRrWorker.handle, a_range_that_was_given_away_is_computed_as_well),
    (HelpQueue.was_begun, a_doubled_request_is_served_twice),
    (FlexRrWorker.handle, a_held_result_is_pushed_when_a_helper_has_begun),
    (FlexRrParameters.first_replicated, items_that_the_helper_does_not_hold_are_given),
]


@pytest.mark.parametrize("percent", range(5, 101, 5))
def test_the_replicated_share_is_the_decimal_that_was_written(percent: int) -> None:
    for units in range(1, 200):
        first = FlexRrParameters(replication=percent / 100).first_replicated(units)
        assert first == -(-(100 - percent) * units // 100)


@pytest.mark.parametrize(("target", "broken"), MUTANTS, ids=lambda each: each.__name__)
def test_mutants_are_caught(
    target: Callable[..., Any], broken: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = {kind.__name__: kind for kind in (FlexRrParameters, FlexRrWorker, HelpQueue, Offer, Offers)}
    class_name, _, method = target.__qualname__.partition(".")
    monkeypatch.setattr(owner[class_name], method, lambda *arguments: broken(target, *arguments))
    for seed in range(SCHEDULES):
        try:
            Model(FlexRrWorker, seed).run()
        except ViolationError:
            return
    pytest.fail(f"survived {SCHEDULES} schedules")


# --- by the book -----------------------------------------------------------------------------------------

SECOND = 1_000_000_000


def worker(**parameters: float) -> FlexRrWorker:
    """Worker 14 of the thesis' example, at clock 4 of 100 units after two seconds of each clock."""
    groups = helper_groups(64, 8, 4)
    machine = FlexRrWorker(14, groups.helpers[14], groups.helpees[14], FlexRrParameters(**parameters))
    for clock in range(4):
        machine.handle(StartClock(clock, 100), clock * 2 * SECOND)
        machine.handle(TaskDone(), (clock + 1) * 2 * SECOND)
    machine.handle(StartClock(4, 100), 8 * SECOND)
    return machine


def test_groups_are_the_printed_example() -> None:
    groups = helper_groups(64, 8, 4)
    assert groups.helpers[14] == (6, 13, 12, 11)
    assert groups.helpees[14] == (8, 9, 15, 22)


@settings(deadline=None, derandomize=True, max_examples=examples(300))
@given(st.integers(1, 70), st.integers(1, 20), st.integers(0, 17))
def test_groups_of_any_size(workers: int, machines: int, size: int) -> None:
    used = min(machines, workers)
    rounds = {m: len(range(m, workers, used)) for m in range(used)}
    possible = min(used - 1 + (rounds[m] > 1) for m in range(used))
    if size > possible:
        with pytest.raises(ValueError, match="possible helpers"):
            helper_groups(workers, machines, size)
        return
    groups = helper_groups(workers, machines, size)
    for w, helpers in enumerate(groups.helpers):
        assert len(set(helpers)) == len(helpers) == size
        assert w not in helpers
        assert all(w in groups.helpees[h] for h in helpers)
        same = [h for h in helpers if h % used == w % used]
        assert len(same) == (size > 0 and rounds[w % used] > 1)
        assert len({h % used for h in helpers}) == size
    assert sum(map(len, groups.helpees)) == workers * size


def test_the_protocol_step_by_step() -> None:
    slow = worker()
    assert slow.behind(6, 0) == 0
    # At 10 s the slow worker has done 40 of 100 units; a helper reports 4.75 at 9.4 s.
    assert slow.handle(Progress(40), 10 * SECOND) == []
    told = Received(6, ProgressReport(4.75, 9_400_000_000))
    commands = slow.handle(told, 10 * SECOND)
    # Algorithm 1: 4.75 - 4.40 + (10 - 9.4) / 2 = 0.65 > 20%: the initial 2.5% from the end (97.5 -> 98).
    first = DoThis(Bundle(4, 14, 98, 100), 10 * SECOND)
    assert commands == [Send(6, first), Cut(98)]
    # It began: a follow-up of 5%.
    second = DoThis(Bundle(4, 14, 93, 98), 11 * SECOND)
    assert slow.handle(Progress(50), 11 * SECOND) == []
    assert slow.handle(Received(6, BegunHelping(first)), 11 * SECOND) == [Send(6, second), Cut(93)]
    # Own work ends: its range is pushed, the report is out, what nobody began is cancelled and computed here.
    slow.handle(Progress(70), 12 * SECOND)
    commands = slow.handle(TaskDone(), 13 * SECOND)
    cancel = CancelHelp(second, 13 * SECOND)
    assert commands == [Push(Bundle(4, 14, 0, 93)), Send(6, cancel), Compute(second.bundle)]
    # The answer: it has begun after all. Ours is void; wait for both.
    commands = slow.handle(Received(6, CancelAck(second, begun=True)), 13 * SECOND)
    assert commands == [Discard(second.bundle), WakeAt(13_500_000_000), Stop()]
    slow.handle(Received(6, HelpCompleted(second)), 14 * SECOND)
    assert ClockDone(4) in slow.handle(Received(6, HelpCompleted(first)), 14 * SECOND)


def test_a_worker_reports_to_those_it_may_help() -> None:
    commands = worker().handle(Progress(75), 10 * SECOND)
    report = ProgressReport(4.75, 10 * SECOND)
    assert commands == [Send(helpee, report) for helpee in (8, 9, 15, 22)]


def test_nobody_is_asked_below_the_threshold() -> None:
    slow = worker()
    slow.handle(Progress(60), 10 * SECOND)
    assert slow.handle(Received(6, ProgressReport(4.75, 10 * SECOND)), 10 * SECOND) == []
    # 0.15 behind; 0.2 s later it is 0.25 by the same report.
    assert len(slow.handle(Received(11, ProgressReport(4.75, 9_800_000_000)), 10 * SECOND)) == 2


@pytest.mark.parametrize(
    ("clock", "cancelled_at", "expected"),
    [
        (5, None, "dropped"),  # of an iteration it has not reached
        (4, None, "kept"),  # for the end of its own
        (3, None, "begun"),  # at once
        (3, 9, "dropped"),  # cancelled before it came
        (3, 6, "begun"),  # an older cancel
    ],
)
def test_helping_decision(clock: int, cancelled_at: int | None, expected: str) -> None:
    """Algorithm 2."""
    helper = worker()
    asked = DoThis(Bundle(clock, 15, 90, 95), 7)
    if cancelled_at is not None:
        helper.handle(Received(15, CancelHelp(asked, cancelled_at)), 8 * SECOND)
        asked = DoThis(asked.bundle, 7 if cancelled_at == 9 else 8)
    commands = helper.handle(Received(15, asked), 9 * SECOND)
    begun = [Compute(asked.bundle), Send(15, BegunHelping(asked))]
    assert commands == (begun if expected == "begun" else [])
    if expected == "begun":  # then back to its own work
        assert helper.handle(TaskDone(), 9 * SECOND) == [
            Push(asked.bundle),
            Send(15, HelpCompleted(asked)),
            Compute(Bundle(4, 14, 0, 100)),
        ]
    elif expected == "kept":
        assert helper.handle(TaskDone(), 10 * SECOND)[-2:] == begun


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ({"initial": 0.0}, "initial is 0"),
        ({"follow_up": 1.5}, "follow_up is 1.5"),
        ({"checks": 0}, "checks 0"),
        ({"group_size": -1}, "group_size -1"),
        ({"replication": float("nan")}, "replication is nan"),
    ],
)
def test_bad_parameters_are_named(parameters: dict, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        FlexRrParameters(**parameters)
