"""Chooses which of two machines to give up when they do not reach each other though the controller reaches both.

Each would wait for the other for ever. With every heartbeat a machine accuses those that it does not reach. Only the
time counts in which both ends are alive: a dead or frozen machine is accused too, but falls silent before it is given
up. Of the two ends the controller gives up the one with more broken links (`choose`). It comes back once no machine has
accused it for a while. This time doubles with each return, up to an hour: a link that comes and goes costs ever less.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from agileml.core.change.membership import Member, Membership
from agileml.core.protocol.view import View
from agileml.events.terms import Tier

TIMEOUTS = 3  # of heartbeats
LEAST_S = 6.0  # a transport may take 5 s to connect again after a cut has healed
LONGEST_S = 3600.0  # without an accusation, at most: a run may have weeks of short breaks

Pair = tuple[str, str]


def patience_s(timeout_s: float) -> float:
    """Seconds for which a link may be down before one of its ends is given up. `timeout_s`: that of heartbeats."""
    return max(LEAST_S, TIMEOUTS * timeout_s)


@dataclass
class BrokenLink:
    """Both ends have been alive and one has accused the other since `since_s`, the last time at `reported_s`."""

    since_s: float
    reported_s: float

    @property
    def for_s(self) -> float:
        """The least time for which one has accused the other."""
        return self.reported_s - self.since_s


@dataclass(frozen=True)
class GiveUp:
    """The run goes on without `machine`."""

    machine: str
    reason: str


@dataclass
class BrokenLinks:
    """The links that machines report as broken, and since when."""

    timeout_s: float
    _links: dict[Pair, BrokenLink] = field(default_factory=dict)
    _accused_s: dict[str, float] = field(default_factory=dict)  # of machines that were given up

    @property
    def patience_s(self) -> float:
        """How long a link may be down before one of its ends is given up."""
        return patience_s(self.timeout_s)

    def report(self, node: str, names: Iterable[str], now_s: float) -> None:
        """Record the machines that `node` does not reach."""
        for name in names:
            first, second = sorted((node, name))
            link = self._links.setdefault((first, second), BrokenLink(now_s, now_s))
            link.reported_s = now_s

    def judge(
        self, members: Membership, view: View | None, is_needed: Callable[[Pair], bool], now_s: float
    ) -> GiveUp | None:
        """The machine to give up now, if there is one. At most one: giving it up settles all its links."""
        self._age(members, now_s)
        down = [pair for pair in self._links if all(map(members.is_alive, pair)) and is_needed(pair)]
        late = [pair for pair in down if self._links[pair].for_s >= self.patience_s]
        if not late:
            return None
        degree = count_links(down, frozenset() if view is None else view.member_set)
        first, second = min(late, key=lambda pair: self._links[pair].since_s)
        given, reason = choose(first, second, members, view, degree)
        for_s = self._links[first, second].for_s
        self._accused_s[given] = now_s
        return GiveUp(
            given,
            f"{first} and {second} have not reached each other for {for_s:.0f} s, and {reason}",
        )

    def back(self, members: Membership, now_s: float) -> list[str]:
        """The machines that were given up and are not accused any more."""
        return [
            member.name
            for member in members.apart()
            if now_s - self._accused_s.get(member.name, 0.0) >= self._away_s(member)
        ]

    def _away_s(self, member: Member) -> float:
        """Seconds without an accusation after which a machine comes back."""
        # In months a link breaks more often than that; from 2 ** 1024 on a float overflows.
        doublings = min(member.times_apart - 1, 100)
        return min(max(LONGEST_S, self.patience_s), self.patience_s * 2**doublings)

    def _age(self, members: Membership, now_s: float) -> None:
        """Forget links that no machine reports any more; restart the time of links with an end that is not alive."""
        self._accused_s = {node: at_s for node, at_s in self._accused_s.items() if node in members.nodes}
        for pair, link in list(self._links.items()):
            ends = [members.nodes.get(node) for node in pair]
            is_over = any(end is None or end.is_gone or end.is_released for end in ends)
            if is_over or now_s - link.reported_s > self.timeout_s:
                del self._links[pair]
            elif not all(map(members.is_alive, pair)) or link.since_s < members.awake_since_s:
                link.since_s = now_s
                self._accuse(pair, members, now_s)

    def _accuse(self, pair: Pair, members: Membership, now_s: float) -> None:
        """Put off the return of an end that was given up, if the other end is alive."""
        for node, other in (pair, pair[::-1]):
            if members.nodes[node].is_apart and members.is_alive(other):
                self._accused_s[node] = now_s


def count_links(down: Iterable[Pair], serving: Collection[str]) -> Counter[str]:
    """How many broken links count against each machine. A link between a member (`serving`) and a newcomer counts only
    against the newcomer."""
    ends = ((node, other) for pair in down for node, other in (pair, pair[::-1]))
    return Counter(node for node, other in ends if node not in serving or other in serving)


def choose(
    first: str, second: str, members: Membership, view: View | None, degree: Counter[str]
) -> tuple[str, str]:
    """Which of two machines to give up, and why."""
    younger = list(members.nodes)
    reasons: tuple[tuple[str, Callable[[Member], int]], ...] = (
        ("the other one is the last reliable machine", lambda m: not members.is_last_reliable(m.name)),
        ("the other one has the only copy of a partition", lambda m: not _has_only_copy(m, view)),
        ("more broken links speak against it", lambda m: degree[m.name]),
        ("the other one is a member", lambda m: view is None or m.name not in view.member_set),
        ("the other one is reliable", lambda m: m.tier is Tier.TRANSIENT),
        ("it is the younger one", lambda m: younger.index(m.name)),
    )
    one, other = members.nodes[first], members.nodes[second]
    for why, rank in reasons:
        if rank(one) != rank(other):
            given = first if rank(one) > rank(other) else second
            return given, f"{given} is given up: {why}"
    raise AssertionError((first, second))


def _has_only_copy(member: Member, view: View | None) -> bool:
    """True for an owner that backs itself up."""
    return view is not None and any(
        owner == backup == member.name for owner, backup in zip(view.owner, view.backup, strict=True)
    )
