"""Chooses between static shares, shares by speed and help, from what the workers' speeds would have made of each.

How fast every worker was in a clock says what that clock would have taken with either shares, and about what it would
have taken with help. Another remedy is chosen when it has saved enough in the latest clocks, and more than the
differences between them can explain. It is then judged by what clocks really take. Help that is no better is not tried
again. Shares by speed go on only while clocks are shorter than they were with static shares: a worker with few units
looks slow where each clock costs it a fixed time, or where other programs have its cores, and so its speed cannot tell
what static shares would take. A few clocks with static shares tell: if they are longer, all workers have become slower,
and shares by speed go on; if not, they may be tried again after a pause, which doubles each time.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Generic

from straggler.lbbsp.messages import SumsOf, messages_s
from straggler.lbbsp.policy import LbBsp, UnitPlan, Worker, upper_median
from straggler.lbbsp.remedy import WORDS, Choice, Remedy, duration_s, helped_s
from straggler.speed.predictors import FREE, Resources, RestartingEma

WINDOW = 16  # clocks, that a choice looks back at
WORTH = 0.05  # of a clock, that another remedy must save in them
# The same, where shares by speed save much; a few busy clocks of equal workers do not.
QUICK, QUICK_WORTH = 4, 0.2
# Standard errors, that it must save as well: fewer for help, which clocks then prove right or wrong.
TIMES, QUICK_TIMES, HELP_TIMES = 5.0, 10.0, 2.5
HOLD = 0.01  # see `LbBsp`
PAUSE, MOST_PAUSE = 64, 1024  # clocks with static shares after shares by speed that did not pay

Costs = Mapping[Remedy, float]  # the seconds of a clock with each remedy that may be chosen


class AutoBalance(Generic[Worker]):
    """A `Balancer` that begins with the units at home and changes to what is found to be better.

    `options`: the remedies to choose from; the units at home are always one. `sums_of`: see `LbBsp`.
    """

    def __init__(
        self,
        units: int,
        home: Mapping[Worker, int],
        options: Sequence[Remedy] = (Remedy.STATIC, Remedy.SHARES),
        sums_of: SumsOf | None = None,
    ) -> None:
        assert Remedy.STATIC in options, options
        self.remedy = Remedy.STATIC
        self._units = units
        self._home = dict(home)
        self._options = list(options)
        self._shares: LbBsp[Worker] = LbBsp(units, RestartingEma, home=home, hold=HOLD, sums_of=sums_of)
        self._by_speed: UnitPlan[Worker] | None = None  # the last plan, whether it is used or not
        self._speeds: dict[Worker, float] = {}  # of the clock under way
        self._transfers_s: dict[Worker, float] = {}  # of it, for each message
        self._took_s: float | None = None
        # The seconds of a clock: with static shares before shares by speed were chosen; with shares by speed before
        # they were given up, until static shares are measured again.
        self._static_s: float | None = None
        self._shares_s: float | None = None
        self._pause = PAUSE  # clocks of the next pause
        self._paused = 0  # clocks of the present one that are left
        self._costs: deque[Costs] = deque(maxlen=WINDOW)
        self._has_told = False

    def observe(
        self,
        worker: Worker,
        units: int,
        seconds: float,
        resources: Resources = FREE,
        *,
        other_s: float = 0.0,
        sums: int = 1,
        expected: float | None = None,
    ) -> None:
        """See `Balancer`. With help a worker's last push tells nothing of messages: it may have waited for a helper."""
        if self.remedy is Remedy.HELP:
            other_s = (1 + sums) * self._transfers_s.get(worker, 0.0)
        self._shares.observe(worker, units, seconds, resources, other_s=other_s, sums=sums, expected=expected)
        self._speeds[worker] = units / seconds
        self._transfers_s[worker] = other_s / (1 + sums)

    def clock_took(self, seconds: float) -> None:
        """See `Balancer`."""
        self._took_s = seconds

    def forget(self, worker: Worker) -> None:
        """Drop a worker that left."""
        self._shares.forget(worker)
        self._speeds.pop(worker, None)

    def plan(
        self, workers: tuple[Worker, ...], resources: Mapping[Worker, Resources] | None = None
    ) -> UnitPlan[Worker]:
        """The units of the next clock, and the choice if one was made."""
        chosen = None
        if self._speeds.keys() >= set(workers) and self._by_speed is not None:
            self._costs.append(self._cost(workers))
            chosen = self._choose()
            self._speeds = {}
        self._by_speed = by_speed = self._shares.plan(workers, resources)
        if self.remedy is Remedy.SHARES:
            return UnitPlan(workers, by_speed.units, by_speed.predicted_s, by_speed.reason, chosen=chosen)
        home = tuple(self._home[worker] for worker in workers)
        took_s = self._costs[-1][self.remedy] if self._costs else 0.0
        helps = self.remedy is Remedy.HELP
        return UnitPlan(workers, home, took_s, WORDS[self.remedy], helps=helps, chosen=chosen)

    def _cost(self, workers: tuple[Worker, ...]) -> Costs:
        """The time of the last clock with each remedy that may be chosen, its workers as fast as they were. The plan
        was made before it."""
        assert self._by_speed is not None
        speeds = [self._speeds[worker] for worker in workers]
        transfers_s, sums_of = [self._transfers_s[worker] for worker in workers], self._shares.sums_of
        planned = dict(zip(self._by_speed.workers, self._by_speed.units, strict=True))
        home = tuple(self._home[worker] for worker in workers)
        by_speed = tuple(planned.get(worker, 0) for worker in workers)
        at_home_s = messages_s(home, transfers_s, sums_of)
        costs = {
            Remedy.STATIC: duration_s(home, speeds, at_home_s),
            Remedy.SHARES: duration_s(by_speed, speeds, messages_s(by_speed, transfers_s, sums_of)),
        }
        if self.remedy is Remedy.HELP and self._took_s is not None:
            costs[Remedy.HELP] = self._took_s
        elif Remedy.HELP in self._options:
            costs[Remedy.HELP] = helped_s(self._units, speeds, at_home_s)
        return costs

    def _choose(self) -> Choice | None:
        """The remedy that saves most, if one saves enough; or, once, that none does."""
        if self._do_shares_not_pay():
            return self._give_shares_up()
        if self._did_shares_pay():
            return self._go_on_with_shares()
        self._paused = max(0, self._paused - 1)
        found = {option: saved for option in self._options if (saved := self._saved(option)) > 0}
        if found:
            best = max(found, key=found.__getitem__)
            reason = self._reason()
            if self.remedy is Remedy.HELP:  # what comes after it has to prove itself against static shares
                best = Remedy.STATIC
                self._options.remove(Remedy.HELP)
            self._static_s = upper_median(costs[Remedy.STATIC] for costs in self._costs)
            return self._change_to(best, reason)
        if self._has_told or len(self._costs) < WINDOW:
            return None
        self._has_told = True
        return Choice(self.remedy, self._reason())

    def _change_to(self, remedy: Remedy, reason: str) -> Choice:
        self.remedy, self._has_told = remedy, True
        self._costs.clear()
        return Choice(remedy, reason)

    def _do_shares_not_pay(self) -> bool:
        """True when the latest clocks with shares by speed were no shorter than those with static shares before."""
        if self.remedy is not Remedy.SHARES or self._static_s is None or len(self._costs) < WINDOW:
            return False
        return upper_median(costs[Remedy.SHARES] for costs in self._costs) >= self._static_s

    def _give_shares_up(self) -> Choice:
        now_s = upper_median(costs[Remedy.SHARES] for costs in self._costs)
        reason = (
            f"a clock takes {now_s:.3g} s with {WORDS[Remedy.SHARES]} (the last {len(self._costs)} clocks) and took "
            f"{self._static_s:.3g} s with {WORDS[Remedy.STATIC]} before"
        )
        self._shares_s = now_s
        self._paused, self._pause = self._pause, min(2 * self._pause, MOST_PAUSE)
        return self._change_to(Remedy.STATIC, reason)

    def _did_shares_pay(self) -> bool:
        """True when the first clocks with static shares are longer than those before, for which they were given up."""
        if self.remedy is not Remedy.STATIC or self._shares_s is None or len(self._costs) < QUICK:
            return False
        before_s, self._shares_s = self._shares_s, None
        return upper_median(costs[Remedy.STATIC] for costs in self._costs) > (1 + WORTH) * before_s

    def _go_on_with_shares(self) -> Choice:
        self._static_s, self._paused = upper_median(costs[Remedy.STATIC] for costs in self._costs), 0
        return self._change_to(Remedy.SHARES, self._reason())

    def _saved(self, option: Remedy) -> float:
        """The seconds of a clock that an option saves; 0 where it is too little, or may be chance."""
        if option is self.remedy or (option is Remedy.SHARES and self._paused):
            return 0.0
        if Remedy.HELP in (option, self.remedy):
            return self._surely_saved(option, WINDOW, WORTH, HELP_TIMES)
        saved = self._surely_saved(option, WINDOW, WORTH, TIMES)
        if option is Remedy.SHARES:
            saved = max(saved, self._surely_saved(option, QUICK, QUICK_WORTH, QUICK_TIMES))
        return saved

    def _surely_saved(self, option: Remedy, clocks: int, worth: float, times: float) -> float:
        latest = list(self._costs)[-clocks:]
        if len(latest) < clocks:
            return 0.0
        now_s = math.fsum(costs[self.remedy] for costs in latest) / clocks
        gains = [costs[self.remedy] - costs[option] for costs in latest]
        mean = math.fsum(gains) / clocks
        error = math.sqrt(math.fsum((gain - mean) ** 2 for gain in gains) / (clocks - 1) / clocks)
        return mean if mean >= worth * now_s and mean >= times * error else 0.0

    def _mean_s(self, option: Remedy) -> float:
        return math.fsum(costs[option] for costs in self._costs) / len(self._costs)

    def _reason(self) -> str:
        """The time that a clock took, or would have taken, with each remedy to choose from."""
        count = len(self._costs)
        each = [f"{self._mean_s(option):.3g} s with {WORDS[option]}" for option in self._options]
        several = ", ".join(each[:-1])
        return f"a clock takes {several} and {each[-1]} (the last {count} clocks)" if several else each[0]
