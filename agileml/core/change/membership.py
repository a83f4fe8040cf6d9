"""The machines of a run as the controller knows them: which are alive, and which may own, back up or compute."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from agileml.core.protocol.inputs import Measured, NodeUp
from agileml.core.protocol.messages import Status
from agileml.core.stage.placement import Machines
from agileml.events.terms import Loss, Tier


@dataclass
class Member:
    """A machine as the controller knows it."""

    name: str
    tier: Tier
    admitted: bool
    last_message_s: float
    up_s: float
    status: Status | None = None
    ready_since_s: float | None = None
    deadline_s: float | None = None  # of its notice
    is_gone: bool = False  # its process is dead: it never comes back under this name
    is_silent: bool = False  # missed its heartbeats: it may come back
    is_doubted: bool = False  # reported lost when this controller had just slept, and not heard from since
    is_unreachable: bool = False  # nothing that is sent to it arrives, though its own messages may
    is_released: bool = False
    apart_since_s: float | None = None  # given up because it and another machine do not reach each other
    times_apart: int = 0
    measured: tuple[Measured, Measured] | None = None  # its first report and the newest
    capacity: float = 1.0  # how much it can compute, relative to other machines
    speed: float | None = None  # what it computes in a second of computing, in its latest reports
    unit_cost: float | None = None  # of its units, at its newest report

    def measure(self, report: Measured, unit_cost: float | None = 1.0) -> None:
        """Take a report of its totals. `unit_cost`: the work of one of its units, which differs between stages of a
        pipeline; None: it has no units. Units of different cost say nothing about its speed."""
        first, newest = self.measured or (report, report)
        units, seconds = report.units - newest.units, report.units_s - newest.units_s
        if units > 0 and seconds > 0 and unit_cost is not None and unit_cost == self.unit_cost:
            speed = units * unit_cost / seconds
            self.speed = speed if self.speed is None else (self.speed + speed) / 2
        self.measured, self.unit_cost = (first, report), unit_cost

    @property
    def computing(self) -> float | None:
        """The share of its time that its worker spent computing; None if unknown."""
        if self.measured is None or self.measured[1].at_s <= self.measured[0].at_s:
            return None
        first, newest = self.measured
        return min(1.0, (newest.compute_s - first.compute_s) / (newest.at_s - first.at_s))

    @property
    def loss(self) -> Loss:
        """How it was lost, if it is silent."""
        return Loss.DISCONNECTED if self.is_doubted else Loss.SILENT

    @property
    def is_alive(self) -> bool:
        return not (self.is_gone or self.is_silent or self.is_released or self.is_apart)

    @property
    def is_apart(self) -> bool:
        """True while the controller has given it up because of a broken link."""
        return self.apart_since_s is not None

    @property
    def away_since_s(self) -> float:
        """When it was last there, if it is not alive."""
        return (
            self.last_message_s
            if self.apart_since_s is None
            else min(self.last_message_s, self.apart_since_s)
        )

    @property
    def epoch(self) -> int:
        """The epoch of the view it works under."""
        return self.status.epoch if self.status else 0


@dataclass
class Membership:
    """All machines that appeared, in order of appearance, until `forget` drops those that are gone."""

    timeout_s: float
    nodes: dict[str, Member] = field(default_factory=dict)
    checked_s: float = 0.0  # the last `check`
    awake_since_s: float = 0.0  # checks came without a gap since then; earlier silence may be our own fault

    def up(self, event: NodeUp, now_s: float) -> None:
        """Add a machine that has appeared. A repeat changes nothing."""
        assert event.capacity > 0, event
        if event.node not in self.nodes:
            about = event.node, event.tier, event.admitted
            self.nodes[event.node] = Member(*about, now_s, now_s, capacity=event.capacity)

    def record_message(self, node: str, now_s: float) -> Member | None:
        """Record a message of a machine, and return the machine; None if it is unknown, gone or released.

        A message of a machine that is unreachable is no sign of life: a change would ask it and wait for ever.
        """
        member = self.nodes.get(node)
        if member is None or member.is_gone or member.is_released:
            return None
        if member.is_unreachable:
            member.is_doubted = False  # it is there: it has the whole timeout to answer
            return member
        member.last_message_s = now_s
        member.is_silent = member.is_doubted = False
        return member

    def seen(self, node: str, now_s: float) -> None:
        """Record that a machine answers on the connection to it."""
        if node in self.nodes:
            self.nodes[node].is_unreachable = False
        self.record_message(node, now_s)

    def check(self, now_s: float) -> list[Member]:
        """Mark the machines whose silence has just exceeded the timeout as silent, and return them.

        If this controller slept (no check for a third of the timeout), all machines get a fresh deadline first.
        """
        slept = self._has_slept(now_s)
        self.checked_s = now_s
        if slept:
            self.awake_since_s = now_s
            for member in self.nodes.values():
                member.last_message_s = max(member.last_message_s, now_s)
            return []
        late = [
            m
            for m in self.nodes.values()
            if (m.is_alive or m.is_apart) and now_s - m.last_message_s > self._patience_s(m)
        ]
        found = [member for member in late if member.is_alive]
        for member in late:
            member.is_silent = True
        return found

    def admit(self, node: str, capacity: float | None = None) -> None:
        """Allow a machine to become a member. capacity: None if it is as announced."""
        if node in self.nodes:
            self.nodes[node].admitted = True
            if capacity is not None:
                self.nodes[node].capacity = capacity

    def gone(self, node: str) -> bool:
        """Mark a machine whose process is dead. True unless that was known or the machine was released."""
        member = self.nodes.get(node)
        if member is None or member.is_gone:
            return False
        member.is_gone = True
        return not member.is_released

    def lost(self, node: str, now_s: float) -> bool:
        """Mark a machine that does not answer as silent. True if it was alive.

        If this controller slept until just now, its own heartbeats were overdue, and the machine may be well: False
        then, and `check` marks it unless it is heard of within a third of the timeout.
        """
        member = self.nodes.get(node)
        if member is None:
            return False
        member.is_unreachable = True
        if not member.is_alive:
            member.is_silent = True
            return False
        if self._has_slept(now_s) or now_s - self.awake_since_s < self.timeout_s / 3:
            member.is_doubted, member.last_message_s = True, max(member.last_message_s, now_s)
            return False
        member.is_silent = True
        return True

    def keep_apart(self, node: str, now_s: float) -> None:
        """Give up a machine because of a broken link."""
        self.nodes[node].apart_since_s = now_s
        self.nodes[node].times_apart += 1

    def take_back(self, node: str) -> None:
        """Use a machine again that was kept apart."""
        self.nodes[node].apart_since_s = None

    def apart(self) -> list[Member]:
        """The machines that are kept apart."""
        return [member for member in self.nodes.values() if member.is_apart]

    def _has_slept(self, now_s: float) -> bool:
        return now_s - self.checked_s > self.timeout_s / 3

    def _patience_s(self, member: Member) -> float:
        return self.timeout_s / 3 if member.is_doubted else self.timeout_s

    def notice(self, node: str, deadline_s: float) -> bool:
        """Record that a machine will be taken away at `deadline_s`. False for a repeat, unless its deadline is sooner.

        A silent machine keeps its notice too: if it comes back, it must not get work again.
        """
        member = self.nodes.get(node)
        if member is None or member.is_gone or member.is_released:
            return False
        if member.deadline_s is not None and member.deadline_s <= deadline_s:
            return False
        member.deadline_s = deadline_s
        return True

    def forget(self, kept: Collection[str]) -> list[str]:
        """Drop and return the machines that are gone and not in `kept`: over weeks there are thousands of them."""
        found = [name for name, member in self.nodes.items() if member.is_gone and name not in kept]
        for name in found:
            del self.nodes[name]
        return found

    def send_away(self, node: str) -> bool:
        """Release a machine at once, whatever it holds. True if it was there."""
        member = self.nodes.get(node)
        if member is None or member.is_gone or member.is_released:
            return False
        member.is_released = True
        return True

    def is_last_reliable(self, node: str) -> bool:
        """True for a reliable machine while no other one is alive."""
        member = self.nodes.get(node)
        return (
            member is not None
            and member.tier is Tier.RELIABLE
            and not any(
                m.tier is Tier.RELIABLE and m.is_alive and m is not member for m in self.nodes.values()
            )
        )

    def has_reliable(self) -> bool:
        """True while a reliable machine is alive."""
        return any(member.tier is Tier.RELIABLE for member in self.alive())

    def late(self, members: frozenset[str], now_s: float, limit_s: float) -> list[Member]:
        """The machines outside `members` that are not ready `limit_s` after their process came up."""
        return [
            m
            for m in self.alive()
            if m.ready_since_s is None and m.name not in members and now_s - m.up_s > limit_s
        ]

    def weighted(
        self,
        machines: Machines,
        *,
        by_speed: bool,
        by_capacity: bool = True,
        alike: float = 1.0,
        speeds: Mapping[str, float] | None = None,
    ) -> Machines:
        """Return the machines with their weights: capacities, or with `by_speed` measured speeds.

        A machine that is not measured yet counts as fast, for its capacity, as the mean of the others. `alike`: if the
        fastest machine, for its capacity, is less than `alike` times as fast as the slowest, capacities count. Without
        `by_capacity` all machines count as equal where capacities would count. `speeds`: in place of measured ones.
        """
        found = [self.nodes[name] for name in machines.reliable + machines.transient]
        capacities = {m.name: m.capacity if by_capacity else 1.0 for m in found}
        if speeds is None:
            speeds = {m.name: m.speed for m in found if m.speed is not None}
        speeds = {name: speeds[name] for name in capacities if by_speed and name in speeds}
        ratios = [speed / capacities[name] for name, speed in speeds.items()]
        if ratios and max(ratios) < alike * min(ratios):
            ratios, speeds = [], {}
        usual = sum(ratios) / len(ratios) if ratios else 1.0
        weights = {name: speeds.get(name, capacity * usual) for name, capacity in capacities.items()}
        return replace(machines, weights=weights)

    def release_leavers(self, view_members: frozenset[str]) -> list[Member]:
        """Release the machines with a notice that are not members of the view, and return them."""
        found = [m for m in self.alive() if m.deadline_s is not None and m.name not in view_members]
        for member in found:
            member.is_released = True
        return found

    def is_alive(self, node: str) -> bool:
        """True for a known machine that is alive."""
        return node in self.nodes and self.nodes[node].is_alive

    def epoch(self, node: str) -> int:
        """The epoch of the view that a machine works under; 0 while that is not known."""
        return self.nodes[node].epoch if node in self.nodes else 0

    def alive(self) -> list[Member]:
        """The machines that are alive, members or not."""
        return [member for member in self.nodes.values() if member.is_alive]

    def may_hold(self, member: Member) -> bool:
        """True for a machine that is admitted and alive, and has no notice."""
        return member.is_alive and member.admitted and member.deadline_s is None

    def machines(self, also: frozenset[str]) -> Machines:
        """The machines that may hold something after a change: those that are ready, and those in `also` (the
        members)."""
        return self._by_tier(
            member
            for member in self.nodes.values()
            if self.may_hold(member) and (member.ready_since_s is not None or member.name in also)
        )

    def with_machine(self, extra: Member) -> Machines:
        """As `expected`, with `extra` even if it is not admitted yet."""
        return self._by_tier(m for m in self.nodes.values() if self.may_hold(m) or m is extra)

    @staticmethod
    def _by_tier(members: Iterable[Member]) -> Machines:
        chosen = list(members)
        return Machines(
            tuple(m.name for m in chosen if m.tier is Tier.RELIABLE),
            tuple(m.name for m in chosen if m.tier is Tier.TRANSIENT),
        )

    def expected(self) -> Machines:
        """As `machines`, with the machines that are still loading."""
        return self.machines(frozenset(self.nodes))

    def waiting(self) -> dict[Tier, list[str]]:
        """The machines that are ready but not admitted, by tier."""
        found: dict[Tier, list[str]] = {tier: [] for tier in Tier}
        for member in self.alive():
            if not member.admitted and member.deadline_s is None and member.ready_since_s is not None:
                found[member.tier].append(member.name)
        return found
