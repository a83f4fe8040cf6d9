"""Scheduled events of a run as data: `plan:` of a config.

Each event names the clock it comes after and carries exactly one kind, whose key is the name of the kind:

    plan:
      - {at_clock: 3, join: 2, tier: transient}
      - {at_clock: 7, notice: 2, warning_s: 60}
      - {at_clock: 9, notice: all, warning_s: 30}

A new kind is a subclass of `EventConfig` with a field of its own name, listed in `AnyEventConfig`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import BeforeValidator, Field, model_validator

from agileml.config.machines import MachineName, Speed
from agileml.config.section import Section, count_or, validate
from agileml.config.text import ConfigError, nearest, show


@dataclass(frozen=True)
class MachineCounts:
    """How many machines of each tier are members."""

    reliable: int
    transient: int

    @property
    def total(self) -> int:
        return self.reliable + self.transient

    def __str__(self) -> str:
        return f"{self.reliable} reliable and {self.transient} transient"


class EventConfig(Section):
    """Something that happens to the machines once clock `at_clock` is complete (clocks count from 1).

    Or, with `at_s`, at that many seconds after the first clock could start.
    """

    kind: ClassVar[str]
    at_clock: Annotated[int, Field(ge=1)] | None = None
    at_s: Annotated[float, Field(ge=0)] | None = None

    @model_validator(mode="after")
    def _has_one_time(self) -> Self:
        if (self.at_clock is None) == (self.at_s is None):
            found = "neither" if self.at_clock is None else "both"
            raise ConfigError(f"found {found} of at_clock and at_s, expected exactly one")
        return self

    @property
    def when(self) -> str:
        """The time of the event, in words."""
        return f"clock {self.at_clock}" if self.at_clock is not None else f"{self.at_s:g} s"

    @property
    def count(self) -> int | Literal["all"]:
        """How many machines it strikes."""
        found: int | Literal["all"] = getattr(self, self.kind)
        return found

    def after(self, machines: MachineCounts, most: int) -> MachineCounts:
        """The machines after this event: the same. Raises ConfigError if it cannot happen to `machines`."""
        return machines


class JoinConfig(EventConfig):
    """`join` machines of `tier` become members."""

    kind: ClassVar[str] = "join"
    join: Annotated[int, Field(ge=1)]
    tier: Literal["transient", "reliable"] = "transient"

    def after(self, machines: MachineCounts, most: int) -> MachineCounts:
        if machines.total + self.join > most:
            raise ConfigError(
                f"found {self.join} more machines at {self.when}, where there are {machines}; "
                f"expected at most machines.max = {most} in all",
                key=("join",),
            )
        if self.tier == "reliable":
            return replace(machines, reliable=machines.reliable + self.join)
        return replace(machines, transient=machines.transient + self.join)

    def __str__(self) -> str:
        return f"{self.when}: join {self.join} {self.tier}"


Count = Annotated[int | Literal["all"], count_or("all")]


class _Departure(EventConfig):
    """Transient machines that go for good."""

    def after(self, machines: MachineCounts, most: int) -> MachineCounts:
        return without(machines, self)


class NoticeConfig(_Departure):
    """`notice` transient machines (or all of them) get a preemption notice of `warning_s` seconds."""

    kind: ClassVar[str] = "notice"
    notice: Count
    warning_s: Annotated[float, Field(gt=0)] = 120.0

    def __str__(self) -> str:
        return f"{self.when}: notice {self.count}, {self.warning_s:g} s ahead"


def without(machines: MachineCounts, event: EventConfig) -> MachineCounts:
    """`machines` less the transient ones that an event strikes; raises ConfigError if there are not as many."""
    count = event.count
    leaving = machines.transient if count == "all" else count
    if leaving > machines.transient or not leaving:
        raise ConfigError(
            f"found {count} at {event.when}, where there are {machines} machines; "
            "expected no more than the transient ones there are, and at least one",
            key=(event.kind,),
        )
    return replace(machines, transient=machines.transient - leaving)


class ShortNoticeConfig(_Departure):
    """`short_notice` transient machines get their notice too late: they go before their data can be moved."""

    kind: ClassVar[str] = "short_notice"
    short_notice: Count
    warning_s: Annotated[float, Field(ge=0)] = 0.0

    def __str__(self) -> str:
        return f"{self.when}: notice {self.count}, {self.warning_s:g} s ahead"


class KillConfig(_Departure):
    """`kill` transient machines die without a word."""

    kind: ClassVar[str] = "kill"
    kill: Annotated[int, Field(ge=1)] = 1

    def __str__(self) -> str:
        return f"{self.when}: kill {self.count}"


class KillManyConfig(_Departure):
    """`kill_many` transient machines (or all of them) die at once, as a whole allocation does."""

    kind: ClassVar[str] = "kill_many"
    kill_many: Count

    def __str__(self) -> str:
        return f"{self.when}: kill {self.count}"


class KillReliableConfig(EventConfig):
    """`kill_reliable` reliable machines die without a word; at least one must stay."""

    kind: ClassVar[str] = "kill_reliable"
    kill_reliable: Annotated[int, Field(ge=1)] = 1

    def after(self, machines: MachineCounts, most: int) -> MachineCounts:
        if self.kill_reliable >= machines.reliable:
            raise ConfigError(
                f"found {self.kill_reliable} at {self.when}, where there are {machines} machines; "
                "expected that at least one reliable machine stays",
                key=("kill_reliable",),
            )
        return replace(machines, reliable=machines.reliable - self.kill_reliable)

    def __str__(self) -> str:
        return f"{self.when}: kill_reliable {self.kill_reliable}"


class _PassingFault(EventConfig):
    """A fault that passes: the machines are members again afterwards."""

    seconds: Annotated[float, Field(gt=0)]

    def after(self, machines: MachineCounts, most: int) -> MachineCounts:
        without(machines, self)
        return machines

    def __str__(self) -> str:
        return f"{self.when}: {self.kind} {self.count}, {self.seconds:g} s"


class FreezeConfig(_PassingFault):
    """`freeze` transient machines stand still for `seconds`, with their connections open."""

    kind: ClassVar[str] = "freeze"
    freeze: Annotated[int, Field(ge=1)] = 1


class DisconnectConfig(_PassingFault):
    """`cut` transient machines run on, but no message gets through for `seconds`."""

    kind: ClassVar[str] = "cut"
    cut: Annotated[int, Field(ge=1)] = 1


class SlowConfig(_PassingFault):
    """`slow` transient machines compute `factor` times slower for `seconds`."""

    kind: ClassVar[str] = "slow"
    slow: Annotated[int, Field(ge=1)] = 1
    factor: Annotated[float, Field(gt=1, le=1e4)] = 10.0


class SpeedConfig(EventConfig):
    """From now on `machine` computes at `speed` times its own speed; 1 is its own again."""

    kind: ClassVar[str] = "speed"
    speed: Speed
    machine: MachineName

    def __str__(self) -> str:
        return f"{self.when}: speed {self.speed:g} of {self.machine}"


class DiskFullConfig(EventConfig):
    """For `seconds` no checkpoint can be written."""

    kind: ClassVar[str] = "disk_full"
    disk_full: Literal[True] = True
    seconds: Annotated[float, Field(gt=0)]

    def __str__(self) -> str:
        return f"{self.when}: disk_full, {self.seconds:g} s"


class KillControllerConfig(EventConfig):
    """The controller's process dies; Ray starts another."""

    kind: ClassVar[str] = "kill_controller"
    kill_controller: Literal[True] = True

    def __str__(self) -> str:
        return f"{self.when}: kill_controller"


AnyEventConfig = (
    JoinConfig
    | NoticeConfig
    | ShortNoticeConfig
    | KillConfig
    | KillManyConfig
    | KillReliableConfig
    | FreezeConfig
    | DisconnectConfig
    | SlowConfig
    | SpeedConfig
    | DiskFullConfig
    | KillControllerConfig
)
KINDS: tuple[type[EventConfig], ...] = get_args(AnyEventConfig)


def event_of(value: Any) -> EventConfig:
    """An event as a config writes it, as the class of its kind. Raises ConfigError."""
    if isinstance(value, EventConfig):
        return value
    kinds = {kind.kind: kind for kind in KINDS}
    if not isinstance(value, dict):
        raise ConfigError(f"found {show(value)}, expected a mapping such as {{at_clock: 3, join: 2}}")
    found = [kind for name, kind in kinds.items() if name in value]
    if len(found) > 1:
        raise ConfigError(f"found {show(value)}, expected exactly one of {', '.join(kinds)}")
    if not found:
        unknown = [name for name in value if name not in EventConfig.model_fields]
        for name in unknown:
            if (near := nearest(name, kinds)).startswith("did you mean"):
                raise ConfigError(f"unknown key, {near}", key=(name,))
        raise ConfigError(f"found {show(value)}, expected at_clock and exactly one of {', '.join(kinds)}")
    return validate(found[0], value)


# Strict inside; YAML has only lists, so the tuple itself is converted.
Plan = Annotated[tuple[Annotated[AnyEventConfig, BeforeValidator(event_of)], ...], Field(strict=False)]


def machines_over_time(
    plan: Sequence[EventConfig], start: MachineCounts, most: int, clocks: int
) -> list[MachineCounts]:
    """The machines at the start and after each event, in the order the events happen.

    Raises ConfigError with the event's place in `plan`: one that removes more than there are, joins above
    `most`, or comes at or after the last clock.
    """
    history = [start]
    for index, event in in_order(plan):
        if event.at_clock is not None and event.at_clock >= clocks:
            raise ConfigError(
                f"found {show(event.at_clock)}, expected a clock before the last one (clocks = {clocks})",
                key=("plan", index, "at_clock"),
            )
        try:
            history.append(event.after(history[-1], most))
        except ConfigError as error:
            raise ConfigError(error.detail, key=("plan", index, *error.key)) from None
    return history


KILLING = ("kill", "kill_many", "kill_reliable", "freeze")  # what happens to the whole machine


def check_faults(plan: Sequence[EventConfig], unit_s: float, cluster: str | None) -> None:
    """Raise ConfigError for a fault that cannot be carried out.

    That is a speed of more than a machine's own, without `pace.unit_s`; and a whole machine that is killed or frozen
    in a cluster that others run, whose address is `cluster`.
    """
    for index, event in enumerate(plan):
        if cluster is not None and event.kind in KILLING:
            raise ConfigError(
                f"found {event.kind} with an address, expected no {', '.join(KILLING[:-1])} or {KILLING[-1]}: a run "
                "neither kills nor freezes machines of a cluster that others run",
                key=("plan", index),
            )
        if isinstance(event, SpeedConfig) and event.speed > 1 and not unit_s:
            raise ConfigError(
                f"found {event.speed:g} without pace.unit_s, expected at most 1: a machine cannot be faster than it is",
                key=("plan", index, "speed"),
            )


def in_order(plan: Sequence[EventConfig]) -> list[tuple[int, EventConfig]]:
    """`(place in the plan, event)` by clock, then by time; events of one clock keep the plan's order."""
    return sorted(
        enumerate(plan),
        key=lambda item: (item[1].at_clock is None, item[1].at_clock or 0, item[1].at_s or 0.0),
    )
