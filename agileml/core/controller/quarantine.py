"""The decision about a machine on which work failed: send it away, or end the run.

The same units may fail because of the machine or because of the user's code. A second machine decides: if the same
units fail there, the code or the data is at fault, and the run ends with both errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agileml.core.controller.control import Control
from agileml.core.protocol.commands import HaltKind, Released
from agileml.core.protocol.messages import Failure, Release
from agileml.events.run import MachineLost, MachineQuarantined, UserCodeFailed
from agileml.events.terms import Loss, Task


@dataclass(frozen=True)
class Case:
    """The failure of one machine."""

    machine: str
    failure: Failure


@dataclass(frozen=True)
class Verdict:
    """`ends`: the run ends, with this reason and trace; else the machine is quarantined."""

    ends: bool
    reason: str
    trace: str = ""


def is_same_work(one: Failure, other: Failure) -> bool:
    """True if two machines failed at the same work: their start, slices in common, or units in common of one clock."""
    if one.work is not other.work:
        return False
    if one.work in (Task.START, Task.SERVE):
        return True
    return one.clock == other.clock and bool(one.units & other.units)


def judge_failure(new: Case, before: Sequence[Case], most: int, *, is_last_reliable: bool) -> Verdict:
    """Judge a failure. before: failures of the machines that were sent away; the run survives `most` of these.

    is_last_reliable: no other machine could keep the result.
    """
    said = f"machine {new.machine}: {new.failure.problem}"
    if new.failure.work is Task.RUN:
        return Verdict(True, said, new.failure.trace)
    for case in before:
        if case.machine != new.machine and is_same_work(case.failure, new.failure):
            reason = f"{said}; the same failed on machine {case.machine} before: {case.failure.problem}"
            return Verdict(True, reason, _traces(case, new))
    if is_last_reliable:
        return Verdict(True, said, new.failure.trace)
    if len(before) >= most:
        many = f"{said}; work has failed on {len(before) + 1} machines, more than max_failures = {most}"
        return Verdict(True, many, new.failure.trace)
    return Verdict(False, f"{said}; its work goes to other machines ({len(before) + 1} of {most})")


def _traces(*cases: Case) -> str:
    traces = [f"on machine {case.machine}:\n{case.failure.trace}" for case in cases if case.failure.trace]
    return "\n".join(traces)


class Quarantine:
    """Keeps the failures of a run's machines, and sends machines away. A new controller starts without any failure."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._cases: list[Case] = []

    def failed(self, node: str, failure: Failure) -> None:
        """Send away a machine whose work failed, or end the run."""
        control, case = self._control, Case(node, failure)
        most = control.settings.max_failures
        is_last = self._has_all() and control.members.is_last_reliable(node)
        verdict = judge_failure(case, self._cases, most, is_last_reliable=is_last)
        if verdict.ends:
            control.note(UserCodeFailed(node, failure.problem, failure.trace))
            control.halt(HaltKind.USER_CODE, verdict.reason, verdict.trace)
            return
        self._cases.append(case)
        said = failure.problem, failure.trace
        control.note(MachineQuarantined(node, failure.work, failure.clock, *said, len(self._cases), most))
        self._give_up(node, Loss.QUARANTINED, failure.problem)

    def _has_all(self) -> bool:
        """True once every machine of the start has appeared: before that, another reliable one may come."""
        control = self._control
        return control.view is not None or len(control.members.nodes) >= control.settings.expected

    def end_without_reliable(self) -> None:
        """End a run that cannot begin because its reliable machines were sent away."""
        control = self._control
        if control.view is None and self._cases and self._has_all() and not control.members.has_reliable():
            case = self._cases[-1]
            reason = (
                f"machine {case.machine}: {case.failure.problem}; no reliable machine is left to begin with"
            )
            control.halt(HaltKind.USER_CODE, reason, case.failure.trace)

    def give_up_late(self) -> None:
        """Give up the machines that did not get ready in time."""
        control, limit_s = self._control, self._control.settings.ready_limit_s
        members = control.view.member_set if control.view else frozenset()
        for member in control.members.late(members, control.now_s, limit_s):
            self._give_up(member.name, Loss.NOT_READY, f"after {limit_s:g} s")

    def _give_up(self, node: str, loss: Loss, detail: str) -> None:
        """Give up a machine as if it were lost."""
        control = self._control
        if control.members.send_away(node):
            control.send(node, Release(control.view.epoch if control.view else 0))
            control.ask(Released(node))
            control.note(MachineLost(node, loss, detail))
