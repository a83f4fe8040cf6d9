"""The steps of a decision, and those of a job's end: takes them, and asks until each call has an answer."""

from __future__ import annotations

from collections.abc import Callable

from bidbrain.billing import Ending
from bidbrain.history.prices import NEVER_S
from bidbrain.live.cloud import CapacityError, Instance, MarketClosedError, RefusedError, UnknownOutcomeError
from bidbrain.live.decide import allowed, allowed_on_demand, on_demand_size
from bidbrain.live.guards import affordable
from bidbrain.live.held import HeldInstances
from bidbrain.live.job import LiveJob
from bidbrain.live.journal import (
    Answered,
    Buy,
    BuyOnDemand,
    Closed,
    Closing,
    Decided,
    Ended,
    Mark,
    Marked,
    Marking,
    Ordered,
    Passed,
    Released,
    Skip,
)
from bidbrain.live.state import Pending
from bidbrain.live.troubles import TroubleWatch
from bidbrain.money import machine_seconds_micro_usd
from bidbrain.policy.base import Phase

LATE_S = 60  # decisions up to this late are dated at their due time; later purchases are dropped
RETRY_S = 10  # until a call without an answer is repeated
# Until refused reliable instances are ordered again; the second, at most, after a quota or a mistake that a person must
# mend.
RELIABLE_RETRY_S, MOST_RELIABLE_RETRY_S = 60, 600
POLL_S = 5  # between two polls for notices while a decision is carried out


class DecisionSteps:
    """Carries out the newest decision of a job. `retry_s`: when something is to be tried again."""

    def __init__(self, job: LiveJob, held: HeldInstances, watch: TroubleWatch) -> None:
        self.retry_s = NEVER_S
        self._job, self._held, self._watch = job, held, watch
        self._polled_s = 0
        self._unplaced: set[int] = set()  # orders of this process that the cloud has not heard of
        self._reliable_due_s = 0  # refused reliable instances are not ordered before
        self._reliable_pause_s = RELIABLE_RETRY_S

    def pass_on_notices(self, now_s: int) -> None:
        """Pass notices on even if other calls have no answer: the machines have two minutes."""
        self._polled_s = now_s
        try:
            self._held.pass_on_notices(now_s)
        except UnknownOutcomeError as error:
            self.not_answered(error)

    def _poll_between_steps(self) -> None:
        """Pass notices on between steps: on a cloud a step may take a minute, such as a machine that must leave."""
        now_s, is_silent = self._job.time.now_s(), self._watch.is_unanswered
        if not self._job.cloud.together and not is_silent and now_s - self._polled_s >= POLL_S:
            self.pass_on_notices(now_s)

    def carry_out(self, at_s: int, now_s: int) -> bool:
        """Take the decision's remaining steps; False: an answer is missing, and the rest is done later."""
        state, decided = self._job.state, self._job.state.decided
        assert decided is not None
        begun_s = at_s = max(at_s if now_s - at_s <= LATE_S else now_s, state.last_s)
        while True:
            self._poll_between_steps()
            at_s = max(at_s, state.last_s)
            # On a cloud the machines of earlier steps take time to leave: that does not make a purchase late.
            known_s = at_s if self._job.cloud.together else begun_s
            is_late = known_s - decided.at_s > LATE_S or state.draining is not None
            if waiting := self._to_be_asked(decided, at_s):
                if not self.ask(waiting[0], at_s):
                    return False
            elif state.step is not None:
                self._take_step(state.step, at_s, is_late=is_late)
            else:
                return True

    def _to_be_asked(self, decided: Decided, at_s: int) -> list[Pending]:
        """The orders that need an answer before the next step. On-demand orders always do: a later step may give back
        the machines that they replace."""
        due = self._job.state.due(at_s)
        if decided.fill is not None or self._job.state.step is None:
            return due
        return [each for each in due if each.order.on_demand]

    def _take_step(self, step: Buy | BuyOnDemand | Mark, at_s: int, *, is_late: bool) -> None:
        state, plan = self._job.state, self._job.plan
        match step:
            case Mark(what, number):
                allocation = state.account.find(number)
                if allocation is None or allocation.phase is Phase.REQUESTED:
                    self._job.put(Passed(at_s, f"allocation {number} is not held any more"))
                elif what is Marking.RELEASE and not state.replacing.may_give_back(allocation.vcpus):
                    why = f"allocation {number} is kept: its replacement was not bought"
                    self._job.put(Passed(at_s, why, Skip.NOT_REPLACED))
                elif what is Marking.RELEASE:
                    self._held.give_back(at_s, number)
                    gone_s = at_s if self._job.cloud.together else max(at_s, self._job.time.now_s())
                    self._job.put(Ended(gone_s, number, Ending.TERMINATED, step=True))
                    self._held.tell(gone_s)
                else:
                    self._job.put(Marked(at_s))
                    for notice in state.hour_end_notices(number) if what is Marking.LET_GO else ():
                        self._job.trainer.warn(at_s, notice)
            case _ if is_late:
                self._job.put(Passed(at_s, "too late for a purchase that was decided before"))
            case Buy(market):
                may = allowed(step, state, plan.limits, at_s)
                if not may.parts:
                    self._job.put(Passed(at_s, may.why))
                    return
                due_s = at_s + plan.setting.bidding.grant_delay_s
                self._order(Ordered(at_s, state.orders, market, may.vcpus, may.parts, may.bid, due_s))
            case BuyOnDemand():
                together = self._job.cloud.together
                may = allowed_on_demand(step, plan.setting, state, plan.limits, at_s, together)
                if not may.parts:
                    self._job.put(Passed(at_s, may.why))
                    return
                market = plan.setting.reliable.market
                self._order(Ordered(at_s, state.orders, market, may.vcpus, may.parts, may.bid, at_s))

    def _order(self, ordered: Ordered) -> None:
        self._job.put(ordered)
        self._unplaced.add(ordered.order)

    def ask(self, pending: Pending, at_s: int) -> bool:
        """Place an order, or ask about it again; False: no answer yet."""
        market = pending.order.market
        try:
            instances, why, by_market = self._bought(pending)
            if instances:
                at_s = max(pending.ordered.at_s, min(instance.launched_s for instance in instances))
            price = pending.order.bid if pending.order.on_demand else self._job.cloud.price(market, at_s)
        except UnknownOutcomeError as error:
            self.not_answered(error)
            return False
        answer = Answered(at_s, pending.ordered.order, price, instances, why, by_market)
        self._job.put(answer)
        if pending.ordered.reliable:
            self._pause_reliable(answer)
        if instances:
            self._held.tell(at_s)
        return True

    def _bought(self, pending: Pending) -> tuple[tuple[Instance, ...], str, bool]:
        """The instances of an order, or none; why; and whether the market itself refused (see `Answered`). On a cloud a
        job that is ending places no order that it has not placed before: a missing answer to an earlier order may have
        delayed it until now."""
        state, together = self._job.state, self._job.cloud.together
        ends = state.draining is not None or state.closing is not None
        if ends and not together and pending.ordered.order in self._unplaced:
            return (), "it was not placed: the job ends", False
        self._unplaced.discard(pending.ordered.order)
        order = pending.order
        try:
            instances = self._job.cloud.acquire(order)
            if together or order.on_demand or len(instances) == order.instances:
                return instances, "", True
            # The rest may be refused by a quota: the next order there says by what.
            return instances, f"the market sold {len(instances)} of {order.instances}", False
        except RefusedError as error:
            return (), str(error), together or isinstance(error, CapacityError)
        except MarketClosedError as error:
            if state.closing is None:
                raise
            return (), str(error), False

    def buy_reliable(self, now_s: int) -> bool:
        """Buy the reliable instances that the job lacks. True if it has any: nothing else starts without them."""
        state, plan = self._job.state, self._job.plan
        if not plan.with_reliable or not plan.setting.reliable.vcpus:
            return True
        waiting = [each for each in state.pending.values() if each.ordered.reliable]
        if not waiting and state.draining is not None:
            return True  # a job that is ending buys nothing
        if not waiting and self._order_reliable(now_s):
            waiting = [each for each in state.pending.values() if each.ordered.reliable]
        if waiting and not self.ask(waiting[0], now_s):
            return False
        due_s = max(self._reliable_due_s, state.failures.until_s(plan.setting.reliable.market))
        if state.lacks_reliable and due_s > now_s:  # else the limits leave no room for them
            self.retry_s = min(self.retry_s, due_s)
        return state.has_reliable

    def _order_reliable(self, now_s: int) -> bool:
        """Order the reliable instances that the job lacks, within the limits if it has some. True if it ordered any."""
        state, plan = self._job.state, self._job.plan
        reliable, limits, count = plan.setting.reliable, plan.limits, state.lacks_reliable
        if not count or now_s < max(self._reliable_due_s, state.failures.until_s(reliable.market)):
            return False
        each = reliable.vcpus_per_machine
        if state.has_reliable:
            if limits.max_machines is not None:
                count = min(count, limits.max_machines - state.instance_count)
            hour = machine_seconds_micro_usd(reliable.on_demand, each, each, limits.hold_s)
            while count > 0 and affordable(limits, state.account, now_s, count * hour):
                count -= 1
            if count <= 0:
                return False
        vcpus = min(count * each, reliable.vcpus)
        size = on_demand_size(vcpus, each, self._job.cloud.together)
        what = (state.orders, reliable.market, *size, reliable.on_demand, now_s)
        self._job.put(Ordered(now_s, *what, reliable=True))
        return True

    def _pause_reliable(self, answer: Answered) -> None:
        """Order no more for a while if the market did not sell all of them; ever longer if a quota or limit refused."""
        if not self._job.state.lacks_reliable:
            self._reliable_due_s, self._reliable_pause_s, self._watch.refused = 0, RELIABLE_RETRY_S, ""
            return
        if answer.instances or answer.by_market:
            self._reliable_pause_s = RELIABLE_RETRY_S
        self._reliable_due_s = self._job.time.now_s() + self._reliable_pause_s
        why = answer.why or "the market had no more"
        self._watch.refused = (
            f"reliable machines are missing ({why}): they are asked for again every few minutes"
        )
        if not answer.by_market:
            self._reliable_pause_s = min(2 * self._reliable_pause_s, MOST_RELIABLE_RETRY_S)

    def not_answered(self, error: UnknownOutcomeError) -> None:
        """Record that a call had no answer, and repeat it soon."""
        now_s = self._job.time.now_s()
        self.retry_s = now_s + RETRY_S
        self._watch.unanswered(now_s, str(error))


class JobEnd:
    """The end of a job: gives back what it holds, and closes its account.

    It first gives back the known instances, by two calls that need no others: no instance that costs money waits for an
    unanswered order, list or price. It repeats all parts until each has had its answer.
    """

    def __init__(self, job: LiveJob, held: HeldInstances, steps: DecisionSteps) -> None:
        self._job, self._held, self._steps = job, held, steps

    def go_on(self, now_s: int, closing: Closing) -> None:
        """Do every part that is answered now; once all were answered, close the account."""
        known = self._ids()
        is_done = self._is_answered(lambda: self._give_back(now_s, known))
        # While a decision was carried out, the work may have ended: the cloud may have later orders.
        placed_s = closing.at_s if self._job.cloud.together else max(closing.at_s, now_s)
        for pending in self._job.state.due(placed_s):
            is_done &= self._steps.ask(pending, max(closing.at_s, pending.ordered.at_s))
        if (bought := self._ids()) != known:
            is_done &= self._is_answered(lambda: self._give_back(now_s, bought))
        is_done &= self._is_answered(self._give_back_strays)
        if is_done:
            self._is_answered(lambda: self._close(now_s, closing))

    def _ids(self) -> tuple[str, ...]:
        return tuple(instance.instance_id for instance in self._job.state.open_instances())

    def _is_answered(self, part: Callable[[], None]) -> bool:
        try:
            part()
        except UnknownOutcomeError as error:
            self._steps.not_answered(error)
            return False
        return True

    def _give_back(self, now_s: int, ids: tuple[str, ...]) -> None:
        if not ids:
            return
        # If the market closed, or this process is new, the trainer does not know of the end yet.
        self._job.trainer.drain(now_s, now_s + self._job.plan.drain_s)
        self._job.trainer.leave(now_s, ids)
        self._job.cloud.release(ids)
        new = tuple(each for each in ids if each not in self._job.state.released)
        if new and not self._job.cloud.together:
            self._job.put(Released(self._job.time.now_s(), new))

    def _give_back_strays(self) -> None:
        """Call `release` even if there are none: see `Cloud.release`."""
        self._job.cloud.release(tuple(instance.instance_id for instance in self._job.cloud.held()))

    def _close(self, now_s: int, closing: Closing) -> None:
        """Journal the ends before the job's end, then the job's end."""
        state = self._job.state
        if self._job.cloud.together:
            self._held.catch_up(closing.at_s)
        else:
            self._held.catch_up_until_released()
        for allocation in list(state.account.open):
            if allocation.phase is not Phase.REQUESTED:
                end_s = max(closing.at_s, allocation.hour_start_s)
                self._job.put(Ended(end_s, allocation.number, Ending.JOB_END))
        done = self._job.trainer.report(now_s).done_vcpu_s
        self._job.put(Closed(max(closing.at_s, state.last_s), done))
