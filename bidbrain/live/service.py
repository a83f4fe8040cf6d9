"""The decision loop of a live job: watches the market, asks the policy, journals its decisions and carries them out.

The pure parts are `state`, `decide` and `guards`; `steps` carries a decision out and ends the job, `held` follows the
instances, and this module calls them in order. The service journals every action before it acts, so the next service
continues where the last one died: it asks about an unanswered order with the same token, repeats releases, and gives
back instances that belong to no order.

Within an instant the order is that of `simulate.simulator`: hours end and evictions come (in order of acquisition),
orders come due, the policy decides. Events between two polls are processed chronologically.
"""

from __future__ import annotations

from dataclasses import replace

from bidbrain.billing.per_second import MINIMUM_S
from bidbrain.history.prices import NEVER_S
from bidbrain.live.cloud import (
    Cloud,
    CloudError,
    EndedInstance,
    MarketClosedError,
    Quotes,
    UnknownOutcomeError,
)
from bidbrain.live.decide import decide, lost_reliable, view_of
from bidbrain.live.guards import over_budget
from bidbrain.live.held import HeldInstances
from bidbrain.live.job import (
    EXIT_BUDGET,
    EXIT_FINISHED,
    EXIT_MARKET_CLOSED,
    EXIT_STOPPED,
    JobPlan,
    LiveJob,
    Log,
    Timekeeper,
    Trainer,
)
from bidbrain.live.journal import (
    Closing,
    Decided,
    Draining,
    Opened,
    Troubled,
)
from bidbrain.live.keeping import RiskKeeper
from bidbrain.live.steps import LATE_S, RETRY_S, DecisionSteps, JobEnd
from bidbrain.live.troubles import TroubleWatch

MOST_RETRY_S = 600  # between two decisions of a policy whose orders a quota or a limit refuses
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
        self._job = LiveJob(plan, cloud, trainer, time, journal)
        self.state = self._job.state
        self._keeper = keeper
        self._watch = TroubleWatch()
        self._held = HeldInstances(self._job)
        self._steps = DecisionSteps(self._job, self._held, self._watch)
        self._end = JobEnd(self._job, self._held, self._steps)
        self._reconciled_s = -RECONCILE_S
        self._stepped_s = -1  # the last step did what was due by then, as far as it could be done
        self._stop: str | None = None

    def stop(self, reason: str) -> None:
        """Drain and end; may be called from a signal handler."""
        self._stop = reason

    def run(self) -> Closing:
        """Run to the job's end. Raises CloudError (credentials), PolicyError; instances stay for the next service."""
        if self.state.opened is None:
            plan, least_s = self._job.plan, 0 if self._job.cloud.together else MINIMUM_S
            self._job.put(Opened(plan.name, plan.scheme, plan.start_s, least_s))
        self._held.tell_again(self._job.time.now_s())
        while self.state.closed is None:
            self.step()
            if self.state.closed is None:
                # Overdue work that a step has left waits for an answer or for reliable machines, and does not shorten
                # the wait: `retry_s` does.
                due_s = NEVER_S if self._watch.is_unanswered else self.state.next_s(self._stepped_s)
                until_s = min(due_s, self._steps.retry_s)
                decided = self.state.decided
                self._job.time.wait(until_s, decided is not None and decided.wake_on_market)
        assert self.state.closing is not None
        return self.state.closing

    def step(self) -> None:
        """Do everything that is due now."""
        now_s = self._stepped_s = self._job.time.now_s()
        self._steps.retry_s = NEVER_S
        self._watch.begin()
        self.state.carry(now_s)
        if self.state.closing is None and not self._check_end(now_s):
            self._advance(now_s)
        if self.state.closing is not None:
            self._end.go_on(now_s, self.state.closing)
        self._watch.failing = tuple(self.state.failures.troubles(now_s))
        if (troubles := self._watch.troubles(now_s, self._job.time.trouble)) != self.state.troubles:
            self._job.put(Troubled(now_s, troubles))
        if self._keeper is not None:
            self._keeper.keep(now_s, self.state.risk, is_last=self.state.closed is not None)

    # -- the end ------------------------------------------------------------------------------------------------

    def _check_end(self, now_s: int) -> bool:
        """Begin to drain or to close if there is a reason. Returns True once the job is over."""
        report = self._job.trainer.report(now_s)
        if report.finished_s is not None:
            self._job.put(Closing(report.finished_s, True, "the work is done", EXIT_FINISHED))
            return True
        draining = self.state.draining
        if draining is not None and (report.drained or now_s >= draining.deadline_s):
            self._job.put(Closing(now_s, False, draining.reason, draining.code))
            return True
        if draining is None:
            plan = self._job.plan
            reason, code = self._over_budget(now_s), EXIT_BUDGET
            reason = reason or lost_reliable(plan.setting, self.state, plan.limits, now_s)
            if reason is None:
                reason, code = self._stop, EXIT_STOPPED
            if reason is not None:
                self._job.put(Draining(now_s, now_s + self._job.plan.drain_s, reason, code))
                self._job.trainer.drain(now_s, now_s + self._job.plan.drain_s)
        return False

    def _over_budget(self, now_s: int) -> str | None:
        """The reason to stop for the budget. After an absence, or if the clock was set forward, the account may count
        machines that have ended: the service first asks the cloud for their ends."""
        limits, account = self._job.plan.limits, self.state.account
        if over_budget(limits, account, now_s) is None:
            return None
        try:
            self._held.record_ends()
        except UnknownOutcomeError as error:
            self._steps.not_answered(error)
        except CloudError:
            pass  # the budget holds without an answer; the service meets and reports the error again
        return over_budget(limits, account, now_s)

    # -- going on -----------------------------------------------------------------------------------------------

    def _advance(self, now_s: int) -> None:
        """Go through everything that happened until now, in the order of time, and decide where the policy is due."""
        state = self.state
        self._steps.pass_on_notices(now_s)
        try:
            ended = self._held.ended()
            quotes = self._quotes(now_s)
            decided = state.decided
            if decided is not None and not self._carry_out(decided, now_s):
                # Ended machines, and the reliable ones, do not wait for an answer to the rest of the decision.
                self._held.record_until(now_s, ended)
                self._steps.buy_reliable(now_s)
                return
            if now_s - self._reconciled_s >= RECONCILE_S:
                self._held.give_back_strays(now_s)
                self._reconciled_s = now_s
            if not self._steps.buy_reliable(now_s):
                self._held.record_until(now_s, ended)  # the policy waits for them
                return
            if quotes is None:  # the policy cannot decide, but events are journaled
                self._held.record_until(now_s, ended)
            elif self._go_through(now_s, ended, quotes):
                self._look_again(now_s, quotes, ended)
        except MarketClosedError as error:
            self._job.put(Closing(now_s, False, str(error), EXIT_MARKET_CLOSED))
        except UnknownOutcomeError as error:
            self._steps.not_answered(error)

    def _carry_out(self, decided: Decided, now_s: int) -> bool:
        """Take the newest decision's remaining steps; False: an answer is missing, as of a machine that may not end."""
        try:
            return self._steps.carry_out(decided.at_s, now_s)
        except UnknownOutcomeError as error:
            self._steps.not_answered(error)
            return False

    def _quotes(self, now_s: int) -> Quotes | None:
        """The market now; None: no answer."""
        try:
            quotes = self._job.cloud.quotes(now_s)
        except UnknownOutcomeError as error:
            self._steps.not_answered(error)
            return None
        self._watch.quoted = quotes.troubles
        if not (left_alone := self.state.failures.left_alone(now_s)):
            return quotes
        # A policy that waits for the market waits for these markets, too.
        pulse = " ".join([quotes.pulse, *sorted(map(str, left_alone))])
        return replace(quotes, pulse=pulse, full=quotes.full | left_alone)

    def _go_through(self, now_s: int, ended: dict[int, EndedInstance], quotes: Quotes) -> bool:
        """Process every instant until now at which something happened or is due. False: the rest is done later."""
        state = self.state
        while (at_s := min([state.next_s(), *(last.at_s for last in ended.values())])) <= now_s or state.asks:
            at_s = max(min(at_s, now_s), self.state.last_s)  # a purchase may have taken seconds
            if state.draining is not None and at_s >= state.draining.deadline_s:
                return False
            self._held.record_events(at_s, ended)
            if not all(self._steps.ask(pending, at_s) for pending in state.due(at_s)):
                return False
            woken = state.wake_s is not None and state.wake_s <= at_s
            if (state.asks or woken) and now_s - at_s > LATE_S:
                # The policy decides as of now, so it must see all events until now.
                self._held.record_until(now_s, ended)
                if not all(self._steps.ask(pending, now_s) for pending in state.due(now_s)):
                    return False
            if (state.asks or woken) and not self._decide(at_s, now_s, quotes, ended):
                return False
        return True

    def _decide(self, at_s: int, now_s: int, quotes: Quotes, ended: dict[int, EndedInstance]) -> bool:
        """Ask the policy and carry its decision out; False: an answer is missing, and the rest is done later."""
        as_of_s = max(at_s if now_s - at_s <= LATE_S else now_s, self.state.last_s)
        self._held.record_up_to(as_of_s, ended)
        plan, state = self._job.plan, self.state
        report = self._job.trainer.report(as_of_s)
        view = view_of(plan.setting, state, quotes, report.measured, plan.limits, report.done_vcpu_s)
        decided = decide(as_of_s, plan.policy, view, state, quotes, plan.setting, self._job.cloud.together)
        self._job.put(decided)
        return self._steps.carry_out(as_of_s, now_s)

    def _look_again(self, now_s: int, quotes: Quotes, ended: dict[int, EndedInstance]) -> None:
        """Decide when the market changes, if the policy waits for that. Decide again soon if a market was full; ever
        later if a quota or a limit refused the orders."""
        state, decided = self.state, self.state.decided
        if decided is None or state.draining is not None:
            return
        if decided.wake_on_market and decided.pulse != quotes.pulse:
            self._decide(now_s, now_s, quotes, ended)
        elif state.full and decided.fill is None and not self._job.cloud.together:
            due_s = decided.at_s + min(RETRY_S << min(state.in_vain, 10), MOST_RETRY_S)
            if now_s >= due_s:
                self._decide(now_s, now_s, quotes, ended)
            else:
                self._steps.retry_s = min(self._steps.retry_s, due_s)
