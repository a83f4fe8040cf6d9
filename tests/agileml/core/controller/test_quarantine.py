"""A machine on which work fails is sent away; the same work failing on a second one ends the run with both traces."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agileml.core.controller.quarantine import Case, is_same_work, judge_failure
from agileml.core.protocol.commands import HaltKind, Released
from agileml.core.protocol.inputs import NodeFailed, NodeSeen, NodeUp, Received
from agileml.core.protocol.messages import Failure, Release
from agileml.events.run import MachineLost, MachineQuarantined
from agileml.events.terms import Loss, Task, Tier
from tests.agileml.core.fixtures import Machine
from tests.agileml.core.fixtures import scripts as scripts

CLOCK_3 = Failure("clock 3, slice 2: no such luck", "Traceback of t1", Task.COMPUTE, 3, 0b0100)
WORKS = st.builds(
    Failure,
    st.just("p"),
    st.just("t"),
    st.sampled_from([Task.START, Task.LOAD, Task.COMPUTE, Task.SERVE]),
    st.integers(0, 2),
    st.integers(0, 15),
)


@given(WORKS, WORKS)
def test_the_same_work_is_what_two_machines_had_in_common(one: Failure, other: Failure) -> None:
    has_common = any((one.units >> unit) & 1 and (other.units >> unit) & 1 for unit in range(4))
    wanted = one.work is other.work and (
        one.work in (Task.START, Task.SERVE) or (one.clock == other.clock and has_common)
    )
    assert is_same_work(one, other) == wanted == is_same_work(other, one)


@given(st.lists(WORKS, max_size=5), WORKS, st.integers(0, 4), st.booleans())
def test_a_failure_ends_the_run_for_one_of_three_reasons(
    before: list[Failure], new: Failure, most: int, is_last: bool
) -> None:
    cases = [Case(f"m{index}", failure) for index, failure in enumerate(before)]
    verdict = judge_failure(Case("new", new), cases, most, is_last_reliable=is_last)
    again = any(is_same_work(failure, new) for failure in before)
    assert verdict.ends == (again or is_last or len(before) >= most)
    assert verdict.reason.startswith("machine new: p")
    assert ("before: p" in verdict.reason) == again


def test_what_concerns_the_whole_run_ends_it_at_once() -> None:
    verdict = judge_failure(Case("m1", Failure("trusted_network: ...", "")), [], 3, is_last_reliable=False)
    assert verdict.ends


def test_the_machine_is_released_and_its_units_go_elsewhere(scripts) -> None:
    script = scripts()
    script.up("r0", "t1", "t2")
    sent = script.tell(Received("t1", CLOCK_3))
    [sick] = script.events_of(MachineQuarantined)
    assert (sick.machine, sick.work, sick.clock, sick.count, sick.of) == ("t1", Task.COMPUTE, 3, 1, 3)
    [lost] = script.events_of(MachineLost)
    assert (lost.machine, lost.loss) == ("t1", Loss.QUARANTINED)
    assert Released("t1") in sent
    assert any(isinstance(getattr(each, "message", None), Release) for each in sent)
    script.wait(2.0)
    assert script.workers == {"r0", "t2"}
    assert not script.halts


def test_the_same_units_on_a_second_machine_end_the_run_with_both_traces(scripts) -> None:
    script = scripts()
    script.up("r0", "t1", "t2")
    script.tell(Received("t1", CLOCK_3))
    script.wait(2.0)
    script.tell(
        Received("t2", Failure("clock 3, slice 2: again", "Traceback of t2", Task.COMPUTE, 3, 0b1100))
    )
    [halt] = script.halts
    assert halt.kind is HaltKind.USER_CODE
    assert halt.reason == (
        "machine t2: clock 3, slice 2: again; the same failed on machine t1 before: clock 3, slice 2: no such luck"
    )
    assert "Traceback of t1" in halt.trace and "Traceback of t2" in halt.trace


def test_the_last_reliable_machine_cannot_be_sent_away(scripts) -> None:
    script = scripts()
    script.up("r0", "t1")
    script.tell(Received("r0", CLOCK_3))
    assert script.halts[0].kind is HaltKind.USER_CODE


def test_a_process_that_cannot_start_counts_and_the_run_begins_without_it(scripts) -> None:
    script = scripts(expected=3)
    script.up("r0", "t1")
    script.machines["t2"] = Machine("t2", Tier.TRANSIENT, is_frozen=True)
    script.tell(NodeFailed(NodeUp("t2", Tier.TRANSIENT, True), Failure("it cannot start", "T", Task.START)))
    script.wait(1.0)
    assert script.view.members == ("r0", "t1")


def test_a_joiner_that_does_not_get_ready_is_given_up(scripts) -> None:
    script = scripts(ready_limit_s=5.0)
    script.up("r0", "t1")
    script.machines["t2"] = Machine("t2", Tier.TRANSIENT, is_frozen=True)
    script.tell(NodeUp("t2", Tier.TRANSIENT, True))
    for _ in range(14):
        script.wait(0.5)
        script.tell(NodeSeen("t2"))
    [lost] = script.events_of(MachineLost)
    assert (lost.machine, lost.loss) == ("t2", Loss.NOT_READY)
    assert script.workers == {"r0", "t1"}


def test_a_reliable_machine_may_fail_while_another_is_still_expected(scripts) -> None:
    script = scripts(expected=3)
    failed = Failure("it cannot start", "T", Task.START)
    script.machines["r0"] = Machine("r0", Tier.RELIABLE, is_frozen=True)
    script.tell(NodeFailed(NodeUp("r0", Tier.RELIABLE, True), failed))
    assert not script.halts
    script.up("r1", "t1")
    script.wait(1.0)
    assert script.view.members == ("r1", "t1")


def test_a_run_that_cannot_begin_without_reliable_machines_ends(scripts) -> None:
    script = scripts(expected=2)
    failed = Failure("it cannot start", "T", Task.START)
    script.machines["r0"] = Machine("r0", Tier.RELIABLE, is_frozen=True)
    script.tell(NodeFailed(NodeUp("r0", Tier.RELIABLE, True), failed))
    script.up("t1")
    script.wait(1.0)
    assert script.halts[0].reason == "machine r0: it cannot start; no reliable machine is left to begin with"
