"""The decision loop of a live job: watches the market, asks the policy, writes down what it will do, does it.

The pure parts are `state` (state), `decide` (decisions) and `guards`; here is the order of things. Whatever is done
was written to the journal before, so a service that dies anywhere goes on from the journal: an order without an
answer is asked about with its own token, a release is repeated, instances that nobody knows are given back.

At an instant, as in `simulator`: hours end and evictions come (in order of acquisition), orders come due, the policy
decides. Instants that passed while nobody looked are worked off in order of time.
"""

from __future__ import annotations

from bidbrain.billing import Ending
from bidbrain.history.prices import NEVER_S
from bidbrain.live.cloud import (
    Alert,
    Cloud,
    EndedInstance,
    Instance,
    MarketClosedError,
    Notice,
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
    Noticed,
    Opened,
    Ordered,
    Passed,
    Record,
    Stray,
    Worked,
)
from bidbrain.live.state import JobState, Pending
from bidbrain.money import HOUR_S
from bidbrain.policy.base import Phase

LATE_S = 60  # a decision that is due is made as of its instant if it is at most so late; older purchases are dropped
RETRY_S = 10  # after an answer that never came
RELIABLE_RETRY_S = 60
RECONCILE_S = 120


class Service:
    """One job on one market, from its journal on."""

    def __init__(self, plan: JobPlan, cloud: Cloud, trainer: Trainer, time: Timekeeper, journal: Log) -> None:
        self._plan = plan
        self._cloud = cloud
        self._trainer = trainer
        self._time = time
        self._journal = journal
        self.state = JobState(plan.setting, journal.records)
        self._reconciled_s = -RECONCILE_S
        self._retry_s = NEVER_S
        self._stop: str | None = None

    def stop(self, reason: str) -> None:
        """Drain and end; may be called from a signal handler."""
        self._stop = reason

    def run(self) -> Closing:
        """Until the job's end. Raises CloudError (credentials), PolicyError; instances stay for the next service."""
        if self.state.opened is None:
            self._put(Opened(self._plan.name, self._plan.scheme, self._plan.start_s))
        self._tell(self._time.now_s())
        while self.state.closed is None:
            self.step()
            if self.state.closed is None:
                until_s = min(self.state.next_s(), self._retry_s)
                decided = self.state.decided
                self._time.wait(until_s, decided is not None and decided.wake_on_market)
        assert self.state.closing is not None
        return self.state.closing

    def step(self) -> None:
        """Everything that is due now."""
        now_s = self._time.now_s()
        self._retry_s = NEVER_S
        if self.state.closing is None and not self._ends(now_s):
            self._goes_on(now_s)
        if self.state.closing is not None:
            self._close(now_s, self.state.closing)

    def _put(self, record: Record) -> None:
        self._journal.append(record)
        self.state.apply(record)

    # -- the end ------------------------------------------------------------------------------------------------

    def _ends(self, now_s: int) -> bool:
        """Whether the job is over; then it is written down."""
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
        """Give everything back. Orders whose answer is not known are asked about first: what they bought goes too."""
        state = self.state
        for pending in state.due(closing.at_s):
            if not self._ask(pending, closing.at_s):
                return
        ids = tuple(instance.instance_id for instance in state.open_instances())
        try:
            if ids:
                self._trainer.leave(now_s, ids)
                self._cloud.release(ids)
            if strays := tuple(instance.instance_id for instance in self._cloud.held()):
                self._cloud.release(strays)
        except UnknownOutcomeError:
            self._retry_s = now_s + RETRY_S
            return
        for allocation in list(state.account.open):
            if allocation.phase is not Phase.REQUESTED:
                end_s = max(closing.at_s, allocation.hour_start_s)
                self._put(Ended(end_s, allocation.number, Ending.JOB_END))
        done = self._trainer.report(now_s).done_vcpu_s
        self._put(Closed(max(closing.at_s, self._last_s()), done))

    def _last_s(self) -> int:
        entries = self.state.account.entries
        return entries[-1].at_s if entries else self._plan.start_s

    # -- going on -----------------------------------------------------------------------------------------------

    def _goes_on(self, now_s: int) -> None:
        state = self.state
        try:
            quotes = self._cloud.quotes(now_s)
            self._warnings(now_s)
            gone = self._gone()
            decided = state.decided
            if decided is not None and not self._carry(decided.at_s, now_s):
                return
            if now_s - self._reconciled_s >= RECONCILE_S:
                self._reconcile(now_s)
            if not self._reliable(now_s):
                return
            while (at_s := min([state.next_s(), *gone.values()])) <= now_s or self._asked:
                at_s = max(min(at_s, now_s), self._last_s())  # a purchase may have taken seconds
                if state.draining is not None and at_s >= state.draining.deadline_s:
                    return
                self._happen(at_s, gone)
                if not self._answer_due(at_s, now_s):
                    return
                woken = state.wake_s is not None and state.wake_s <= at_s
                if (self._asked or woken) and not self._decide(at_s, now_s, quotes):
                    return
            self._look_again(now_s, quotes)
        except MarketClosedError as error:
            self._put(Closing(now_s, False, str(error), EXIT_MARKET_CLOSED))
        except UnknownOutcomeError:
            self._retry_s = now_s + RETRY_S

    @property
    def _asked(self) -> bool:
        """Whether something happened that the policy has to be asked about."""
        return self.state.heard and self.state.draining is None

    def _look_again(self, now_s: int, quotes: Quotes) -> None:
        """Decide when the market moved and the policy waits for that, and soon after a market of capacity refused."""
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

    def _warnings(self, now_s: int) -> None:
        notices = {notice.notice_id: notice for notice in self._cloud.notices()}
        if new := tuple(each for each in notices.values() if each.notice_id not in self.state.noticed):
            self._put(Noticed(now_s, new))
        for notice in notices.values():
            self._trainer.warn(now_s, notice)

    def _gone(self) -> dict[int, int]:
        """Allocations that the market ended, and when. Evictions and instances that ended otherwise."""
        state = self.state
        ids = tuple(instance.instance_id for instance in state.open_instances())
        fates = {fate.instance_id: fate for fate in self._cloud.ended(ids)} if ids else {}
        self._fates: dict[int, EndedInstance] = {}
        for allocation in state.account.open:
            own = [fates.get(instance.instance_id) for instance in state.instances.get(allocation.number, ())]
            ended = [fate for fate in own if fate is not None]
            # Instances of a price market go together; an on-demand allocation is over when its last instance is.
            if ended and (len(ended) == len(own) or not allocation.on_demand):
                fate = max(ended, key=lambda each: each.at_s)
                self._fates[allocation.number] = fate
        return {number: fate.at_s for number, fate in self._fates.items()}

    def _happen(self, at_s: int, gone: dict[int, int]) -> None:
        """Evictions and ends of hours at an instant."""
        state = self.state
        now_gone = {
            number
            for number, gone_s in gone.items()
            if gone_s <= at_s and state.account.find(number) is not None
        }
        if now_gone:  # said before it is written: it may be said twice, never not at all
            self._trainer.lost(
                at_s, tuple(m.instance_id for n in sorted(now_gone) for m in state.instances[n])
            )
        for allocation in list(state.account.open):
            number = allocation.number
            if allocation.phase is Phase.REQUESTED:
                continue
            if number in now_gone:
                evicted = self._fates[number].ending is Ending.EVICTED
                end_s = max(gone.pop(number), allocation.hour_start_s)
                self._put(Ended(end_s, number, Ending.EVICTED if evicted else Ending.TERMINATED))
            elif not allocation.on_demand and at_s >= allocation.hour_start_s + HOUR_S:
                end_s = allocation.hour_start_s + HOUR_S
                if allocation.phase is Phase.LEAVING:
                    self._give_back(end_s, number)
                    self._put(Ended(end_s, number, Ending.TERMINATED))
                else:
                    price = self._cloud.price(allocation.market, end_s)
                    self._put(HourPassed(end_s, number, price))
        if state.work_due:
            self._put(Worked(max(at_s, self._last_s()), self._trainer.report(at_s).done_vcpu_s))
        if now_gone:
            self._tell(at_s)

    def _give_back(self, at_s: int, number: int) -> None:
        ids = tuple(instance.instance_id for instance in self.state.instances.get(number, ()))
        self._trainer.leave(at_s, ids)
        self._cloud.release(ids)

    def _tell(self, at_s: int) -> None:
        """The engine hears what it has."""
        account, instances = self.state.account, self.state.instances
        seats: dict[bool, list[Instance]] = {True: [], False: []}
        for allocation in account.open:
            seats[allocation.number < 0] += instances.get(allocation.number, ())
        self._trainer.hold(at_s, tuple(seats[True]), tuple(seats[False]))

    def _reliable(self, now_s: int) -> bool:
        """Buy the reliable instances first; without them nothing starts."""
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
        """Ask the policy and do what it says; False: an answer is still missing."""
        as_of_s = max(at_s if now_s - at_s <= LATE_S else now_s, self._last_s())
        plan, state = self._plan, self.state
        report = self._trainer.report(as_of_s)
        view = view_of(plan.setting, state, quotes, report.measured, plan.guards, report.done_vcpu_s)
        decided = decide(as_of_s, plan.policy, view, state, quotes, plan.setting, self._cloud.together)
        self._put(decided)
        return self._carry(as_of_s, now_s)

    def _carry(self, at_s: int, now_s: int) -> bool:
        """Go on with the steps of the decision; False: an answer is missing, it is asked for again later."""
        state, decided = self.state, self.state.decided
        assert decided is not None
        at_s = at_s if now_s - at_s <= LATE_S else now_s
        while True:
            at_s = max(at_s, self._last_s())
            due = state.due(at_s)
            if due and (decided.fill is not None or state.step is None):
                if not self._ask(due[0], at_s):
                    return False
            elif state.step is not None:
                self._take(state.step, decided, at_s)
            else:
                return True

    def _take(self, step: Buy | BuyOnDemand | Mark, decided: Decided, at_s: int) -> None:
        state, plan = self.state, self._plan
        late = at_s - decided.at_s > LATE_S or state.draining is not None
        match step:
            case Mark(what, number):
                allocation = state.account.find(number)
                if allocation is None or allocation.phase is Phase.REQUESTED:
                    self._put(Passed(at_s, f"allocation {number} is not held any more"))
                elif what == "release":
                    self._give_back(at_s, number)
                    self._put(Ended(at_s, number, Ending.TERMINATED, step=True))
                    self._tell(at_s)
                else:
                    self._put(Marked(at_s))
                    if what == "let_go":
                        self._announce(at_s, number)
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

    def _announce(self, at_s: int, number: int) -> None:
        """Warn the trainer of the instances that leave with their hour, as of any others that leave."""
        allocation = self.state.account.find(number)
        assert allocation is not None
        deadline_s = allocation.hour_start_s + HOUR_S
        for instance in self.state.instances.get(number, ()):
            what = (f"hour-end-{instance.instance_id}", instance.instance_id, Alert.HOUR_END, deadline_s)
            self._trainer.warn(at_s, Notice(*what))

    def _answer_due(self, at_s: int, now_s: int) -> bool:
        return all(self._ask(pending, at_s) for pending in self.state.due(at_s))

    def _ask(self, pending: Pending, at_s: int) -> bool:
        """Place an order, or ask again what became of it; False: no answer yet."""
        market = pending.order.market
        try:
            instances, why = self._cloud.acquire(pending.order), ""
        except RefusedError as error:
            instances, why = (), str(error)
        except MarketClosedError as error:
            if self.state.closing is None:
                raise
            instances, why = (), str(error)
        except UnknownOutcomeError:
            self._retry_s = self._time.now_s() + RETRY_S
            return False
        if instances:
            at_s = max(pending.ordered.at_s, min(instance.launched_s for instance in instances))
        price = pending.order.bid if pending.order.on_demand else self._cloud.price(market, at_s)
        self._put(Answered(at_s, pending.ordered.order, price, instances, why))
        if instances:
            self._tell(at_s)
        return True

    def _reconcile(self, now_s: int) -> None:
        """Instances with our tag that belong to nothing are given back."""
        known = {instance.instance_id for instance in self.state.open_instances()}
        tokens = {pending.order.token for pending in self.state.pending.values()}
        for instance in self._cloud.held():
            if instance.instance_id not in known and instance.token not in tokens:
                self._put(Stray(now_s, instance))
                self._cloud.release((instance.instance_id,))
        self._reconciled_s = now_s
