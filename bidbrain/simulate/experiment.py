"""Many jobs of several schemes on the same starts: run, summarise, compare.

Equal seeds give equal results for any number of processes: every job is computed on its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from bidbrain.accounts.ledger import Ledger
from bidbrain.instants import Interval
from bidbrain.money import HOUR_S
from bidbrain.policy.registry import OTHER_SCHEMES, Scheme, Training, find_scheme
from bidbrain.setting import Reliable, Setting, reference_type
from bidbrain.simulate.bounds import PAID_HOURS_BOUND, PAID_HOURS_SCHEDULE, paid_hours
from bidbrain.simulate.compiled import CompiledSimulator
from bidbrain.simulate.simulator import Outcome, simulate
from bidbrain.simulate.statistics import bootstrap_mean
from bidbrain.simulate.workers import Pool

START_MARGIN = 3  # starts leave 3 x the job's hours before the window's end
BOUND_STARTS = 25
CHUNK = 20


@dataclass(frozen=True)
class Result:
    """All jobs of one scheme and one length, in the order of their starts."""

    scheme: str
    job_hours: float
    outcomes: tuple[Outcome, ...]
    baseline_micro_usd: float
    yardstick: bool = False

    @property
    def is_bound(self) -> bool:
        """Whether it is the result of the linear program, which holds no machines and has no ledger."""
        return _is_bound(self.scheme)

    @property
    def finished(self) -> tuple[Outcome, ...]:
        return tuple(outcome for outcome in self.outcomes if outcome.finished)

    def cost(self, outcome: Outcome) -> float:
        """Of one job, relative to all on-demand."""
        return outcome.micro_usd / self.baseline_micro_usd

    def runtime(self, outcome: Outcome) -> float:
        """Of one job, relative to all on-demand."""
        return (outcome.end_s - outcome.start_s) / (self.job_hours * HOUR_S)

    def costs(self) -> list[float]:
        """Of the finished jobs. Several may have one start: in a short recording there are few."""
        return [self.cost(outcome) for outcome in self.finished]

    def runtimes(self) -> list[float]:
        """Of the finished jobs."""
        return [self.runtime(outcome) for outcome in self.finished]


@dataclass(frozen=True)
class Row:
    """A line of the table: means over finished jobs; cost, its traffic and runtime relative to all on-demand."""

    scheme: str
    job_hours: float
    cost: float
    cost_low: float
    cost_high: float
    runtime: float
    free_fraction: float
    evictions_per_job: float
    unfinished: int
    cost_p95: float
    runtime_p95: float
    jobs: int
    yardstick: bool
    traffic: float = 0.0  # of the cost

    @property
    def is_bound(self) -> bool:
        """See `Result.is_bound`."""
        return _is_bound(self.scheme)


@dataclass(frozen=True)
class Pair:
    """Scheme minus other on the same starts (jobs that both finished): cost and runtime, 95% intervals."""

    scheme: str
    other: str
    job_hours: float
    jobs: int
    cost: float
    cost_low: float
    cost_high: float
    cost_percent: float
    runtime: float
    runtime_low: float
    runtime_high: float


@dataclass(frozen=True)
class Starts:
    """How starts are drawn: `margin_s` before the window's end stay free; on a grid of `grid_s`.

    spread: one start in each of `count` equal stretches instead of all anywhere (less noise in a short recording).
    """

    count: int
    seed: int
    grid_s: int = 1
    spread: bool = False

    def draw(self, pieces: Sequence[Interval], margin_s: int) -> list[int]:
        """Uniform over the usable pieces less the margin at the end; raises ValueError if that leaves nothing."""
        last_s = pieces[-1].end_s - margin_s if pieces else 0
        usable = [Interval(p.start_s, min(p.end_s, last_s)) for p in pieces if p.start_s < last_s]
        if not usable:
            raise ValueError(
                "no job can start in the evaluation window: it is shorter than the margin at its end"
            )
        ends = np.cumsum([piece.seconds for piece in usable])
        rng = np.random.default_rng(self.seed)
        if self.spread:
            drawn = ((np.arange(self.count) + rng.random(self.count)) / self.count * int(ends[-1])).astype(
                np.int64
            )
        else:
            drawn = rng.integers(0, int(ends[-1]), self.count)
        drawn = drawn // self.grid_s * self.grid_s
        which = np.searchsorted(ends, drawn, side="right")
        return [
            usable[i].end_s - int(ends[i] - at) for i, at in zip(which.tolist(), drawn.tolist(), strict=True)
        ]


def price_margin_s(job_hours: float) -> int:
    """Starts on price histories leave three times the job's hours before the window's end."""
    return math.ceil(START_MARGIN * job_hours * HOUR_S)


@dataclass(frozen=True)
class Task:
    """A chunk of the jobs of one scheme."""

    scheme: str
    job_hours: float
    starts: tuple[int, ...]


@dataclass(frozen=True)
class Experiment:
    """Schemes on common starts. `setting` holds everything but the job's length and the scheme's engine."""

    setting: Setting
    schemes: tuple[str, ...]
    job_hours: tuple[float, ...]
    evaluate: tuple[Interval, ...]
    starts: Starts
    margin_s: Callable[[float], int] = price_margin_s

    @property
    def seed(self) -> int:
        return self.starts.seed

    def job_setting(self, job_hours: float) -> Setting:
        return self.setting.with_job(replace(self.setting.job, hours=job_hours))

    def starts_of(self, job_hours: float) -> list[int]:
        return self.starts.draw(self.evaluate, self.margin_s(job_hours))

    def tasks(self) -> list[Task]:
        """Chunks in the order of the table; compiled schemes are one chunk per length."""
        found = []
        for hours in self.job_hours:
            starts = self.starts_of(hours)
            for name in self.schemes:
                bound = name in OTHER_SCHEMES
                own = starts[:BOUND_STARTS] if bound else starts
                fast = not bound and find_scheme(name).compiled is not None
                size = max(1, len(own)) if fast else 1 if bound else CHUNK
                found += [Task(name, hours, tuple(own[i : i + size])) for i in range(0, len(own), size)]
        return found

    def run_task(self, task: Task) -> list[tuple[str, list[Outcome]]]:
        """Outcomes of one chunk by scheme (the linear program gives two)."""
        setting = self.job_setting(task.job_hours)
        if task.scheme in OTHER_SCHEMES:
            both = [paid_hours(setting, start_s) for start_s in task.starts]
            return [
                (PAID_HOURS_BOUND, [bound for bound, _ in both]),
                (PAID_HOURS_SCHEDULE, [schedule for _, schedule in both]),
            ]
        scheme = find_scheme(task.scheme)
        own = _own_setting(scheme, setting)
        if scheme.compiled is not None:
            return [(task.scheme, CompiledSimulator(own, scheme).outcomes(task.starts))]
        outcomes = []
        for start_s in task.starts:
            policy = scheme.make(own, start_s)
            outcomes.append(simulate(own, task.scheme, policy, start_s, scheme.reliable)[0])
        return [(task.scheme, outcomes)]

    def run(self, pool: Pool, advance: Callable[[int], None]) -> list[Result]:
        """All results, in the order of `tasks`; `advance` is told how many jobs are done."""
        tasks = self.tasks()
        found: dict[tuple[str, float], list[Outcome]] = {}
        for task, parts in zip(tasks, pool.map(self.run_task, tasks), strict=True):
            for scheme, outcomes in parts:
                found.setdefault((scheme, task.job_hours), []).extend(outcomes)
            advance(len(task.starts))
        return [
            Result(
                *(scheme, hours, tuple(outcomes), float(self.job_setting(hours).baseline_micro_usd())),
                yardstick=_is_yardstick(scheme),
            )
            for (scheme, hours), outcomes in found.items()
        ]

    def ledger(self, scheme_name: str, job_hours: float, start_s: int, name: str) -> tuple[Outcome, Ledger]:
        """One job again, with its ledger."""
        scheme = find_scheme(scheme_name)
        own = _own_setting(scheme, self.job_setting(job_hours))
        if scheme.compiled is not None:
            return CompiledSimulator(own, scheme).ledger(start_s, name)
        return simulate(own, scheme_name, scheme.make(own, start_s), start_s, scheme.reliable, name)


def _own_setting(scheme: Scheme, setting: Setting) -> Setting:
    """The scheme's setting. All on-demand is on machines of the reference type, whatever type the reliable ones are."""
    own = scheme.setting(setting)
    if scheme.training is not Training.STEADY:
        return own
    types = {each.market.instance_type: (each.on_demand, each.vcpus) for each in setting.listings}
    name = reference_type(types)
    return replace(own, reliable=Reliable(name, 0, *types[name]))


def _is_bound(scheme: str) -> bool:
    return scheme in (PAID_HOURS_BOUND, PAID_HOURS_SCHEDULE)


def _is_yardstick(scheme: str) -> bool:
    return _is_bound(scheme) or find_scheme(scheme).yardstick


def summarise(result: Result, seed: int) -> Row:
    """One line of the table."""
    done = result.finished
    values, times = np.array(result.costs()), np.array(result.runtimes())
    cost = bootstrap_mean(values, np.array([o.start_s for o in done], np.int64), seed)
    return Row(
        result.scheme,
        result.job_hours,
        *(cost.mean, cost.low, cost.high),
        _mean(times),
        _mean(np.array([o.free_fraction for o in done])),
        _mean(np.array([float(o.evictions) for o in done])),
        len(result.outcomes) - len(done),
        _percentile(values),
        _percentile(times),
        len(result.outcomes),
        result.yardstick,
        _mean(np.array([o.traffic_micro_usd / result.baseline_micro_usd for o in done])),
    )


def _mean(values: np.typing.NDArray[np.float64]) -> float:
    return float(values.mean()) if len(values) else float("nan")


def _percentile(values: np.typing.NDArray[np.float64]) -> float:
    return float(np.percentile(values, 95)) if len(values) else float("nan")


def compare(results: Sequence[Result], seed: int) -> list[Pair]:
    """Every two schemes of one length, on the starts that both finished."""
    pairs = []
    for i, one in enumerate(results):
        for other in results[:i]:
            if one.job_hours != other.job_hours:
                continue
            theirs = {outcome.start_s: outcome for outcome in other.finished}
            both = [(mine, theirs[mine.start_s]) for mine in one.finished if mine.start_s in theirs]
            if not both:
                continue
            starts = np.array([mine.start_s for mine, _ in both], np.int64)
            costs = np.array([one.cost(mine) - other.cost(their) for mine, their in both])
            times = np.array([one.runtime(mine) - other.runtime(their) for mine, their in both])
            cost, runtime = (bootstrap_mean(values, starts, seed) for values in (costs, times))
            base = float(np.mean([other.cost(their) for _, their in both]))
            pairs.append(
                Pair(
                    *(one.scheme, other.scheme, one.job_hours, len(both)),
                    *(cost.mean, cost.low, cost.high, 100 * cost.mean / base if base else float("nan")),
                    *(runtime.mean, runtime.low, runtime.high),
                )
            )
    return pairs


def as_json(rows: Sequence[Row] | Sequence[Pair]) -> list[dict[str, object]]:
    """Rows for JSON: rounded to 9 digits, None where there is no figure."""
    return [{key: _plain(value) for key, value in asdict(row).items()} for row in rows]


def _plain(value: object) -> object:
    if isinstance(value, float):
        return None if math.isnan(value) else round(value, 9)
    return value
