"""Market rules: what an allocation is charged and refunded, hour by hour.

A rule set answers at three moments of an instance hour: it begins, it is over and the allocation goes on, or the
allocation closes inside it (or exactly at its end). Amounts are whole micro-dollars, one rounded line each. The
formulas are in `hourly_2016` and `per_second`; a new rule set is one more class in `RULES`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from bidbrain.billing import hourly_2016, per_second
from bidbrain.money import HOUR_S


class Ending(StrEnum):
    """How an allocation ended: evicted by the market, terminated by us, or open at the job's end."""

    EVICTED = "evicted"
    TERMINATED = "terminated"
    JOB_END = "job_end"


@dataclass(frozen=True)
class InstanceHour:
    """One instance hour of an allocation: its price (micro-dollars per machine hour) is that of its beginning."""

    number: int
    price: int
    vcpus: int
    vcpus_per_machine: int


class Rules(Protocol):
    """Amounts of an allocation in micro-dollars: positive ones are charges, negative ones refunds, 0 is no line."""

    name: str

    def begins(self, hour: InstanceHour) -> int:
        """Charged when the hour begins."""
        ...

    def passes(self, hour: InstanceHour) -> int:
        """Charged when the hour is over and the allocation goes on."""
        ...

    def closes(self, hour: InstanceHour, used_s: int, ending: Ending) -> int:
        """Charged or refunded when the allocation ends `used_s` (0 .. 3600) into the hour."""
        ...

    def is_free(self, hour: InstanceHour, used_s: int, ending: Ending) -> bool:
        """Whether the used seconds of the closing hour cost nothing in the end."""
        ...


class Hourly2016:
    """`hourly_2016`: bids, whole hours, refunds."""

    name = "hourly_2016"

    def begins(self, hour: InstanceHour) -> int:
        return hourly_2016.charge_at_start(hour.price, hour.vcpus, hour.vcpus_per_machine)

    def passes(self, hour: InstanceHour) -> int:
        return 0

    def closes(self, hour: InstanceHour, used_s: int, ending: Ending) -> int:
        what = (hour.price, hour.vcpus, hour.vcpus_per_machine, used_s)
        if ending is Ending.EVICTED:
            return -hourly_2016.refund_at_eviction(*what)
        return -hourly_2016.refund_at_job_end(*what) if ending is Ending.JOB_END else 0

    def is_free(self, hour: InstanceHour, used_s: int, ending: Ending) -> bool:
        return ending is Ending.EVICTED and used_s < HOUR_S


class PerSecond:
    """`per_second`: the rules since December 2017."""

    name = "per_second"

    def begins(self, hour: InstanceHour) -> int:
        return 0

    def passes(self, hour: InstanceHour) -> int:
        return self.closes(hour, HOUR_S, Ending.TERMINATED)

    def closes(self, hour: InstanceHour, used_s: int, ending: Ending) -> int:
        what = (hour.price, hour.vcpus, hour.vcpus_per_machine, used_s, hour.number)
        if ending is Ending.EVICTED:
            return per_second.charge_at_eviction(*what)
        return per_second.charge_at_close(*what)

    def is_free(self, hour: InstanceHour, used_s: int, ending: Ending) -> bool:
        return ending is Ending.EVICTED and used_s < HOUR_S and hour.number == 0


class PerSecondPaid(PerSecond):
    """`per_second_paid`: by the second, and evicted seconds are paid too, in the first hour as in any other.

    Other providers bill so. It is also the cautious rule where not all recorded losses may have been the provider's.
    """

    name = "per_second_paid"

    def closes(self, hour: InstanceHour, used_s: int, ending: Ending) -> int:
        return per_second.charge_at_close(hour.price, hour.vcpus, hour.vcpus_per_machine, used_s, hour.number)

    def is_free(self, hour: InstanceHour, used_s: int, ending: Ending) -> bool:
        return False


RULES: dict[str, Rules] = {rules.name: rules for rules in (Hourly2016(), PerSecond(), PerSecondPaid())}


@dataclass(frozen=True)
class Life:
    """One allocation from its grant to its end (None: it still runs), in s.

    hour: the instance hour in which we terminated it (None: not known). It says on which side of a boundary that was:
    an allocation may go with its hour, or be given back when the next one has just begun, and is paid.
    """

    grant_s: int
    vcpus: int
    vcpus_per_machine: int
    end_s: int | None
    ending: Ending | None
    hour: int | None = None


@dataclass(frozen=True)
class Line:
    """One line of a bill: instance hour `hour` charged (> 0) or refunded (< 0) at `at_s`."""

    at_s: int
    hour: int
    price: int
    micro_usd: int


def bill(rules: Rules, life: Life, price_at: Callable[[int], int], now_s: int) -> Iterator[Line]:
    """The lines of one allocation's bill up to `now_s`. price_at: micro-dollars/h at an instant (s)."""
    end_s = now_s if life.end_s is None else life.end_s
    number = 0
    while True:
        begin_s = life.grant_s + number * HOUR_S
        hour = InstanceHour(number, price_at(begin_s), life.vcpus, life.vcpus_per_machine)
        if amount := rules.begins(hour):
            yield Line(begin_s, number, hour.price, amount)
        over_s = begin_s + HOUR_S
        begins_another = life.ending is None or (life.hour is not None and life.hour > number)
        if over_s < end_s or (over_s == end_s and begins_another):
            if amount := rules.passes(hour):
                yield Line(over_s, number, hour.price, amount)
            number += 1
            continue
        if life.ending is not None and (amount := rules.closes(hour, end_s - begin_s, life.ending)):
            yield Line(end_s, number, hour.price, amount)
        return
