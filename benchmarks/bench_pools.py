"""Policies of today's market on recorded pools, beside bounds that no policy can reach, and the time of a decision.

    python benchmarks/bench_pools.py RECORDINGS/*.json [--starts 60] [--quick]

Each recording is played as one pool, and its thirds as three pools at once. Costs are relative to all on-demand; 16
nodes, 10 h of work, spot at 0.3 of on-demand, every second paid. Both bounds know all capacity until the deadline and
never stop. The first takes every node that was there, and the rest on demand. The second pays for boots too: it is the
least cost of any schedule that leaves each node before it is taken, by a linear program.
"""

from __future__ import annotations

import argparse
import platform
import time
from pathlib import Path

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import bmat, diags, eye, kron

from bidbrain.config import SimulateConfig
from bidbrain.history.availability import Trace, read_trace
from bidbrain.history.prices import History, Market
from bidbrain.instants import Interval
from bidbrain.policy.base import Holding, MarketView, Offer, Phase
from bidbrain.policy.expected_cost import ExpectedCost
from bidbrain.policy.registry import find_scheme
from bidbrain.risk.book import Known, RiskBook
from bidbrain.risk.tally import Cell, Tally
from bidbrain.setting import Listing, Reliable, Setting, Workload
from bidbrain.simulate.pool_plan import make_pool_plan
from bidbrain.simulate.simulator import simulate

SCHEMES = ("static_checkpoint", "elastic", "spot_2026", "expected_cost")
NODES, HOURS, SPOT = 16, 10.0, 0.3
QUICK_STARTS = 10


def thirds(trace: Trace) -> list[Trace]:
    """Three stretches of one recording, as if they were three pools at once."""
    n = len(trace.counts) // 3
    return [
        Trace(Market("node", f"third-{k + 1}"), trace.tick_s, trace.counts[k * n : (k + 1) * n])
        for k in range(3)
    ]


def bound(traces: list[Trace], starts: list[int], deadline: float) -> float:
    """Mean cost of a job that knows all capacity."""
    total = np.minimum(NODES, sum(t.counts[: min(len(each.counts) for each in traces)] for t in traces))
    tick_s = traces[0].tick_s
    spans = [total[s // tick_s : s // tick_s + int(deadline * HOURS * 3600) // tick_s] for s in starts]
    spot_h = [min(NODES * HOURS, float(span.sum()) * tick_s / 3600) for span in spans]
    return float(np.mean([1 - (1 - SPOT) * each / (NODES * HOURS) for each in spot_h]))


def bound_with_boots(traces: list[Trace], start_s: int, deadline: float, boot_s: int) -> float:
    """Cost of the cheapest schedule of one job that knows all capacity and pays for boots, by a linear program.

    Variables by tick: s[p] spot nodes of pool p, j[p] those of them that are new, o on-demand nodes. A node may be a
    fraction, so no schedule of whole nodes is cheaper. An on-demand node works at once, as in the simulator.
    """
    tick_s, pools = traces[0].tick_s, len(traces)
    first, count = start_s // tick_s, int(deadline * HOURS * 3600) // tick_s
    there = np.concatenate([trace.counts[first : first + count] for trace in traces]).astype(float)
    size, one = pools * count, eye(count)
    change = kron(eye(pools), one - diags([1.0], [-1], shape=(count, count)))  # s[t] - s[t - 1]
    sums = kron(np.ones((1, pools)), one)
    boot = boot_s / tick_s  # of a tick
    total = np.ones((1, count))
    limits = bmat(
        [
            [change, -eye(size), None],  # what is more than before is new
            [sums, None, 0 * one],  # as many spot nodes as the job has
            [sums, -boot * sums, one],  # no more nodes that work than the job has
            [-total @ sums, boot * total @ sums, -total],  # the work
        ]
    ).tocsr()
    right = np.concatenate([np.zeros(size), np.full(2 * count, NODES), [-NODES * HOURS * 3600 / tick_s]])
    cost = np.concatenate([np.full(size, SPOT), np.zeros(size), np.ones(count)])
    most = np.concatenate([there, np.full(size + count, np.inf)])
    found = linprog(cost, limits, right, bounds=np.stack([np.zeros_like(most), most], axis=1), method="highs")
    assert found.status == 0, found.message
    return float(found.fun) * tick_s / 3600 / (NODES * HOURS)


def play(label: str, traces: list[Trace], count: int) -> None:
    """One table row per deadline and policy."""
    for deadline in (1.25, 1.5):
        config = SimulateConfig(job_hours=[HOURS], starts=count, deadline=deadline, nodes=NODES)
        experiment = make_pool_plan(config, traces).experiment
        starts = experiment.starts_of(HOURS)
        boot_s = experiment.setting.job.engine.boot_s
        with_boots = np.mean([bound_with_boots(traces, start, deadline, boot_s) for start in starts])
        least = bound(traces, starts, deadline)
        print(f"{label}, deadline {deadline}: bound {least:.4f}, with boots {with_boots:.4f}")
        for name in SCHEMES:
            scheme = find_scheme(name)
            own = scheme.setting(experiment.setting)
            begun = time.process_time()
            jobs = [simulate(own, name, scheme.make(own, s), s, scheme.reliable)[0] for s in starts]
            seconds = time.process_time() - begun
            cost = np.mean([job.micro_usd for job in jobs]) / (NODES * HOURS * 1e6)
            length = np.array([(job.end_s - job.start_s) / HOURS / 3600 for job in jobs])
            late = int((length > deadline).sum())
            print(
                f"  {name:18s} cost {cost:.4f}  runtime {length.mean():.3f}  late {late:3d}  "
                f"evictions {np.mean([job.evictions for job in jobs]):6.1f}  {len(jobs) / seconds:6.1f} jobs/s"
            )


def decision_ms(pools: int, machines: int) -> float:
    """CPU milliseconds of a decision, the median of nine."""
    markets = [Market(f"c{i // 5}.xlarge", f"us-east-1{'abcde'[i % 5]}") for i in range(pools)]
    rng = np.random.default_rng(0)
    tally = Tally()
    for market, lost in zip(markets, rng.random(pools).tolist(), strict=True):
        tally.at(market, 0).add(Cell(1000.0, 20 * lost, 20 * lost))
    book = RiskBook(Known.of_tally(tally, 3600))
    offers = tuple(
        Offer(m, int(price), int(price), 400_000, 4, 4.0)
        for m, price in zip(markets, rng.uniform(50_000, 100_000, pools), strict=True)
    )
    job = Workload(4 * machines, 10.0, 1.5, 0.9, 1.5)
    listings = tuple(Listing(m, 400_000, 4) for m in markets)
    reliable = Reliable("c0.xlarge", 4, 400_000, 4)
    setting = Setting(job, listings, History({}, 0), Interval(0, 1), reliable, 400_000, rules="per_second")
    held = []
    for number in range(machines):
        market = markets[int(rng.integers(0, min(60, pools)))]
        book.granted(3600, number, market, 1)
        held.append(Holding(number, market, 4, 400_000, Phase.HELD, 3600, 3600, 70_000))
    view = MarketView(offers, tuple(held), job, job.work_vcpu_s * 0.6, book)
    policy, times = ExpectedCost(setting, 0), []
    for round_ in range(9):
        begun = time.process_time()
        policy.decide(7200 + 300 * round_, view)
        times.append(1000 * (time.process_time() - begun))
    return float(np.median(times))


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recordings", nargs="*", type=Path)
    parser.add_argument("--starts", type=int, default=200, help="jobs of each policy")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_STARTS} starts")
    given = parser.parse_args()
    print(
        f"{platform.processor() or platform.machine()}, Python {platform.python_version()}, numpy {np.__version__}"
    )
    for pools, machines in ((15, 100), (500, 1000)):
        took = decision_ms(pools, machines)
        print(f"a decision of expected_cost with {pools} pools and {machines} machines: {took:.1f} ms of CPU")
    for path in given.recordings:
        trace = read_trace(path)
        count = QUICK_STARTS if given.quick else given.starts
        play(f"{path.name}", [trace], count)
        play(f"three thirds of {path.name}", thirds(trace), count)


if __name__ == "__main__":
    main()
