"""A pair of machines of unlike speed, on real Ray nodes: what shares by speed gain, and what their work costs.

    python benchmarks/bench_pair.py [--quick] [--rounds 3] [--part gain|cost]

gain: two workers that really train (MLR), each with a core of its own, and one owes a sleep for every unit, so that it
has a third of its speed. LB-BSP beside static shares and the ideal: the best split of whole units at the speeds that
the same run measured (other programs on the computer change them from run to run), with no time for anything else. The
gain is that in clocks over the ideal. Runs in turn, medians of the rounds. The bits must be equal.

cost: a machine of one vCPU on demand and a spot machine of four, bought on a played market with prices by the second,
where a process pauses so that it is as fast as its instance. What the bill grows by while clocks go on, over the work
of these clocks, beside E = C / W (thesis, 4.1 to 4.4) at the prices of the purchase.
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from measuring import cores, versions

import agileml
from agileml.events.market import Billed, InstancesBought
from agileml.events.run import ClockDone, WorkDone
from agileml.events.schema import Log, of_type
from agileml.runs.event_log import EVENTS, read_events
from bidbrain.policy.base import Decision, MarketView, Request
from bidbrain.policy.footprint import (
    allocation_work,
    cost_per_work,
    eviction_free,
    expected_charge,
    expected_work,
    scaling_efficiency,
    useful_time,
)
from straggler.lbbsp.sizes import cpu_batch_sizes

SLICES, UNITS = 8, 64
WARM = 8  # clocks that are not counted
SPEED = 1 / 3
TARGET_GAIN, TARGET_COST = 0.90, 0.10
MLR: Mapping[str, Any] = {
    "application": "mlr",
    "data": {"kind": "blobs", "examples": 100_000, "features": 784, "classes": 10},
    "optimizer": {"kind": "sgd", "learning_rate": 0.05},
    "clocks_per_pass": 1,
    "slices": SLICES,
    "units_per_slice": UNITS // SLICES,
}


def trained(values: Mapping[str, Any]) -> tuple[Log, str]:
    """The events of a run, and its parameters."""
    with tempfile.TemporaryDirectory() as folder:
        result = agileml.run(dict(values), out=str(Path(folder) / "run"))
        return read_events(result.folder / EVENTS), str(result.summary["params_sha256"])


# -- what shares by speed gain ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Seen:
    """Of a run after its first clocks: the median clock, the units per second of each machine, the share of waiting."""

    clock_s: float
    speeds: Mapping[str, float]
    waiting: float

    @property
    def ideal_s(self) -> float:
        """A clock with the best split of whole units at these speeds, and nothing but computing."""
        speeds = np.array(list(self.speeds.values()))
        return float(max(cpu_batch_sizes(speeds, UNITS) / speeds))

    @property
    def over_ideal(self) -> float:
        """A clock over the ideal."""
        return self.clock_s / self.ideal_s


def seen(log: Log) -> Seen:
    """What a log shows."""
    took_s = [each.event.seconds for each in of_type(log, ClockDone)[WARM:] if each.event.seconds is not None]
    done: dict[str, list[float]] = {}
    for each in of_type(log, WorkDone):
        if each.event.clock > WARM:
            for name, work in each.event.by_machine.items():
                total = done.setdefault(name, [0.0, 0.0, 0.0])
                for index, more in enumerate((work.units, work.compute_s, work.wait_s)):
                    total[index] += more
    compute_s, wait_s = (sum(total[index] for total in done.values()) for index in (1, 2))
    speeds = {name: units / seconds for name, (units, seconds, _) in sorted(done.items())}
    return Seen(statistics.median(took_s), speeds, wait_s / (wait_s + compute_s))


def show_gain(rounds: int, clocks: int) -> None:
    job = {
        **MLR,
        "clocks": clocks,
        "stage": 1,
        "machines": {"reliable": 1, "transient": 1, "max": 2},
        "pace": {"speeds": {"m1": SPEED}},
    }
    print(f"\ntwo workers that train, m1 at {SPEED:.3f} of its speed; {clocks} clocks of {UNITS} units")
    print("clock, over its ideal, units/s of m0 and m1:  static                       lbbsp", end="")
    print("                        lbbsp / static  of the gain  waiting")
    gains = []
    for _ in range(rounds):
        (even_log, even_sha), (log, sha) = (
            trained({**job, "balance": balance}) for balance in ("static", "lbbsp")
        )
        assert even_sha == sha, "the bits differ"
        even, ours = seen(even_log), seen(log)
        gains.append((even.over_ideal - ours.over_ideal) / (even.over_ideal - 1))
        both = "".join(
            f"{one.clock_s:9.3f} s{one.over_ideal:7.3f} {', '.join(f'{v:.0f}' for v in one.speeds.values()):>11}"
            for one in (even, ours)
        )
        ratio = ours.clock_s / even.clock_s
        print(f"{'':44}{both}{ratio:16.3f}{gains[-1]:13.3f}{ours.waiting:9.1%}", flush=True)
    print(f"of the ideal gain: {statistics.median(gains):.3f} (target {TARGET_GAIN:.2f})")


# -- what their work costs ----------------------------------------------------------------------------------

SMALL, LARGE = "m3.medium", "c4.xlarge"  # 1 and 4 vCPUs
VCPUS = {SMALL: 1, LARGE: 4}
MARKET_SPEED = 120  # market seconds in a second


class OneLarge:
    """Buys one large machine on spot, at a bid that no made price passes, and keeps it."""

    def __init__(self, setting: Any, start_s: float) -> None:
        """A policy's arguments, of which this one needs none."""

    def decide(self, now_s: int, view: MarketView) -> Decision:
        """Ask until it is there."""
        offers = [offer for offer in view.offers if offer.market.instance_type == LARGE]
        if view.holdings or not offers:
            return Decision((), "holds what it wants", wake_on_market=True)
        offer = offers[0]
        return Decision((Request(offer.market, offer.vcpus, 10 * offer.on_demand),), "one large machine")


def predicted_usd(prices: Mapping[str, float]) -> float:
    """E of (4.4) for an hour of the pair in which nothing is evicted or changes: dollars per vCPU hour."""
    kept = [(expected_charge(0.0, prices[kind], 1, 1.0), VCPUS[kind]) for kind in (SMALL, LARGE)]
    useful_h = useful_time(1.0, eviction_free((0.0, 0.0)), 60 / 3600, 0.0)
    works = [allocation_work(1, useful_h, vcpus) for _, vcpus in kept]
    size = sum(VCPUS.values())
    work = expected_work(scaling_efficiency(size, size, 1.0), works)
    return cost_per_work(sum(charge for charge, _ in kept), work)


def measured_usd(log: Log, work_vcpu_h: float, clocks: int) -> float:
    """What the bill grew by over the second half of the clocks, per vCPU hour of their work."""
    at_clock = [(each.t_s, each.event.clock) for each in of_type(log, ClockDone)]
    bills = [(each.t_s, each.event.usd) for each in of_type(log, Billed)]
    times, counts = zip(*at_clock, strict=True)
    begin_s = times[len(times) // 2]
    late = [(t_s, usd) for t_s, usd in bills if begin_s <= t_s <= times[-1]]
    (first_s, first_usd), (last_s, last_usd) = late[0], late[-1]
    done = np.interp([first_s, last_s], times, counts)
    return (last_usd - first_usd) / (float(done[1] - done[0]) / clocks * work_vcpu_h)


def show_cost(rounds: int, hours: float, clocks: int) -> None:
    size = sum(VCPUS.values())
    print(f"\n1 vCPU on demand and 4 on spot; {size * hours:g} vCPU hours in {clocks} clocks, ", end="")
    print(f"{hours * 3600 / MARKET_SPEED:.0f} s if nothing waits")
    print("balance   predicted, $ per vCPU h   measured   measured / predicted")
    for balance in ("static", "auto", "lbbsp"):
        ratios = []
        for seed in range(rounds):
            market = {
                "kind": "made",
                "seed": seed,
                "character": "smooth",
                "types": [SMALL, LARGE],
                "zones": ["us-east-1a"],
                "reliable_type": SMALL,
                "rules": "per_second",
                "policy": "bench_pair:OneLarge",
                "job_vcpus": size,
                "job_hours": hours,
                "speed": MARKET_SPEED,
                "paced": True,
            }
            job = {
                "application": "mlr",
                "data": {"kind": "digits"},
                "clocks": clocks,
                "slices": SLICES,
                "units_per_slice": UNITS // SLICES,
                "stage": 1,
                "balance": balance,
                "machines": {"reliable": 1, "max": 2},
                "market": market,
            }
            log, _ = trained(job)
            bought = [each.event for each in of_type(log, InstancesBought)]
            prices = {each.market.partition("@")[0]: each.price_usd_per_h for each in bought}
            expected, found = predicted_usd(prices), measured_usd(log, size * hours, clocks)
            ratios.append(found / expected)
            print(f"{balance:10}{expected:23.5f}{found:11.5f}{ratios[-1]:23.3f}", flush=True)
        ratio = statistics.median(ratios)
        print(f"{balance}: {ratio:.3f} of what was predicted (target within {TARGET_COST:.0%})")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one round, fewer clocks")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--part", choices=("gain", "cost"), help="only one of both")
    arguments = parser.parse_args()
    rounds = 1 if arguments.quick else arguments.rounds
    print(f"{versions('python')}, {cores()}")
    if arguments.part != "cost":
        show_gain(rounds, 30 if arguments.quick else 60)
    if arguments.part != "gain":
        show_cost(rounds, 1.0 if arguments.quick else 2.0, 80 if arguments.quick else 160)


if __name__ == "__main__":
    sys.exit(main())
