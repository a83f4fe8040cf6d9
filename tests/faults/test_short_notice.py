"""Over real sockets with slow links: after a notice too short for what must move everyone goes back at once."""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path
from typing import Any

import pytest

from agileml.core.protocol.inputs import Notice
from agileml.core.protocol.messages import Copy, Message, Part
from agileml.events.run import CutCommitted, MembershipChanged, ShortNoticeJudged
from agileml.events.terms import Way
from agileml.process.head import HeadState
from agileml.process.machine import Machine
from tests.agileml.process.engine_rig import Ran
from tests.faults.fault_rig import FaultRig, lasting, reference_of

BYTES_PER_S = 0.75e6
# 1.5 MB with its moments; each of two servers has a half, so that a cut takes a second: far more than the 0.3 s of it
# that count as heartbeats and round trips (`LinkRule.settle_s`), so the links are known to be slow.
MODEL = {
    "application": "mlr",
    "data": {"kind": "blobs", "examples": 300, "features": 2000, "classes": 64},
    "optimizer": {"kind": "adam", "learning_rate": 0.05},
    "clocks_per_pass": 4,
}


class FarMachine(Machine):
    """A machine whose link carries cuts and moves one after the other, at BYTES_PER_S."""

    def __init__(self, *made_of: Any) -> None:
        super().__init__(*made_of)
        self._on_the_link: deque[tuple[float, str, Message]] = deque()
        self._link_free_s = 0.0

    def send(self, to: str, message: Any) -> None:
        if not isinstance(message, Part | Copy):
            super().send(to, message)
            return
        cut = message.cut if isinstance(message, Part) else message.copy.cut
        self._link_free_s = max(self._link_free_s, time.monotonic()) + cut.size_bytes / BYTES_PER_S
        self._on_the_link.append((self._link_free_s, to, message))

    def turn(self) -> None:
        super().turn()
        while self._on_the_link and self._on_the_link[0][0] <= time.monotonic():
            _, to, message = self._on_the_link.popleft()
            super().send(to, message)


class FarRig(FaultRig):
    """Gives a server a notice once a cut has shown how fast the links are.

    Kills it at the deadline, but not before the controller has decided: this is about decisions, and two processes on a
    busy computer may need more than the notice for one. For the same reason the job lasts until the partitions moved.
    """

    machine_type = FarMachine

    def __init__(self, values: Any, folder: Path, warning_s: float) -> None:
        self._warning_s, self._due_s, self.leaver = warning_s, 0.0, ""
        self._is_decided = False
        super().__init__(values, folder, FarRig._look)

    def _look(self, state: HeadState) -> None:
        if not self.leaver:
            if any(isinstance(each.event, CutCommitted) for each in state.events):
                self.leaver = f"m{len(self.machines) - 1}"
                self._due_s = time.time() + self._warning_s
                self.head.tell(Notice(self.leaver, self._due_s))
            return  # a late look shows the first view and the first cut together: only what comes now is an answer
        decisions = ShortNoticeJudged | MembershipChanged
        self._is_decided |= any(isinstance(each.event, decisions) for each in state.events)
        if self._is_decided and self.leaver not in self.killed and time.time() >= self._due_s:
            self.kill(self.leaver)
        if any(isinstance(each.event, MembershipChanged) for each in state.events):
            self.ask_to_stop()


def leave(warning_s: float, folder: Path) -> tuple[FarRig, Ran]:
    values = lasting(MODEL, partitions=4, stage=2)
    rig = FarRig(values, folder, warning_s)
    ran = rig.finish()
    assert ran.sha256 == reference_of(ran, values)
    return rig, ran


def test_a_notice_too_short_goes_back_at_once_to_the_same_bits(tmp_path: Path) -> None:
    # No time at all: clocks do not pass the slow link here, and count as what links carry beside a cut.
    rig, ran = leave(0.0, tmp_path)
    (note,) = ran.of(ShortNoticeJudged)
    assert note.machines == (rig.leaver,) and note.way is Way.ROLL_BACK
    assert note.left_s <= 0.0 and f"{rig.leaver} goes in 0" in note.reason
    view = ran.of(MembershipChanged)[1]
    assert view.rolled_back and note.reason in view.reason
    assert rig.leaver not in view.owners


@pytest.mark.slow
def test_a_notice_long_enough_does_nothing_again(tmp_path: Path) -> None:
    rig, ran = leave(30.0, tmp_path)
    assert not ran.of(ShortNoticeJudged)
    assert not any(view.rolled_back or view.redone for view in ran.of(MembershipChanged))
    assert rig.leaver not in ran.of(MembershipChanged)[-1].owners
