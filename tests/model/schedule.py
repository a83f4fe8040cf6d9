"""Random schedules of faults, as data. A seed gives one schedule, always the same."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from agileml.core.protocol.plan import PlannedEvent, PlannedJoin, PlannedNotice
from tests.model.fault_kinds import (
    DEADLY,
    FOR_GOOD_S,
    GENTLE,
    LEAVING,
    ONE_WAY,
    PARTED,
    PRESSING,
    ROUGH,
    WAKING,
    Fault,
    draw_fault,
    draw_pressing,
)

PLANNED = "-planned"
CLIPPED = "-clipped"
SCALED = "-scaled"
LAMB = "-lamb"
HELD = "-held"
HELPED = "-helped"
RESIDENT = "-resident"
SHARDED = "-sharded"
FLUSH = "flush"
REPLICATED = "-replicated"
RECUT = "-recut"
PIPELINES = (FLUSH, "stash", "none", "vertical_sync", "double_buffered")


@dataclass(frozen=True)
class Network:
    """What the network does to messages."""

    drop: float
    double: float
    delay_s: float
    late: float  # share of messages that come very late


@dataclass(frozen=True)
class Schedule:
    """One run: the job's cut, the machines at the start, the network, the faults and the plan.

    `mode` is a mode of `toy_job`, or one with PLANNED at its end: then every clock has a plan, and no two the same;
    with CLIPPED: then the norm of gradients is limited; with HELPED: then machines help each other at the least need,
    or, with both HELPED and PLANNED, in clocks whose plan says so;
    with RESIDENT: then replicas have the tables; with SHARDED: then each also has the state of its partitions alone;
    with SCALED: then some units overflow, and nobody steps those clocks;
    with REPLICATED: then stages have replicas; with RECUT: they follow the machines' speeds;
    with LAMB: then it is the optimizer, and the norm of gradients is limited too; with HELD: then some cuts are held.
    """

    seed: int
    mode: str
    algorithm: str
    slices: int
    parts: int
    partitions: int
    clocks: int
    reliable: int
    transient: int
    thresholds: tuple[float, float]
    forced: int | None
    active_fraction: float
    cut_every_s: float
    cut_clocks: int
    network: Network
    gentle: bool
    faults: tuple[Fault, ...]
    plan: tuple[PlannedEvent, ...] = field(default=())
    restless: bool = False  # stages are tried at random
    bytes_per_s: float | None = None  # that a machine's link carries of cuts and moves; None: any number
    orderly: bool = (
        False  # nothing is lost, what one says to another keeps its order, and nobody repeats anything
    )

    @property
    def toy_mode(self) -> str:
        """The mode without what is at its end."""
        return self.mode.partition("-")[0]

    @property
    def holds_every(self) -> int | None:
        """The cut at each clock that is a multiple of it is held until it was judged."""
        return 2 + self.seed % 2 if self.mode.endswith(HELD) else None

    @property
    def is_scaled(self) -> bool:
        return self.mode.endswith(SCALED)

    @property
    def is_resident(self) -> bool:
        return self.mode.endswith((RESIDENT, SHARDED))

    @property
    def is_sharded(self) -> bool:
        return self.mode.endswith(SHARDED)

    @property
    def is_replicated(self) -> bool:
        return self.mode.endswith(REPLICATED)

    @property
    def is_recut(self) -> bool:
        return self.mode.endswith(RECUT)

    @property
    def is_planned(self) -> bool:
        return self.mode.endswith(PLANNED)

    @property
    def clip_norm(self) -> float | None:
        """The limit of the gradients' norm."""
        return 1.5 if self.mode.endswith((CLIPPED, LAMB)) else None

    @property
    def is_helped(self) -> bool:
        return HELPED in self.mode


def make_schedule(seed: int, mode: str, faults: int | None = None) -> Schedule:
    """The schedule of a seed. About a sixth are gentle: joins and long notices only, on a good network."""
    rng = random.Random(f"{seed}/{mode}")
    gentle = faults is None and rng.random() < 0.17
    planned = gentle and rng.random() < 0.6
    clocks = rng.randint(5, 12) if faults is None else rng.randint(20, 30)
    span_s = 8.0 if faults is None else max(8.0, 0.4 * faults)
    network = (
        Network(0.0, 0.0, 0.01, 0.0)
        if gentle
        else Network(
            rng.choice([0, 0.02, 0.1]),
            rng.choice([0, 0.05, 0.2]),
            rng.choice([0.005, 0.03]),
            rng.choice([0, 0.01]),
        )
    )
    reliable, transient = rng.choice([1, 2, 2]), rng.choice([0, 1, 2, 3, 4, 5])
    plan: tuple[PlannedEvent, ...] = ()
    if planned:
        plan, transient = _make_plan(rng, clocks, transient)
    count = faults if faults is not None else rng.randint(1, 8)
    weights = GENTLE if gentle else ROUGH
    schedule = Schedule(
        seed=seed,
        mode=mode,
        algorithm="lamb" if mode.endswith(LAMB) else rng.choice(["sgd", "momentum", "adam"]),
        slices=rng.choice([8, 8, 16]),
        parts=rng.choice([1, 1, 2]) * (4 if HELPED in mode else 1),
        partitions=rng.randint(1, 4),
        clocks=clocks,
        reliable=reliable,
        transient=transient,
        thresholds=rng.choice([(1.0, 15.0), (1.0, 3.0), (0.5, 1.5)]),
        forced=rng.choice([None, None, None, 1, 2, 3]),
        active_fraction=rng.choice([0.5, 1.0]),
        cut_every_s=rng.choice([0.1, 0.5, 2.0]),
        cut_clocks=rng.choice([3, 8]),
        network=network,
        gentle=gentle,
        faults=()
        if planned
        else tuple(sorted((draw_fault(rng, weights, span_s) for _ in range(count)), key=lambda f: f.at_s)),
        plan=plan,
        # A generator of its own: other draws stay as they are.
        restless=random.Random(f"{seed}/{mode}/stages").random() < 0.3 or mode.endswith(RECUT),
    )
    if mode.startswith(PIPELINES) or mode.endswith("elastic"):
        # Every unit crosses every border twice, or takes a round trip of its own.
        schedule = replace(schedule, slices=8, parts=1)
    if mode.endswith(REPLICATED):  # more machines than partitions: some own none
        schedule = replace(schedule, partitions=min(schedule.partitions, 3), transient=schedule.transient + 2)
    if not gentle and faults is None:
        schedule = _with_parted(_with_one_way(schedule))
    if faults is None and not planned:
        schedule = _with_last_leaving(schedule)
    links = random.Random(f"{seed}/{mode}/links")
    if links.random() >= 0.25:
        return schedule
    return _over_slow_links(schedule, links, is_quiet=faults is None and links.random() < 0.5)


def _with_one_way(schedule: Schedule) -> Schedule:
    """In one of eight, a machine also hears the controller no more, is not heard, or never answers.

    A generator of its own: other draws stay as they are.
    """
    rng = random.Random(f"{schedule.seed}/{schedule.mode}/one way")
    if rng.random() >= 0.125:
        return schedule
    kind, at_s = rng.choice(ONE_WAY), rng.uniform(0.3, 3.0)
    seconds = rng.choice([4.0, 15.0, FOR_GOOD_S]) if kind == "deaf" else rng.choice([1.5, 4.0])
    return replace(schedule, faults=(*schedule.faults, Fault(kind, at_s, 1, seconds)))


def _with_last_leaving(schedule: Schedule) -> Schedule:
    """In one of nine all reliable machines leave, transient ones soon after; reliable ones may come later, or never."""
    rng = random.Random(f"{schedule.seed}/{schedule.mode}/last leaving")  # other draws stay as they are
    if rng.random() >= 1 / 9:
        return schedule
    at_s, left_s = rng.uniform(0.5, 5.0), 60.0 if schedule.gentle else rng.choice([5.0, 60.0])
    last = Fault(LEAVING, at_s, rng.choice([0, 1, 2]), left_s)
    soon = Fault("notice", at_s + rng.uniform(0.0, 2.0), rng.choice([1, 2]), 60.0)
    return replace(schedule, faults=(*schedule.faults, last, soon))


def _with_parted(schedule: Schedule) -> Schedule:
    """In one of seven, one or two pairs of machines do not reach each other either, for a while or for ever."""
    rng = random.Random(f"{schedule.seed}/{schedule.mode}/parted")
    if rng.random() >= 1 / 7:
        return schedule
    parted = tuple(
        Fault(PARTED, rng.uniform(0.3, 2.5), rng.choice([1, 2, 2]), rng.choice([1.5, 4.0, 15.0, FOR_GOOD_S]))
        for _ in range(rng.choice([1, 1, 2]))
    )
    return replace(schedule, faults=schedule.faults + parted)


def make_orderly(seed: int, mode: str) -> Schedule:
    """The schedule of a seed where nobody has to repeat anything: nothing is lost but with a machine that dies.

    Half of them are gentle.
    """
    rng = random.Random(f"{seed}/{mode}/orderly")
    schedule = make_schedule(seed, mode)
    gentle, count = bool(schedule.plan) or rng.random() < 0.5, rng.randint(1, 8)
    return replace(
        schedule,
        network=Network(0.0, 0.0, rng.choice([0.005, 0.03]), 0.0),
        gentle=gentle,
        faults=()
        if schedule.plan
        else tuple(draw_fault(rng, GENTLE if gentle else DEADLY, 8.0) for _ in range(count)),
        orderly=True,
    )


def make_sick(seed: int, mode: str) -> Schedule:
    """The schedule of a seed in which work fails on machines, too: one to three of them, one after the other."""
    rng = random.Random(f"{seed}/{mode}/sick")
    schedule = make_schedule(seed, mode)
    sick = tuple(Fault("sick", rng.uniform(0.2, 6.0)) for _ in range(rng.randint(1, 3)))
    return replace(
        schedule,
        gentle=False,
        plan=(),
        faults=schedule.faults + sick,
        transient=schedule.transient + 2,
        clocks=schedule.clocks + 4,
    )


def _over_slow_links(schedule: Schedule, rng: random.Random, *, is_quiet: bool) -> Schedule:
    """The same where the toy's few hundred bytes take up to seconds: a notice may be too short for them.

    `is_quiet`: little else goes wrong in a rough one, so that it is known by then what links carry.
    """
    schedule = replace(schedule, bytes_per_s=_scale(schedule.mode) * rng.choice([300.0, 1000.0, 3000.0]))
    if schedule.gentle:
        return schedule
    pressing = tuple(draw_pressing(rng) for _ in range(rng.randint(2, 5)))
    if not is_quiet:
        return replace(schedule, faults=schedule.faults + pressing)
    joins = tuple(Fault("join", rng.uniform(1.0, 8.0), 2) for _ in range(2))
    if is_doubled := rng.random() < 0.4:  # a leaver may be the last that has a part of the committed cut
        at_s = rng.uniform(2.0, 7.0)
        later_s = at_s + rng.uniform(0.0, 0.3)
        pressing += Fault("kill_reliable", at_s), Fault(PRESSING, later_s, 3, rng.uniform(0.05, 1.0))
    schedule = replace(
        schedule,
        reliable=2 if is_doubled else schedule.reliable,
        clocks=schedule.clocks + 8,
        transient=schedule.transient + 2,
        forced=rng.choice([None, 2, 3]),
        cut_every_s=rng.choice([0.5, 2.0]),
        cut_clocks=8,
        network=rng.choice([schedule.network, Network(0.0, 0.0, 0.01, 0.0)]),
        faults=schedule.faults[:1] + joins + pressing,
    )
    return _woken(schedule, rng) if rng.random() < 0.2 else schedule


def _scale(mode: str) -> int:
    """How much larger than the other toys the one of a mode is."""
    return 8 if mode.startswith(PIPELINES) else 1


def _woken(schedule: Schedule, rng: random.Random) -> Schedule:
    """An owner wakes while the rollback without it is copied, and then a notice has the change begin anew: with it."""
    at_s, seconds = rng.uniform(1.5, 5.0), rng.uniform(1.2, 2.0)
    notice = Fault("notice", at_s + seconds + rng.uniform(0.1, 0.5), 1, 60.0)
    return replace(
        schedule,
        reliable=2,
        bytes_per_s=300.0 * _scale(schedule.mode),
        network=Network(0.0, 0.0, 0.01, 0.0),
        faults=(Fault(WAKING, at_s, 1, seconds), notice),
    )


def _make_plan(rng: random.Random, clocks: int, transient: int) -> tuple[tuple[PlannedEvent, ...], int]:
    plan: list[PlannedEvent] = []
    now = transient
    for at in sorted(rng.sample(range(1, clocks), min(clocks - 1, rng.randint(1, 4)))):
        if now and rng.random() < 0.5:
            leaving = rng.choice([None, rng.randint(1, now)])
            plan.append(PlannedNotice(at, leaving, 60.0))
            now -= now if leaving is None else leaving
        else:
            joining = rng.randint(1, 3)
            plan.append(PlannedJoin(at, joining))
            now += joining
    return tuple(plan), transient
