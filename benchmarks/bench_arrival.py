"""What asp's steps on arrival mean for convergence: the loss after so many clocks, against bsp, with each optimizer.

Eight machines of speeds 1/3 to 1 train in one process on virtual time: a machine reads the parameters, computes its
share of a clock for as long as its speed says, and what it found is applied when it is done, by the very `Shard` of the
engine. `sum` is the rule that was there first: every contribution is a step of the optimizer along its sum. `own mean`
is the engine's. bsp is `agileml.core.sequential`. No time is measured, so the figures are the same on every computer.

    python benchmarks/bench_arrival.py [--quick]
"""

from __future__ import annotations

import argparse
import heapq
from collections.abc import Callable
from typing import Any

import numpy as np

from agileml.config.job import JobConfig, from_values
from agileml.core.compute.contract import initial_values
from agileml.core.compute.unit_computer import UnitComputer
from agileml.core.node.shard.shard import Shard, initial_cut
from agileml.core.parameters.fold import Contribution
from agileml.core.parameters.loss_scale import ClockSum
from agileml.core.parameters.step_terms import PLAIN
from agileml.core.protocol.job import Job
from agileml.core.sequential import train
from agileml.process.spec import RunSpec
from straggler.consistency import Read
from straggler.coverage import Units, span

WORKERS = 8
SPEEDS = (1 / 3, 1 / 3, 2 / 3, 2 / 3, 1.0, 1.0, 1.0, 1.0)
JOBS: dict[str, dict[str, Any]] = {
    "mlr": {"data": {"kind": "digits", "test_fraction": 0.2}, "model": {"l2": 1.0}, "clocks_per_pass": 4},
    "mf": {
        "data": {"kind": "made"},
        "model": {"mode": "gradients", "rank": 16, "l2": 0.1},
        "clocks_per_pass": 16,
    },
}
OPTIMIZERS: dict[str, dict[str, dict[str, Any]]] = {
    "mlr": {
        "sgd": {"learning_rate": 4.0},
        "momentum": {"learning_rate": 0.4},
        "adagrad": {"learning_rate": 0.4},
        "adam": {"learning_rate": 0.2},
    },
    "mf": {"adagrad": {"learning_rate": 0.2}, "adam": {"learning_rate": 0.05}},
}
FACTORS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)  # of the learning rate


class SumShard(Shard):
    """Takes a whole step of the optimizer along every contribution's sum."""

    def _step_along(self, contribution: Contribution, clock: int, bundle: Units) -> None:
        self._step(ClockSum(contribution, PLAIN), clock)


def config_of(name: str, optimizer: dict[str, Any], consistency: str, clocks: int) -> JobConfig:
    """A job of so many clocks, of 16 units each."""
    values = {"application": name, **JOBS[name], "optimizer": optimizer, "clocks": clocks, "slices": 16}
    return from_values({**values, "consistency": {"kind": consistency}, "partitions": 1})


def losses_of_bsp(name: str, optimizer: dict[str, Any], clocks: int) -> list[float]:
    """The mean loss of each clock."""
    config = config_of(name, optimizer, "bsp", clocks)
    spec = RunSpec("bench", config)
    application = spec.build()
    found: list[float] = []

    def on_clock(clock: int, loss: float, examples: int) -> bool:
        found.append(loss / max(1, examples))
        return False

    rule = spec.job(application).optimizer
    train(application, optimizer=rule, clocks=clocks, deterministic=False, on_clock=on_clock)
    return found


def losses_of_asp(kind: type[Shard], name: str, optimizer: dict[str, Any], clocks: int) -> list[float]:
    """The mean loss of each clock, of what its units read."""
    spec = RunSpec("bench", config_of(name, optimizer, "asp", clocks))
    application = spec.build()
    job = spec.job(application)
    work = UnitComputer(application, job.layout, job.parts, deterministic=False)
    work.load(range(job.slices))
    blocks = job.layout.blocks(initial_values(application, job.layout.tables), 0)
    shard = kind(job, initial_cut(job, blocks))
    shard.optimizers = job.optimizers(0)
    share = job.units // WORKERS
    # Not all begin at once: machines of one speed would otherwise push together for ever.
    under_way = [(worker / WORKERS / 100, worker, 0, None) for worker in range(WORKERS)]
    heap: list[tuple[float, int, int, Any]] = [*under_way]
    while heap:
        now_s, worker, clock, found = heapq.heappop(heap)
        bundle = span(worker * share, (worker + 1) * share)
        if found is not None:
            shard.push(clock, bundle, found, now_s)
            clock += 1
        if clock < clocks:
            took_s = share / SPEEDS[worker]
            heapq.heappush(heap, (now_s + took_s, worker, clock, computed(work, job, shard, clock, bundle)))
    return [report.loss / max(1, report.examples) for report in shard.progress]


def computed(work: UnitComputer, job: Job, shard: Shard, clock: int, bundle: Units) -> Contribution:
    """A contribution of what is read now."""
    reads = work.reads(clock, [bundle])
    answer = shard.read(clock, reads.by_partition[0])
    assert not isinstance(answer, Read), answer
    return work.compute(work.assemble(reads, [answer[1]], apart=True), bundle)[0]


def last(losses: list[float], clocks: int) -> float:
    """The mean of the last `clocks` clocks: a pass. Infinite where it diverges."""
    found = float(np.mean(losses[-clocks:]))
    return found if np.isfinite(found) else float("inf")


def at_best(
    run: Callable[[dict[str, Any]], list[float]], optimizer: dict[str, Any], a_pass: int
) -> tuple[float, float]:
    """(learning rate, loss) of the rate with the least loss."""
    found = []
    for factor in FACTORS:
        rate = factor * optimizer["learning_rate"]
        found.append((last(run({**optimizer, "learning_rate": rate}), a_pass), rate))
    loss, rate = min(found)
    return rate, loss


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer clocks")
    clocks = 48 if parser.parse_args().quick else 128
    print(f"{WORKERS} machines of speeds {', '.join(f'{speed:.2g}' for speed in SPEEDS)}; {clocks} clocks")
    print(
        "mean loss of the last pass: at the learning rate that is best for bsp, then each at its own best rate"
    )
    print(
        f"{'':14s}{'rate':>7s}{'bsp':>8s}{'own mean':>10s}{'sum':>8s}   {'own mean at its best':24s}{'sum at its best'}"
    )
    np.seterr(all="ignore")
    for name, optimizers in OPTIMIZERS.items():
        a_pass = JOBS[name]["clocks_per_pass"]
        for kind, settings in optimizers.items():
            optimizer = {"kind": kind, **settings}
            rate, bsp = at_best(lambda o, n=name: losses_of_bsp(n, o, clocks), optimizer, a_pass)
            same = {**optimizer, "learning_rate": rate}
            row, best = [], []
            for shard in (Shard, SumShard):
                row.append(last(losses_of_asp(shard, name, same, clocks), a_pass))
                best.append(
                    at_best(lambda o, n=name, s=shard: losses_of_asp(s, n, o, clocks), optimizer, a_pass)
                )
            own, total = (f"{loss:.4f} at {at:g}" for at, loss in best)
            print(
                f"{name + ' ' + kind:14s}{rate:7g}{bsp:8.4f}{row[0]:10.4f}{row[1]:8.4f}   {own:24s}{total}",
                flush=True,
            )


if __name__ == "__main__":
    main()
