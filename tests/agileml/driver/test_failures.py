"""Deaths of processes are held against user code only where the machine lives on."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ray.exceptions import RayTaskError

from agileml.checkpoints.errors import DamagedError, StoreError
from agileml.core.protocol.commands import Halt, HaltKind
from agileml.driver.failures import Death, Failures, begin_error, cause_of, halt_error
from agileml.errors import CheckpointsUnreadError, RunError, StateLostError
from tests.thorough import examples

STEPS = st.lists(st.tuples(st.sampled_from(["died", "lives", "lost"]), st.sampled_from("abc")), max_size=60)


@settings(deadline=None, derandomize=True, max_examples=examples(300))
@given(STEPS, st.integers(0, 4))
def test_a_death_counts_when_the_machine_lives_and_never_when_it_is_lost(
    steps: list[tuple[str, str]], most: int
) -> None:
    failures = Failures(most)
    last: dict[str, str] = {}  # by node: the last thing that is known of it
    counted = 0
    for number, (what, node) in enumerate(steps):
        match what:
            case "died":
                failures.died(node, Death(f"m{number}", "gone"))
            case "lives":
                assert (failures.machine_lives(node) is not None) == (last.get(node) == "died")
                counted += last.get(node) == "died"
            case "lost":
                failures.machine_lost(node)
        last[node] = what
        assert len(failures.counted) == counted
        assert failures.is_too_many == (counted > most)


def test_who_loses_machines_is_never_told_of_user_code() -> None:
    failures = Failures(0)
    for number in range(100):
        failures.died(f"n{number}", Death(f"m{number}", "gone"))
        failures.machine_lost(f"n{number}")
    assert not failures.is_too_many
    assert failures.blamed("no reliable machine is left") == "no reliable machine is left"


def test_the_verdict_and_the_blame_name_the_cause() -> None:
    failures = Failures(1)
    failures.died("a", Death("m1", "exit code 3"))
    assert failures.blamed("all is lost") == (
        "all is lost; before that the process of machine m1 ended by itself (exit code 3)"
    )
    failures.machine_lives("a")
    failures.died("b", Death("m2", "out of memory"))
    failures.machine_lives("b")
    assert failures.verdict() == (
        "2 processes ended on machines that live, more than max_failures = 1: user code exits or crashes, or "
        "memory runs out; the last: the process of machine m2 ended by itself (out of memory)"
    )


def test_the_cause_is_what_matters_of_rays_words() -> None:
    said = (
        "The actor died unexpectedly before finishing this task.\n\tclass_name: MachineActor\n\tpid: 12\n"
        "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: "
        "Worker unexpectedly exits with a connection error code 2. End of file. Some common causes include: (1) ..."
    )
    assert cause_of(said) == "Worker unexpectedly exits with a connection error code 2. End of file"
    assert cause_of("") == "no reason known"


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        (HaltKind.USER_CODE, RunError),
        (HaltKind.BROKEN, RunError),
        (HaltKind.LOST, StateLostError),
        (HaltKind.UNREAD, CheckpointsUnreadError),
    ],
)
def test_the_error_of_a_halt_says_whether_the_run_may_begin_again(
    kind: HaltKind, error: type[RunError]
) -> None:
    found = halt_error(Halt(kind, "so it ended", "a trace"), Failures(1))
    assert (type(found), str(found)) == (error, "so it ended")


def test_a_controller_that_cannot_read_the_checkpoints_may_be_started_again() -> None:
    def raised(cause: Exception) -> Exception:
        return RayTaskError("begin", "a traceback", cause).as_instanceof_cause()

    assert type(begin_error("it cannot start", raised(StoreError("no answer")))) is CheckpointsUnreadError
    for other in (DamagedError("half a file"), ValueError("a bug")):
        assert type(begin_error("it cannot start", raised(other))) is RunError


def test_what_a_process_that_cannot_start_says_has_no_secret() -> None:
    """An application that reads its data in its constructor is made on each machine."""
    said = "Max retries exceeded with url: /a.npz?sig=abc"
    told = begin_error(
        "it cannot start", RayTaskError("begin", f"https://host/a?sig=abc: {said}", OSError(said))
    )
    assert "https://host/a?..." in str(told) and "/a.npz?..." in str(told) and "abc" not in str(told)
