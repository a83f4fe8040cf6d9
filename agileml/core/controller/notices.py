"""Preemption notices: whether the partitions of a leaver can move in time, and the remedy if they cannot.

The handler decides twice: before a change is claimed, while the open cut may still arrive (`waits`), and again when all
machines have promised and the state of every shard is known (`choose`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from agileml.core.change.change_plan import Change, LostError
from agileml.core.change.short_notice import Arriving, Leaver, NoticeDecision, RollBack, judge_notice, leavers
from agileml.core.change.transfers import through, transfers
from agileml.core.controller.control import Control
from agileml.core.controller.cut_keeper import CutKeeper
from agileml.core.protocol.messages import Promise, ShardState
from agileml.core.protocol.view import CutId
from agileml.events.run import ShortNoticeJudged
from agileml.events.terms import Way

Plan = Callable[[Mapping[str, Promise]], Change]

AGAIN_S = 0.05  # between two decisions while a change waits for a cut


class NoticeHandler:
    """Decides between a move, a rollback to the committed cut, and waiting for the open cut (`waits`)."""

    def __init__(self, control: Control, cuts: CutKeeper) -> None:
        self._control = control
        self._cuts = cuts
        # The committed cut while waiting for the next one; when to decide again.
        self._waiting: tuple[CutId, float] | None = None
        self._noted: tuple[int, Way] | None = None

    def waits(self, plan: Plan) -> bool:
        """True while a change for a notice waits for the open cut, because a rollback to that one costs less."""
        control, view = self._control, self._control.view
        arriving = self._cuts.arriving()
        if view is None or arriving is None or control.is_restarted or not self._someone_leaves():
            return False
        if not all(control.members.is_alive(node) for node in view.members):
            return False
        committed = control.record.committed
        if self._waiting is not None and self._waiting[0] == committed and control.now_s < self._waiting[1]:
            return True
        try:
            verdict = self._judge(plan, self._promises_now())[0]
        except LostError:
            return False
        is_waiting = verdict is not None and verdict.way is Way.FINISH_CUT
        self._waiting = (committed, control.now_s + AGAIN_S) if is_waiting else None
        return is_waiting

    def move_s(self, plan: Plan) -> float:
        """Estimate the seconds that a change for a notice spends on copying; 0 if that is unknown."""
        control, rate = self._control, self._cuts.links.bytes_per_s
        exchange = control.job.exchange
        if rate is None or control.view is None or (exchange.has_replicas and not exchange.shares_state):
            return 0.0
        if not self._someone_leaves():
            return 0.0
        promises = self._promises_now()
        try:
            move = plan(promises)
        except LostError:
            return 0.0
        moved = transfers(control.job, move, promises, self._cuts.part_bytes)
        return max(through(moved).values(), default=0) / rate

    def choose(self, plan: Plan, promises: Mapping[str, Promise]) -> Change:
        """Plan a change that moves the leavers' partitions or, where that costs less, rolls back. Raises LostError."""
        verdict, change = self._judge(plan, promises, is_frozen=True)
        if verdict is None or verdict.way is not Way.ROLL_BACK:
            return change
        back = plan(self._without_leavers(change, promises))
        return replace(back, reason=f"{verdict.reason}; {back.reason}")

    def copied(self, change: Change, promises: Mapping[str, Promise], since_s: float) -> None:
        """Learn the rate of links from a change whose fetches are all answered."""
        if not self._control.job.exchange.has_replicas:
            moved = transfers(self._control.job, change, promises, self._cuts.part_bytes)
            self._cuts.links.arrived(through(moved), since_s, self._control.now_s)

    # -- inside ---------------------------------------------------------------------------------------------

    def _someone_leaves(self) -> bool:
        nodes, owners = self._control.members.nodes, self._control.durable.owner
        return any(node in nodes and nodes[node].deadline_s is not None for node in owners)

    def _judge(
        self, plan: Plan, promises: Mapping[str, Promise], *, is_frozen: bool = False
    ) -> tuple[NoticeDecision | None, Change]:
        """The decision about notices, None if there is nothing to decide; and the change that moves everything."""
        control = self._control
        move = plan(promises)
        rate = self._cuts.links.bytes_per_s
        if control.view is None or move.rolled_back or control.job.exchange.has_replicas:
            return None, move
        if rate is None or not self._someone_leaves():
            return None, move
        moved = transfers(control.job, move, promises, self._cuts.part_bytes)
        pressed = leavers(moved, self._left_s(move), rate)
        if not pressed or pressed[0].chance() == 1.0:
            return None, move
        move_s = max(through(moved).values()) / rate
        back = self._roll_back(plan, move, promises, rate)
        arriving = None if is_frozen or back is None else self._arriving(back)
        verdict = judge_notice(pressed[0], move_s, back, arriving)
        if is_frozen or verdict.way is Way.FINISH_CUT:
            self._note(verdict, pressed)
        return verdict, move

    def _left_s(self, move: Change) -> dict[str, float]:
        """The machines with a notice that hold nothing after the move, and the seconds that they have left."""
        control = self._control
        return {
            member.name: member.deadline_s - control.now_s
            for member in control.members.alive()
            if member.deadline_s is not None and member.name not in move.view.holders
        }

    def _without_leavers(self, move: Change, promises: Mapping[str, Promise]) -> dict[str, Promise]:
        gone = self._left_s(move)
        return {node: promise for node, promise in promises.items() if node not in gone}

    def _roll_back(
        self, plan: Plan, move: Change, promises: Mapping[str, Promise], rate: float
    ) -> RollBack | None:
        """The cost of an immediate rollback; None if the remaining machines lack a part of the committed cut."""
        control = self._control
        rest = self._without_leavers(move, promises)
        try:
            back = plan(rest)
        except LostError:
            return None
        committed = control.record.committed
        if not back.rolled_back or (committed.clock and back.committed != committed):
            return None
        reached = max(
            state.version
            for node, promise in promises.items()
            for p, state in promise.shards
            if control.durable.owner[p] == node
        )
        fetched = through(transfers(control.job, back, rest, self._cuts.part_bytes))
        clocks, clock_s = reached - back.view.base, control.log.clock_s
        redo_s = None if clock_s is None else clocks * clock_s
        return RollBack(back.view.base, clocks, redo_s, max(fetched.values(), default=0) / rate)

    def _arriving(self, back: RollBack) -> Arriving | None:
        """The open cut as a rollback target."""
        found, clock_s = self._cuts.arriving(), self._control.log.clock_s
        if found is None or clock_s is None:
            return None
        clock, remaining_s = found
        clocks = back.clock + back.clocks - clock
        return Arriving(remaining_s, RollBack(clock, clocks, clocks * clock_s, back.fetch_s))

    def _promises_now(self) -> dict[str, Promise]:
        """The promises that members are expected to give now."""
        control, view = self._control, self._control.durable
        committed = ShardState(control.record.committed.clock, ())
        found = {}
        for node in view.members:
            owned = view.partitions_of(node)
            shards = tuple((p, ShardState(self._version(p), ())) for p in owned)
            backed_up = tuple((p, committed) for p, backup in enumerate(view.backup) if backup == node)
            found[node] = Promise(0, shards, tuple((p, committed) for p in owned), backed_up)
        return found

    def _version(self, partition: int) -> int:
        """The version that a partition is expected to have; of stages with clocks in flight, when they are empty."""
        control, rules = self._control, self._control.job.pipeline
        if rules is not None and not rules.flushes:
            return control.completed
        return control.version(partition) or control.durable.base

    def _note(self, verdict: NoticeDecision, pressed: tuple[Leaver, ...]) -> None:
        """Log the decision, once per attempted epoch."""
        control = self._control
        if (key := (control.record.claimed, verdict.way)) == self._noted:
            return
        self._noted = key
        control.note(
            ShortNoticeJudged(
                machines=tuple(leaver.node for leaver in pressed),
                way=verdict.way,
                left_s=pressed[0].left_s,
                needed_s=pressed[0].needed_s,
                expected_s={way: round(s, 6) for way, s in verdict.expected_s.items()},
                reason=verdict.reason,
            )
        )
