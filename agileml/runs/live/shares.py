"""The newest shares of work, of waiting and of help, and the prices of a market. Folded from a run's events."""

from __future__ import annotations

from collections import Counter

from agileml.events.market import InstancesBought, PricesChanged
from agileml.events.run import HelpGiven, MachineLost, MachineReleased, RunRestarted, Work, WorkDone
from agileml.events.schema import RunEvent


class WorkShares:
    """The newest window of work, whose parts may come one after the other."""

    def __init__(self) -> None:
        self._window = self._help_window = (0, 0, 0)  # epoch, clock, clocks
        self._work: dict[str, Work] = {}
        self._helped: Counter[str] = Counter()  # by helper, units that it computed for others

    def add(self, event: RunEvent) -> None:
        """Take the next event."""
        match event:
            case WorkDone(epoch, clock, clocks, by_machine):
                if self._window != (epoch, clock, clocks):
                    self._window, self._work = (epoch, clock, clocks), {}
                for machine, done in by_machine.items():
                    before = self._work.get(machine, Work(0, 0.0, 0.0))
                    self._work[machine] = Work(
                        before.units + done.units,
                        before.compute_s + done.compute_s,
                        before.wait_s + done.wait_s,
                    )
            case HelpGiven(epoch, clock, clocks, units):
                if self._help_window != (epoch, clock, clocks):
                    self._help_window, self._helped = (epoch, clock, clocks), Counter()
                for helper, helped in units.items():
                    self._helped[helper] += sum(helped.values())
            case MachineLost(machine) | MachineReleased(machine):
                self._work.pop(machine, None)
                self._helped.pop(machine, None)
            case RunRestarted():
                self._work.clear()
                self._helped.clear()

    @property
    def waiting(self) -> float | None:
        """The share of their time that all machines waited; None before the first window."""
        wait_s = sum(done.wait_s for done in self._work.values())
        all_s = wait_s + sum(done.compute_s for done in self._work.values())
        return wait_s / all_s if all_s > 0 else None

    def by_machine(self) -> dict[str, tuple[float, float, int]]:
        """Its share of the units, the share of its time that it waited, and the units that it computed for others."""
        units = sum(done.units for done in self._work.values()) or 1
        return {
            machine: (
                done.units / units,
                done.wait_s / max(done.wait_s + done.compute_s, 1e-9),
                self._helped[machine],
            )
            for machine, done in self._work.items()
        }


class MarketPrices:
    """The newest price of each market, and what was bought there."""

    def __init__(self) -> None:
        self._now: dict[str, float] = {}
        self._bought: Counter[str] = Counter()
        self._paid: dict[str, tuple[float, float]] = {}

    def add(self, event: RunEvent) -> None:
        """Take the next event."""
        match event:
            case PricesChanged(_, prices):
                self._now |= prices
            case InstancesBought(market=market, instances=instances):
                self._bought[market] += len(instances)
                self._paid[market] = event.price_usd_per_h, event.bid_usd_per_h

    def rows(self, most: int) -> list[tuple[str, float | None, int, float | None, float | None]]:
        """(market, price per instance hour, instances bought, price and bid of the last purchase), the ones that were
        bought from first, then the cheapest."""
        markets = sorted(
            {*self._now, *self._bought},
            key=lambda each: (-self._bought[each], self._now.get(each, 0.0), each),
        )
        nothing = (None, None)
        return [
            (each, self._now.get(each), self._bought[each], *self._paid.get(each, nothing))
            for each in markets[:most]
        ]
