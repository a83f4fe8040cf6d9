"""Whether a supervised run begins again, and when: by its record alone."""

import math
import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agileml.errors import CHECKPOINTS_UNREAD_CODE, CONTROLLER_LOST_CODE, HEAD_LOST_CODE, STATE_LOST_CODE
from agileml.runs.supervision import Restart
from agileml.session.restarts import LONGEST_WAIT_S, Next, judge, missing_clock


def restarts(*clocks: int) -> list[Restart]:
    return [Restart(float(index), "killed", clock) for index, clock in enumerate(clocks)]


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (-signal.SIGKILL, "its process was ended by SIGKILL"),
        (HEAD_LOST_CODE, "Ray's head has ended"),
        (STATE_LOST_CODE, "the machines that held its state have ended"),
        (CONTROLLER_LOST_CODE, "its controller did not come back"),
        (CHECKPOINTS_UNREAD_CODE, "its checkpoints could not be read"),
        (2, "its input was refused"),
        (1, "its process ended without a result (exit code 1)"),
    ],
)
def test_the_first_restart_comes_at_once_and_says_why(code: int, said: str) -> None:
    verdict = judge(code, 40, [], 3, is_stopping=False)
    assert (verdict.next, verdict.wait_s, verdict.cause) == (Next.AGAIN, 0.0, said)
    assert verdict.reason == f"{said}; the run goes on from the checkpoint of clock 40 (restart 1)"


def test_restarts_without_a_newer_checkpoint_wait_longer_and_longer() -> None:
    waits_s = [judge(-9, 40, restarts(*[40] * n), 10, is_stopping=False).wait_s for n in range(9)]
    assert waits_s == [0, 1, 2, 4, 8, 16, 32, LONGEST_WAIT_S, LONGEST_WAIT_S]
    for count in (1024, 1025, 5000):
        verdict = judge(-9, 40, restarts(*[40] * count), 10_000, is_stopping=False)
        assert (verdict.next, verdict.wait_s) == (Next.AGAIN, LONGEST_WAIT_S)


def test_a_newer_checkpoint_begins_the_count_anew() -> None:
    assert judge(-9, 40, restarts(40, 40, 40), 3, is_stopping=False).next is Next.GIVE_UP
    verdict = judge(-9, 41, restarts(40, 40, 40), 3, is_stopping=False)
    assert (verdict.next, verdict.wait_s) == (Next.AGAIN, 0.0)
    assert verdict.reason.endswith("(restart 4)")


def test_the_same_command_given_again_tries_as_often_again() -> None:
    before = restarts(40, 40, 40, 40)
    verdict = judge(-9, 40, before, 3, is_stopping=False, earlier=4)
    assert (verdict.next, verdict.wait_s) == (Next.AGAIN, 0.0)
    assert verdict.reason.endswith("(restart 5)")
    verdict = judge(-9, 40, [*before, *restarts(40, 40, 40)], 3, is_stopping=False, earlier=4)
    assert verdict.next is Next.GIVE_UP


def test_checkpoints_that_cannot_be_read_are_no_newer_ones_and_no_missing_ones() -> None:
    verdict = judge(-9, None, restarts(30, 40, 40), 3, is_stopping=False)
    assert (verdict.next, verdict.wait_s, verdict.clock) == (Next.AGAIN, 2.0, 40)
    assert "goes on in 2 s from its newest checkpoint, which cannot be read just now" in verdict.reason
    assert judge(-9, None, restarts(40, 40, 40), 3, is_stopping=False).next is Next.GIVE_UP
    assert judge(-9, None, [], 3, is_stopping=False).clock == 0


@pytest.mark.parametrize(
    ("clock", "saved", "resume", "missing"),
    [
        (0, None, None, None),  # it died before its first checkpoint
        (40, None, None, 40),  # the supervisor has seen one, of which the log does not know yet
        (0, 40, None, 40),
        (40, 30, "old", 30),
        (40, None, "old", None),  # what the supervisor has seen is where the run began
    ],
)
def test_a_checkpoint_is_missed_that_the_log_or_the_supervisor_has_seen(
    clock: int, saved: int | None, resume: str | None, missing: int | None
) -> None:
    assert missing_clock(restarts(clock)[0], saved, resume) == missing


def test_a_run_that_was_told_to_stop_is_not_started_again() -> None:
    verdict = judge(-9, 0, [], 3, is_stopping=True)
    assert verdict.next is Next.STOP
    assert "the same command goes on from its start" in verdict.reason


@given(st.lists(st.integers(0, 5)).map(sorted), st.integers(1, 4))
def test_a_run_that_makes_progress_is_never_given_up_and_one_that_makes_none_always(
    clocks: list[int], most: int
) -> None:
    """Against counting by hand, over a whole life in which the process always dies."""
    life: list[Restart] = []
    for clock in clocks:
        same = [each for each in life if each.clock == clock]
        verdict = judge(-9, clock, life, most, is_stopping=False)
        assert (verdict.next is Next.GIVE_UP) == (len(same) >= most)
        if verdict.next is Next.GIVE_UP:
            return
        assert verdict.wait_s == (min(LONGEST_WAIT_S, math.ldexp(1, len(same) - 1)) if same else 0)
        life.append(Restart(0.0, verdict.cause, clock))
