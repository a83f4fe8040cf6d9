"""A recorded run through the simulator with another `balance`, or another `consistency`: what would it have saved?

    outcomes = replay(read_events("runs/mlr/events.jsonl"), config, ["static", "lbbsp"])
    outcomes = replay(log, with_consistency(config, "ssp:3"), ["static", "pool"], recorded=config)

Between two changes of members the events `work` say how fast each machine computed its units at each time, and how long
even the busiest machine waited, which is the time of messages. Each such stretch is simulated on machines of these
speeds, with the policy object that a run with that `balance` has. The shares that it begins with, which go by the cores
of the machines, show where the recorded run had no measured speeds to share out by.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median, mode
from typing import Any

from agileml.config.helping import HelpingConfig
from agileml.config.job import JobConfig
from agileml.config.optimizer import SgdConfig
from agileml.config.pool import has_pool
from agileml.config.text import ConfigError
from agileml.core.stage.shares import counts_by_weight
from agileml.events.run import NO_WORK, HelpGiven, MembershipChanged
from agileml.events.schema import Log, events_of
from agileml.process.spec import balancer
from agileml.runs.work import WorkWindow, waiting_share, work_windows
from straggler.consistency import consistency
from straggler.simulate.engine import Simulation
from straggler.simulate.outcome import Network, Outcome
from straggler.simulate.policies import ClockPolicy, PoolPolicy, SchemePolicy
from straggler.simulate.profile import Piece, SpeedProfile, ideal_time_s
from straggler.speed.predictors import FREE

RECORDED, IDEAL = "recorded", "ideal"
LEAST_WINDOWS = 3


class ReplayError(ValueError):
    """A log says too little to replay it: one sentence."""


@dataclass(frozen=True)
class Stretch:
    """The clocks between two changes of members: the same machines, and one number of units for every clock.

    `dealt`: by window and machine, the units of a clock that fell to it, whoever computed them.
    """

    machines: tuple[str, ...]
    units: int
    clocks: int
    windows: tuple[WorkWindow, ...]
    dealt: tuple[Mapping[str, float], ...]

    @property
    def seconds(self) -> float:
        """The time that it took."""
        return self.windows[-1].end_s - self.windows[0].start_s

    @property
    def messages_s(self) -> float:
        """Seconds of a clock in which even the busiest machine waited."""
        return median(
            min(work.wait_s for work in window.by_machine.values()) / window.clocks for window in self.windows
        )

    def profile(self, machine: str) -> SpeedProfile:
        """The units per second of a machine over the time of the stretch."""
        pieces = []
        for window in self.windows:
            work = window.by_machine[machine]
            pieces.append(Piece(window.end_s - window.start_s, work.units / work.compute_s, FREE))
        return SpeedProfile(iter(pieces))


@dataclass(frozen=True)
class Replayed:
    """The time that all stretches took, or would have taken with another policy."""

    policy: str
    clocks: int
    seconds: float
    waiting_share: float | None

    @property
    def clock_s(self) -> float:
        """Seconds of a clock."""
        return self.seconds / self.clocks


def stretches(log: Log) -> list[Stretch]:
    """The stretches of a log that can be replayed, in the order of time."""
    by_epoch: dict[int, list[WorkWindow]] = {}
    for window in work_windows(log):
        by_epoch.setdefault(window.epoch, []).append(window)
    help_ = _help(log)
    found = []
    for windows in by_epoch.values():
        machines = tuple(sorted({name for window in windows for name in window.by_machine}))
        # Of most clocks: what is computed again, or by a helper and by the helped machine, is counted twice.
        units = mode(_units(window) / window.clocks for window in windows)
        whole = _with_all(windows, machines, units)
        if len(machines) > 1 and len(whole) >= LEAST_WINDOWS:
            clocks = sum(window.clocks for window in whole)
            dealt = tuple(_dealt(window, help_) for window in whole)
            found.append(Stretch(machines, round(units), clocks, tuple(whole), dealt))
    return found


# By window (epoch, clock, clocks) and machine: the units that others computed for it, less those that it did for them.
Help = Mapping[tuple[int, int, int], Mapping[str, int]]


def _help(log: Log) -> Help:
    found: dict[tuple[int, int, int], Counter[str]] = {}
    for event in events_of(log, HelpGiven):
        moved = found.setdefault((event.epoch, event.clock, event.clocks), Counter())
        for helper, by_helped in event.units.items():
            for helped, units in by_helped.items():
                moved[helped] += units
                moved[helper] -= units
    return found


def _dealt(window: WorkWindow, help_: Help) -> Mapping[str, float]:
    moved = help_.get((window.epoch, window.clock, window.clocks), {})
    return {
        name: (work.units + moved.get(name, 0)) / window.clocks for name, work in window.by_machine.items()
    }


def _with_all(windows: Sequence[WorkWindow], machines: Sequence[str], units: float) -> list[WorkWindow]:
    """The windows, as many together as it takes until every machine has computed: from a pool one may draw nothing for
    a clock. Without those whose work is not whole: members changed, or a report did not arrive."""
    found: list[WorkWindow] = []
    parts: list[WorkWindow] = []
    for window in windows:
        if _units(window) != units * window.clocks:
            parts.clear()
            continue
        parts.append(window)
        joined = _joined(parts, machines)
        is_whole = all(work.units and work.compute_s > 0 for work in joined.by_machine.values())
        if is_whole and joined.end_s > joined.start_s:
            found.append(joined)
            parts.clear()
    return found


def _joined(parts: Sequence[WorkWindow], machines: Sequence[str]) -> WorkWindow:
    """Windows in a row as one."""
    by_machine = {
        name: sum((each.by_machine.get(name, NO_WORK) for each in parts), NO_WORK) for name in machines
    }
    clocks = sum(each.clocks for each in parts)
    first, last = parts[0], parts[-1]
    return WorkWindow(last.epoch, last.clock, clocks, first.start_s, last.end_s, by_machine)


def _units(window: WorkWindow) -> int:
    return sum(work.units for work in window.by_machine.values())


def _with_balance(config: JobConfig, policy: str) -> JobConfig:
    pool_units = config.pool_units if policy in ("pool", "auto") else None
    return config.changed(balance=policy, helping=False, pool_units=pool_units)


def with_consistency(config: JobConfig, text: str) -> JobConfig:
    """The config with `bsp`, `asp`, or `ssp:3`, and without what could not go with that. Only how work is shared out
    matters here, so the keys of exchange, optimizer and evaluation may be those of another run. Raises ConfigError."""
    kind, _, slack = text.partition(":")
    if (
        kind not in ("bsp", "ssp", "asp")
        or (kind == "ssp") is not bool(slack)
        or (slack and not slack.isdecimal())
    ):
        raise ConfigError(
            f"found {text!r}, expected bsp, asp, or ssp with its slack, such as ssp:3", key=("consistency",)
        )
    if slack and not int(slack):
        kind = "bsp"  # which ssp without slack is
    section = {"kind": kind, "slack": int(slack)} if kind == "ssp" else {"kind": kind}
    is_deterministic = config.deterministic and kind == "bsp"
    pool_units = config.pool_units if kind != "bsp" else None
    return config.changed(
        consistency=section,
        balance="auto",
        helping=False,
        overlap=False,
        exchange="servers",
        allreduce_backend="gloo",
        optimizer=SgdConfig(),
        keep_best=None,
        deterministic=is_deterministic,
        pool_units=pool_units,
        verify=False,
    )


def replay(
    log: Log, config: JobConfig, policies: Sequence[str], *, recorded: JobConfig | None = None
) -> list[Replayed]:
    """The recorded times, those that each `balance` would have reached, and the ideal.

    `recorded`: the config of the run, where `config` is another one. Raises ReplayError, and ConfigError for a
    `balance` that does not go with the config's consistency.
    """
    found = stretches(log)
    if not found:
        raise ReplayError(
            "no stretch of clocks with the same two machines or more, and a record of their work; "
            "expected the log of a run that trained for some clocks between two changes of members"
        )
    homes = _homes(log, found, recorded or config)
    clocks = sum(stretch.clocks for stretch in found)
    windows = [window for stretch in found for window in stretch.windows]
    recorded_s = sum(window.end_s - window.start_s for window in windows)
    rows = [Replayed(RECORDED, clocks, recorded_s, waiting_share(windows))]
    for policy in policies:
        chosen = _with_balance(config, policy)
        outcomes = [_simulated(each, home, chosen) for each, home in zip(found, homes, strict=True)]
        total_s = sum(outcome.total_s for outcome in outcomes)
        waits = sum(outcome.waiting_s for outcome in outcomes) / sum(outcome.worker_s for outcome in outcomes)
        rows.append(Replayed(policy, clocks, total_s, waits))
    ideal_s = sum(
        ideal_time_s([s.profile(name) for name in s.machines], float(s.units * s.clocks)) for s in found
    )
    return [*rows, Replayed(IDEAL, clocks, ideal_s, 0.0)]


Home = Sequence[float]  # of each machine of a stretch, relative to the others


def _homes(log: Log, found: Sequence[Stretch], recorded: JobConfig) -> list[Home]:
    """The shares that each stretch begins with where nothing is measured: by the cores of its machines.

    A run with static shares has them in every stretch. Another one shares out by speed sooner or later, but for its
    first clock, before which nothing is measured; a machine that joined later counts as the mean of the others. From a
    pool whoever is free draws, so its log does not show them: there all machines count as equal.
    """
    if has_pool(recorded):
        return [[1.0] * len(stretch.machines) for stretch in found]
    if recorded.balance.kind == "static" or isinstance(recorded.helping, HelpingConfig):
        return [[median(each.get(m, 0.0) for each in s.dealt) for m in s.machines] for s in found]
    begun = found[0].windows[0]
    bases = {change.epoch: change.base for change in events_of(log, MembershipChanged)}
    is_first = min(bases, default=None) == begun.epoch and bases[begun.epoch] == begun.clock - begun.clocks
    known = found[0].dealt[0] if is_first else {}
    homes: list[Home] = []
    for stretch in found:
        here = [known[name] for name in stretch.machines if name in known]
        usual = sum(here) / len(here) if here else 1.0
        homes.append([known.get(name, usual) for name in stretch.machines])
    return homes


def _simulated(stretch: Stretch, home: Home, config: JobConfig) -> Outcome:
    """The outcome of a stretch with the policy of this config."""
    return Simulation(
        [stretch.profile(name) for name in stretch.machines],
        _policy(stretch, home, config),
        units=stretch.units,
        iteration_s=float(stretch.units),  # speeds are units per second
        network=Network(delay_s=stretch.messages_s / 2),
    ).run()


def _policy(stretch: Stretch, home: Home, config: JobConfig) -> SchemePolicy:
    """The policy of a run of this config on machines with these shares, of at least one unit each."""
    kept = consistency(config.consistency.kind, config.consistency.slack)
    weights = {name: max(1.0, share) for name, share in zip(stretch.machines, home, strict=True)}
    shares = list(counts_by_weight(stretch.units, weights, {}).values())
    if has_pool(config):
        bundles = [size for share in shares for size in _pieces(share, config.pool_units or share)]
        return PoolPolicy([bundles] * stretch.clocks, kept.slack)
    make: Any = balancer(config)  # the policy does not care what workers are called
    balance = make(stretch.units, dict(enumerate(shares)), None) if make is not None else None
    return ClockPolicy(
        kept, stretch.clocks, 1, [float(share) for share in shares], balance, total=stretch.units
    )


def _pieces(units: int, most: int) -> list[int]:
    """`units` in as few pieces of at most `most` as there can be."""
    return [min(most, units - first) for first in range(0, units, most)]
