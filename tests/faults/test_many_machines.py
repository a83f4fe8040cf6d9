"""Machines come and go by the hundreds: nothing of those that went stays, and the load of a busy hour loses nothing."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from agileml.core.protocol.inputs import NodeDown, Notice, Stop
from agileml.driver.sent_bytes import SentBytes
from agileml.events.run import MachineReleased, MachinesJoined, MembershipChanged
from agileml.events.terms import Loss, Tier
from agileml.process.head import HeadState
from tests.agileml.process.engine_rig import reference
from tests.faults.fault_rig import MLR, FaultRig, job

ROOT = Path(__file__).resolve().parents[2]
REPLACED = 8


class Replacing:
    """One transient machine after the other is replaced: another joins, then the oldest gets a notice and leaves."""

    def __init__(self) -> None:
        self.left: list[str] = []
        self.bytes_sent: list[int] = []
        self._sent = SentBytes()
        self.spent: dict[str, tuple[float, ...]] = {}
        self.peers: set[str] = set()  # of the machine that stays
        self.clocks = 0
        self._newest, self._is_over = "m2", False

    def __call__(self, rig: FaultRig, state: HeadState) -> None:
        self._sent.add(state.bytes_sent)
        self.bytes_sent.append(sum(self._sent.by_kind().values()))
        self.spent = state.spent_s
        self.clocks = state.finished.clock if state.finished else 0
        for each in state.events:
            match each.event:
                case MachinesJoined(machines) if self._newest in machines:
                    oldest = f"m{len(self.left) + 1}"
                    rig.head.tell(Notice(oldest, time.time() + 60.0))
                case MachineReleased(machine):
                    rig.machines[machine].join(60.0)
                    rig.killed.add(machine)
                    rig.head.tell(NodeDown(machine, Loss.PROCESS_ENDED))
                    self.left.append(machine)
                    if len(self.left) < REPLACED:
                        self._newest = rig.add(Tier.TRANSIENT).name
        # The newest machine's first seconds come with its first report, a while after it joined.
        if len(self.left) == REPLACED and f"m{REPLACED + 1}" in self.spent and not self._is_over:
            self._is_over = True
            self.peers = rig.machines["m0"]._transport.counters.peers.keys() - {"controller"}
            rig.head.tell(Stop())


@pytest.mark.slow
def test_nothing_stays_of_machines_that_went(tmp_path: Path) -> None:
    values = job(MLR, clocks=100_000, pace={"unit_s": 0.002})
    watch = Replacing()
    ran = FaultRig(values, tmp_path, watch).finish()
    assert len(watch.left) == REPLACED
    members, last = {"m0", f"m{REPLACED + 1}"}, {f"m{REPLACED}"}
    assert watch.peers <= members | last
    assert members <= watch.spent.keys() <= members | last
    assert watch.bytes_sent == sorted(watch.bytes_sent)  # those of machines that went still count
    changes = ran.of(MembershipChanged)
    assert not any(change.rolled_back or change.redone for change in changes)
    assert ran.sha256 == reference({**values, "clocks": watch.clocks})


@pytest.mark.slow
def test_two_hundred_joins_and_notices_a_minute_lose_nothing() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "bench_load.py"), "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=400)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
