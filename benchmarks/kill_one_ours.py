"""Ours in kill_one: machines of a run on local nodes die, stand still or are told to go, one after the other."""

from __future__ import annotations

import contextlib
import math
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from kill_one_task import MACHINES, SLICES

import agileml
from agileml.cluster.fleet import Appeared, FleetEvent, Leaving, LocalFleet
from agileml.config.job import from_values
from agileml.events.run import ClockDone, CutCommitted, MembershipChanged, RunStarted
from agileml.events.schema import Log, of_type
from agileml.events.terms import Tier
from agileml.process.spec import RunSpec
from agileml.runs.event_log import EVENTS, read_events

FROZEN_S = 2.5  # Ray itself gives a machine up after 3.5 s
BETWEEN_S = (1.0, 2.0)  # from everybody being at work to the next strike


class DoneError(Exception):
    """All strikes are done: the run need not go on."""


@dataclass(frozen=True)
class Cost:
    """What one strike cost. Seconds from the strike on."""

    kind: str
    resumed_s: float  # until a clock is complete that was not complete before
    passed_s: float  # until the run is where it would be without the clocks done again
    clocks_redone: int
    clock_s: float  # a clock of those who are left


class StrikingFleet(LocalFleet):
    """Local nodes, one of whose transient ones is struck now and then; another takes its place."""

    def __init__(self, spec: RunSpec, strikes: Sequence[str], log: Path) -> None:
        super().__init__(spec)
        self._left = list(strikes)
        self._log = log
        self._draw = random.Random(0)
        self._due_s: float | None = None
        self.struck: list[tuple[str, float]] = []  # kind, Unix time

    def poll(self) -> list[FleetEvent]:
        events = super().poll()
        if self._orders or self._frozen or any(isinstance(event, Appeared) for event in events):
            self._due_s = None
        elif self._due_s is None:
            if self._all_work():
                self._due_s = time.monotonic() + self._draw.uniform(*BETWEEN_S)
        elif time.monotonic() >= self._due_s:
            if not self._left:
                raise DoneError
            self._due_s = None
            events += self._strike_one(self._left.pop(0))
        return events

    def _all_work(self) -> bool:
        """True when the newest view has everybody and a cut was committed under it."""
        events = read_events(self._log)
        changes = of_type(events, MembershipChanged)
        if not changes or changes[-1].event.reliable + changes[-1].event.transient < MACHINES:
            return False
        return any(cut.t_s > changes[-1].t_s for cut in of_type(events, CutCommitted))

    def _strike_one(self, kind: str) -> list[FleetEvent]:
        members = [m for m in self._cluster.tiered_nodes() if m.tier == Tier.TRANSIENT]
        node_id = self._draw.choice(members).node_id
        self.struck.append((kind, time.time()))
        if kind == "freeze":
            self._cluster.freeze(node_id)
            self._frozen[node_id] = time.monotonic() + FROZEN_S
            return []
        self._orders.append((Tier.TRANSIENT, True))
        if kind == "notice":
            return [Leaving(node_id, time.time() + 30.0)]
        self._cluster.kill(node_id)
        return []


def measure(strikes: Sequence[str]) -> list[Cost]:
    """Train until all strikes were done; the cost of each."""
    with tempfile.TemporaryDirectory(prefix="kill-one-") as name:
        out = Path(name) / "run"
        config = from_values(
            {
                "application": "kill_one_task:Paced",
                "clocks": 1_000_000,  # it ends when the strikes do
                "slices": SLICES,
                "optimizer": {"kind": "sgd", "learning_rate": 0.1},
                "machines": {"reliable": 1, "transient": MACHINES - 1, "max": 4},
                "out": str(out),
            }
        )
        fleet = StrikingFleet(RunSpec("kill-one", config), strikes, out / EVENTS)
        with contextlib.suppress(DoneError):
            agileml.run(config, name="kill-one", fleet=fleet)
        return costs(read_events(out / EVENTS), fleet.struck)


def costs(events: Log, struck: Sequence[tuple[str, float]]) -> list[Cost]:
    """What the log of a run says of each strike."""
    start = of_type(events, RunStarted)[0]
    strikes = [(kind, unix_s - start.event.unix_s + start.t_s) for kind, unix_s in struck]
    found = []
    for (kind, at_s), (_, until_s) in pairwise([*strikes, ("", math.inf)]):
        mine = [each for each in events if at_s < each.t_s < until_s]
        changes = of_type(mine, MembershipChanged)
        before = max(done.event.clock for done in of_type(events, ClockDone) if done.t_s <= at_s)
        clocks = [done for done in of_type(mine, ClockDone) if done.t_s > changes[0].t_s]
        alone = [done.t_s for done in clocks][:6]
        found.append(
            Cost(
                kind,
                resumed_s=min(done.t_s for done in clocks) - at_s,
                passed_s=min(done.t_s for done in clocks if done.event.clock > before) - at_s,
                clocks_redone=sum(change.event.redone for change in changes),
                clock_s=statistics.median(later - earlier for earlier, later in pairwise(alone)),
            )
        )
    return found
