"""The decision loop of a live job: watches the market, asks the policy, journals its decisions and carries them out.

The pure parts are `state`, `decide` and `guards`; this module holds their order. The service journals every action
before it acts, so the next service continues where the last one died: it asks about an unanswered order with the same
token, repeats releases, and gives back instances that belong to no order.

Within an instant the order is that of `simulate.simulator`: hours end and evictions come (in order of acquisition),
orders come due, the policy decides. Events between two polls are processed chronologically.
"""

from __future__ import annotations

from bidbrain.billing import Ending
from bidbrain.history.prices import NEVER_S
from bidbrain.live.cloud import (
    Cloud,
    EndedInstance,
    Instance,
    MarketClosedError,
    Quotes,
    RefusedError,
    UnknownOutcomeError,
)
from bidbrain.live.decide import allowed, allowed_on_demand, decide, view_of
from bidbrain.live.guards import over_budget
from bidbrain.live.job import (
    EXIT_BUDGET,
    EXIT_FINISHED,
    EXIT_MARKET_CLOSED,
    EXIT_STOPPED,
    JobPlan,
    Log,
    Timekeeper,
    Trainer,
)
from bidbrain.live.journal import (
    Answered,
    Buy,
    BuyOnDemand,
    Closed,
    Closing,
    Decided,
    Draining,
    Ended,
    HourPassed,
    Mark,
    Marked,
    Marking,
    Noticed,
    Opened,
    Ordered,
    Passed,
    Record,
    Stray,
    Troubled,
    Worked,
)
from bidbrain.live.keeping import RiskKeeper
from bidbrain.live.state import JobState, Pending
from bidbrain.live.troubles import TroubleWatch
from bidbrain.money import HOUR_S
from bidbrain.policy.base import Phase

LATE_S = 60  # decisions up to this late are dated at their due time; later purchases are dropped
RETRY_S = 10  # until a call without an answer is repeated
RELIABLE_RETRY_S = 60  # until refused reliable instances are ordered again
RECONCILE_S = 120  # between two searches for instances that belong to no order


class Service:
    """Runs one job on one market, continuing its journal."""

    def __init__(
        self,
        plan: JobPlan,
        cloud: Cloud,
        trainer: Trainer,
        time: Timekeeper,
        journal: Log,
        keeper: RiskKeeper | None = None,
    ) -> None:
        """keeper: where the risk that this job learns outlives it; None: nowhere."""
        self._plan = plan
        self._cloud = cloud
        self._trainer = trainer
        self._time = time
        self._journal = journal
        self.state = JobState(plan.setting, journal.records)
        self._keeper = keeper
        self._watch = TroubleWatch()
        self._reconciled_s = -RECONCILE_S
        self._retry_s = NEVER_S
        self._stop: str | None = None

    def stop(self, reason: str) -> None:
        """Drain and end; may be called from a signal handler."""
        self._stop = reason

    def run(self) -> Closing:
        """Run to the job's end. Raises CloudError (credentials), PolicyError; instances stay for the next service."""
        if self.state.opened is None:
            self._put(Opened(self._plan.name, self._plan.scheme, self._plan.start_s))
        self._tell_held(self._time.now_s())
        while self.state.closed is None:
            self.step()
            if self.state.closed is None:
                # What is overdue while no call is answered makes no call sooner.
                due_s = NEVER_S if self._watch.is_unanswered else self.state.next_s()
                until_s = min(due_s, self._retry_s)
                decided = self.state.decided
                self._time.wait(until_s, decided is not None and decided.wake_on_market)
        assert self.state.closing is not None
        return self.state.closing

    def step(self) -> None:
        """Do everything that is due now."""
        now_s = self._time.now_s()
        self._retry_s = NEVER_S
        self._watch.begin()
        if self.state.closing is None and not self._check_end(now_s):
            self._advance(now_s)
        if self.state.closing is not None:
            self._close(now_s, self.state.closing)
        if (troubles := self._watch.troubles(now_s, self._time.trouble)) != self.state.troubles:
            self._put(Troubled(now_s, troubles))
        if self._keeper is not None:
            self._keeper.keep(now_s, self.state.risk, is_last=self.state.closed is not None)

    def _put(self, record: Record) -> None:
        self._journal.append(record)
        self.state.apply(record)

    # -- the end ------------------------------------------------------------------------------------------------

    def _check_end(self, now_s: int) -> bool:
        """Begin to drain or to close if there is a reason; whether the job is over."""
        report = self._trainer.report(now_s)
        if report.finished_s is not None:
            self._put(Closing(report.finished_s, True, "the work is done", EXIT_FINISHED))
            return True
        draining = self.state.draining
        if draining is not None and (report.drained or now_s >= draining.deadline_s):
            self._put(Closing(now_s, False, draining.reason, draining.code))
            return True
        if draining is None:
            reason, code = over_budget(self._plan.guards, self.state.account, now_s), EXIT_BUDGET
            if reason is None:
                reason, code = self._stop, EXIT_STOPPED
            if reason is not None:
                self._put(Draining(now_s, now_s + self._plan.drain_s, reason, code))
                self._trainer.drain(now_s, now_s + self._plan.drain_s)
        return False

    def _close(self, now_s: int, closing: Closing) -> None:
        """Give all instances back, after asking about unanswered orders, which may have bought some."""
        state = self.state
        for pending in state.due(closing.at_s):
            if not self._ask(pending, closing.at_s):
                return
        try:
            self._catch_up(closing.at_s)
            if ids := tuple(instance.instance_id for instance in state.open_instances()):
                self._trainer.leave(now_s, ids)
                self._cloud.release(ids)
            if strays := tuple(instance.instance_id for instance in self._cloud.held()):
                self._cloud.release(strays)
        except UnknownOutcomeError as error:
            self._not_answered(error)
            return
        for allocation in list(state.account.open):
            if allocation.phase is not Phase.REQUESTED:
                end_s = max(closing.at_s, allocation.hour_start_s)
                self._put(Ended(end_s, allocation.number, Ending.JOB_END))
        done = self._trainer.report(now_s).done_vcpu_s
        self._put(Closed(max(closing.at_s, self.state.last_s), done))

    def _catch_up(self, closing_s: int) -> None:
        """Journal the evictions and ends of hours before the job's end that came since the service last looked."""
        taken = self._ended_allocations().items()
        ended = {n: last for n, last in taken if last.ending is Ending.EVICTED and last.at_s <= closing_s}
        while True:
            spot = [a for a in self.state.account.open if not a.on_demand and a.phase is not Phase.REQUESTED]
            hours = [a.hour_start_s + HOUR_S for a in spot]
            due = [at_s for at_s in hours if at_s < closing_s] + [last.at_s for last in ended.values()]
            if not due:
                return
            self._record_events(min(due), ended)

    # -- going on -----------------------------------------------------------------------------------------------

    def _advance(self, now_s: int) -> None:
        state = self.state
        try:
            quotes = self._cloud.quotes(now_s)
            self._watch.quoted = quotes.troubles
            self._pass_on_notices(now_s)
            ended = self._ended_allocations()
            decided = state.decided
            if decided is not None and not self._carry_out(decided.at_s, now_s):
                return
            if now_s - self._reconciled_s >= RECONCILE_S:
                self._reconcile(now_s)
            if not self._has_reliable(now_s):
                return
            while (
                at_s := min([state.next_s(), *(last.at_s for last in ended.values())])
            ) <= now_s or state.asks:
                at_s = max(min(at_s, now_s), self.state.last_s)  # a purchase may have taken seconds
                if state.draining is not None and at_s >= state.draining.deadline_s:
                    return
                self._record_events(at_s, ended)
                if not all(self._ask(pending, at_s) for pending in state.due(at_s)):
                    return
                woken = state.wake_s is not None and state.wake_s <= at_s
                if (state.asks or woken) and not self._decide(at_s, now_s, quotes):
                    return
            self._look_again(now_s, quotes)
        except MarketClosedError as error:
            self._put(Closing(now_s, False, str(error), EXIT_MARKET_CLOSED))
        except UnknownOutcomeError as error:
            self._not_answered(error)

    def _not_answered(self, error: UnknownOutcomeError) -> None:
        now_s = self._time.now_s()
        self._retry_s = now_s + RETRY_S
        self._watch.unanswered(now_s, str(error))

    def _look_again(self, now_s: int, quotes: Quotes) -> None:
        """Decide when the market changes, if the policy waits for that, and again soon after a full market."""
        state, decided = self.state, self.state.decided
        if decided is None or state.draining is not None:
            return
        if decided.wake_on_market and decided.pulse != quotes.pulse:
            self._decide(now_s, now_s, quotes)
        elif state.full and decided.fill is None and not self._cloud.together:
            if now_s >= decided.at_s + RETRY_S:
                self._decide(now_s, now_s, quotes)
            else:
                self._retry_s = min(self._retry_s, decided.at_s + RETRY_S)

    def _pass_on_notices(self, now_s: int) -> None:
        notices = {notice.notice_id: notice for notice in self._cloud.notices()}
        if new := tuple(each for each in notices.values() if each.notice_id not in self.state.noticed):
            self._put(Noticed(now_s, new))
        for notice in notices.values():
            self._trainer.warn(now_s, notice)

    def _ended_allocations(self) -> dict[int, EndedInstance]:
        """Allocations that ended without us, with their last instance: evicted, or shut down by themselves."""
        ids = tuple(instance.instance_id for instance in self.state.open_instances())
        return self.state.over(self._cloud.ended(ids)) if ids else {}

    def _record_events(self, at_s: int, ended: dict[int, EndedInstance]) -> None:
        """Journal an instant's evictions and ends of hours, and remove them from `ended`."""
        state = self.state
        over = {number for number, last in ended.items() if last.at_s <= at_s and state.account.find(number)}
        if over:  # before the journal, so it is told at least once
            self._trainer.lost(at_s, tuple(m.instance_id for n in sorted(over) for m in state.instances[n]))
        for allocation in list(state.account.open):
            number = allocation.number
            if allocation.phase is Phase.REQUESTED:
                continue
            if number in over:
                last = ended.pop(number)
                self._put(Ended(max(last.at_s, allocation.hour_start_s), number, last.ending))
            elif not allocation.on_demand and at_s >= allocation.hour_start_s + HOUR_S:
                end_s = allocation.hour_start_s + HOUR_S
                if allocation.phase is Phase.LEAVING:
                    self._give_back(end_s, number)
                    self._put(Ended(end_s, number, Ending.TERMINATED))
                else:
                    price = self._cloud.price(allocation.market, end_s)
                    self._put(HourPassed(end_s, number, price))
        if state.work_due:
            self._put(Worked(max(at_s, self.state.last_s), self._trainer.report(at_s).done_vcpu_s))
        if over:
            self._tell_held(at_s)

    def _give_back(self, at_s: int, number: int) -> None:
        ids = tuple(instance.instance_id for instance in self.state.instances.get(number, ()))
        self._trainer.leave(at_s, ids)
        self._cloud.release(ids)

    def _tell_held(self, at_s: int) -> None:
        """Tell the trainer all instances that it holds."""
        account, instances = self.state.account, self.state.instances
        seats: dict[bool, list[Instance]] = {True: [], False: []}
        for allocation in account.open:
            seats[allocation.number < 0] += instances.get(allocation.number, ())
        self._trainer.hold(at_s, tuple(seats[True]), tuple(seats[False]))

    def _has_reliable(self, now_s: int) -> bool:
        """Buy the reliable instances; whether the job has them. Nothing else starts without them."""
        state, reliable = self.state, self._plan.setting.reliable
        if not self._plan.with_reliable or not reliable.vcpus or state.has_reliable:
            return True
        waiting = [each for each in state.pending.values() if each.ordered.reliable]
        if not waiting:
            what = (state.orders, reliable.market, reliable.vcpus, 1, reliable.on_demand, now_s)
            self._put(Ordered(now_s, *what, reliable=True))
            waiting = list(state.pending.values())
        if not self._ask(waiting[0], now_s):
            return False
        if not state.has_reliable:
            self._retry_s = now_s + RELIABLE_RETRY_S
        return state.has_reliable

    # -- decisions and what they ask for --------------------------------------------------------------------------

    def _decide(self, at_s: int, now_s: int, quotes: Quotes) -> bool:
        """Ask the policy and carry its decision out; False: an answer is missing, and the rest is done later."""
        as_of_s = max(at_s if now_s - at_s <= LATE_S else now_s, self.state.last_s)
        plan, state = self._plan, self.state
        report = self._trainer.report(as_of_s)
        view = view_of(plan.setting, state, quotes, report.measured, plan.guards, report.done_vcpu_s)
        decided = decide(as_of_s, plan.policy, view, state, quotes, plan.setting, self._cloud.together)
        self._put(decided)
        return self._carry_out(as_of_s, now_s)

    def _carry_out(self, at_s: int, now_s: int) -> bool:
        """Take the decision's remaining steps; False: an answer is missing, and the rest is done later."""
        state, decided = self.state, self.state.decided
        assert decided is not None
        at_s = at_s if now_s - at_s <= LATE_S else now_s
        while True:
            at_s = max(at_s, self.state.last_s)
            due = state.due(at_s)
            if due and (decided.fill is not None or state.step is None):
                if not self._ask(due[0], at_s):
                    return False
            elif state.step is not None:
                self._take_step(state.step, decided, at_s)
            else:
                return True

    def _take_step(self, step: Buy | BuyOnDemand | Mark, decided: Decided, at_s: int) -> None:
        state, plan = self.state, self._plan
        late = at_s - decided.at_s > LATE_S or state.draining is not None
        match step:
            case Mark(what, number):
                allocation = state.account.find(number)
                if allocation is None or allocation.phase is Phase.REQUESTED:
                    self._put(Passed(at_s, f"allocation {number} is not held any more"))
                elif what is Marking.RELEASE:
                    self._give_back(at_s, number)
                    self._put(Ended(at_s, number, Ending.TERMINATED, step=True))
                    self._tell_held(at_s)
                else:
                    self._put(Marked(at_s))
                    for notice in state.hour_end_notices(number) if what is Marking.LET_GO else ():
                        self._trainer.warn(at_s, notice)
            case _ if late:
                self._put(Passed(at_s, "too late for a purchase that was decided before"))
            case Buy(market):
                may = allowed(step, state, plan.guards, at_s)
                if not may.parts:
                    self._put(Passed(at_s, may.why))
                    return
                due_s = at_s + plan.setting.bidding.grant_delay_s
                self._put(Ordered(at_s, state.orders, market, may.vcpus, may.parts, may.bid, due_s))
            case BuyOnDemand(vcpus):
                reliable = plan.setting.reliable
                if why := allowed_on_demand(step, plan.setting, state, plan.guards, at_s):
                    self._put(Passed(at_s, why))
                    return
                self._put(Ordered(at_s, state.orders, reliable.market, vcpus, 1, reliable.on_demand, at_s))
                self._ask(list(state.pending.values())[-1], at_s)

    def _ask(self, pending: Pending, at_s: int) -> bool:
        """Place an order, or ask about it again; False: no answer yet."""
        market = pending.order.market
        try:
            instances, why = self._cloud.acquire(pending.order), ""
        except RefusedError as error:
            instances, why = (), str(error)
        except MarketClosedError as error:
            if self.state.closing is None:
                raise
            instances, why = (), str(error)
        except UnknownOutcomeError as error:
            self._not_answered(error)
            return False
        if instances:
            at_s = max(pending.ordered.at_s, min(instance.launched_s for instance in instances))
        price = pending.order.bid if pending.order.on_demand else self._cloud.price(market, at_s)
        self._put(Answered(at_s, pending.ordered.order, price, instances, why))
        if instances:
            self._tell_held(at_s)
        return True

    def _reconcile(self, now_s: int) -> None:
        """Give back instances with our tag that belong to no allocation or order."""
        known = {instance.instance_id for instance in self.state.open_instances()}
        tokens = {pending.order.token for pending in self.state.pending.values()}
        for instance in self._cloud.held():
            if instance.instance_id not in known and instance.token not in tokens:
                self._put(Stray(now_s, instance))
                self._cloud.release((instance.instance_id,))
        self._reconciled_s = now_s
