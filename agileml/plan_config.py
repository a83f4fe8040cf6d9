"""Scheduled events of a run as data: `plan:` of a config.

Each event names the clock it comes after and carries exactly one kind, whose key is the name of the kind:

    plan:
      - {at_clock: 3, join: 2, tier: transient}
      - {at_clock: 7, notice: 2, warning_s: 60}
      - {at_clock: 9, notice: all, warning_s: 30}

A new kind is a subclass of `Event` with a field of its own name, listed in `KINDS` and in `Plan`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from agileml.config_text import ConfigError, nearest, show
from agileml.schema import Section, validate


@dataclass(frozen=True)
class Fleet:
    """How many machines of each tier are members."""

    reliable: int
    transient: int

    @property
    def total(self) -> int:
        return self.reliable + self.transient

    def __str__(self) -> str:
        return f"{self.reliable} reliable and {self.transient} transient"


class Event(Section):
    """Something that happens to the machines once clock `at_clock` is complete (clocks count from 1)."""

    kind: ClassVar[str]
    at_clock: Annotated[int, Field(ge=1)]

    def after(self, fleet: Fleet, most: int) -> Fleet:
        """The machines after this event; raises ConfigError if it cannot happen to `fleet`."""
        raise NotImplementedError


class Join(Event):
    """`join` machines of `tier` become members."""

    kind: ClassVar[str] = "join"
    join: Annotated[int, Field(ge=1)]
    tier: Literal["transient", "reliable"] = "transient"

    def after(self, fleet: Fleet, most: int) -> Fleet:
        if fleet.total + self.join > most:
            raise ConfigError(
                f"found {self.join} more machines at clock {self.at_clock}, where there are {fleet}; "
                f"expected at most machines.max = {most} in all",
                key=("join",),
            )
        if self.tier == "reliable":
            return replace(fleet, reliable=fleet.reliable + self.join)
        return replace(fleet, transient=fleet.transient + self.join)

    def __str__(self) -> str:
        return f"clock {self.at_clock}: join {self.join} {self.tier}"


def _count(value: Any) -> Any:
    if value == "all" or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
        return value
    raise ConfigError(f"found {show(value)}, expected a whole number of at least 1, or all")


Count = Annotated[int | Literal["all"], BeforeValidator(_count)]


class Notice(Event):
    """`notice` transient machines (or all of them) are told that they go in `warning_s` seconds."""

    kind: ClassVar[str] = "notice"
    notice: Count
    warning_s: Annotated[float, Field(gt=0)] = 120.0

    def after(self, fleet: Fleet, most: int) -> Fleet:
        return without(fleet, self.notice, self, "notice")

    def __str__(self) -> str:
        return f"clock {self.at_clock}: notice {self.notice}, {self.warning_s:g} s ahead"


def without(fleet: Fleet, count: int | Literal["all"], event: Event, key: str) -> Fleet:
    """`fleet` less `count` transient machines; raises ConfigError if there are not as many."""
    leaving = fleet.transient if count == "all" else count
    if leaving > fleet.transient or not leaving:
        raise ConfigError(
            f"found {count} at clock {event.at_clock}, where there are {fleet} machines; "
            "expected no more than the transient ones there are, and at least one",
            key=(key,),
        )
    return replace(fleet, transient=fleet.transient - leaving)


KINDS: tuple[type[Event], ...] = (Join, Notice)


def _event(value: Any) -> Any:
    if isinstance(value, Event):
        return value
    kinds = {kind.kind: kind for kind in KINDS}
    if not isinstance(value, dict):
        raise ConfigError(f"found {show(value)}, expected a mapping such as {{at_clock: 3, join: 2}}")
    found = [kind for name, kind in kinds.items() if name in value]
    if len(found) > 1:
        raise ConfigError(f"found {show(value)}, expected exactly one of {', '.join(kinds)}")
    if not found:
        unknown = [name for name in value if name not in Event.model_fields]
        for name in unknown:
            if (near := nearest(name, kinds)).startswith("did you mean"):
                raise ConfigError(f"unknown key, {near}", key=(name,))
        raise ConfigError(f"found {show(value)}, expected at_clock and exactly one of {', '.join(kinds)}")
    return validate(found[0], value)


# Strict for what is inside; YAML knows lists only, so the tuple itself is converted.
Plan = Annotated[tuple[Annotated[Join | Notice, BeforeValidator(_event)], ...], Field(strict=False)]


def fleets(plan: Sequence[Event], start: Fleet, most: int, clocks: int) -> list[Fleet]:
    """The machines at the start and after each event, in the order the events happen.

    Raises ConfigError with the event's place in `plan`: one that removes more than there are, joins above
    `most`, or comes at or after the last clock.
    """
    history = [start]
    for index, event in in_order(plan):
        if event.at_clock >= clocks:
            raise ConfigError(
                f"found {show(event.at_clock)}, expected a clock before the last one (clocks = {clocks})",
                key=("plan", index, "at_clock"),
            )
        try:
            history.append(event.after(history[-1], most))
        except ConfigError as error:
            raise ConfigError(error.detail, key=("plan", index, *error.key)) from None
    return history


def in_order(plan: Sequence[Event]) -> list[tuple[int, Event]]:
    """`(place in the plan, event)` by clock; events of one clock keep the plan's order."""
    return sorted(enumerate(plan), key=lambda item: item[1].at_clock)
