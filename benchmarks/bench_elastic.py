"""Supersteps and pools on unequal machines: time and accuracy beside BSP, and SSP and ASP with fixed shares.

    python benchmarks/bench_elastic.py [--quick] [--rounds 3]

Four machines at speeds 1, .7, .53 and .41, a fixed number of minibatches that cannot be cut. Time is that of the
engine, over real sockets, with machines that pause to absolute deadlines (`uneven_rig`); schemes run in turn, ratios
are medians of the rounds'. The bound is minibatches / sum of speeds, with no time for messages. Accuracy is
that of a small CNN after the same minibatches, by the engine's own steps: in which order they were taken and what each
had read follows from the speeds, exactly, so it is the same on every machine (`agileml.core.stepwise`).
"""

import argparse
import heapq
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from measuring import cores, versions
from uneven_rig import Trial, UnevenRun

from agileml.config.job import from_values
from agileml.core.protocol.job import Job
from agileml.core.protocol.superstep_messages import StepTaken
from agileml.core.protocol.supersteps import SuperstepDeal
from agileml.core.protocol.view import INITIAL, View
from agileml.core.sequential import run_sequential
from agileml.core.stepwise import Stepwise
from agileml.core.supersteps.planner import SuperstepPlanner
from agileml.process.spec import RunSpec
from straggler.lbbsp.sizes import cpu_batch_sizes

SPEEDS = (1.0, 0.7, 0.53, 0.41)
NAMES = tuple(f"m{number}" for number in range(len(SPEEDS)))
SCHEMES: Mapping[str, Mapping[str, Any]] = {
    "bsp": {},
    "ssp(3), shares": {"consistency": {"kind": "ssp", "slack": 3}, "balance": "static"},
    "ssp(3), pool": {"consistency": {"kind": "ssp", "slack": 3}, "balance": "pool"},
    "asp, shares": {"consistency": {"kind": "asp"}, "balance": "static"},
    "asp, pool": {"consistency": {"kind": "asp"}, "balance": "pool"},
    "lbbsp, 4 to a machine": {"balance": "lbbsp", "units_per_slice": 4},
    "elastic(15)": {"consistency": {"kind": "elastic", "range": 15}},
    "elastic(15), wait": {"consistency": {"kind": "elastic", "range": 15, "objective": "wait"}},
}

# -- time ---------------------------------------------------------------------------------------------------


def job_values(unit_s: float, clocks: int, more: Mapping[str, Any]) -> dict[str, Any]:
    """A job of as many minibatches in a clock as machines; m0 is reliable and owns the parameters."""
    return {
        "clocks": clocks,
        "slices": len(SPEEDS),
        "stage": 1,
        "machines": {"reliable": 1, "transient": len(SPEEDS) - 1, "max": len(SPEEDS)},
        "pace": {"unit_s": unit_s, "speeds": dict(zip(NAMES[1:], SPEEDS[1:], strict=True))},
        **more,
    }


def timed(scheme: str, minibatches: int, unit_s: float) -> tuple[float, Trial]:
    """Seconds from the first clock's end to the last's, of so many minibatches in all."""
    more = dict(SCHEMES[scheme])
    units = len(SPEEDS) * more.get("units_per_slice", 1)
    clocks = minibatches // units
    trial = UnevenRun(job_values(unit_s, clocks, more)).train()
    return trial.took_s(1, clocks) * minibatches / (minibatches - units), trial


def asp_s(minibatches: int, unit_s: float) -> float:
    """Seconds of so many minibatches with asp and shares, while all machines compute: nobody waits, and messages take
    time."""
    clocks = minibatches // len(SPEEDS) // 2
    trial = UnevenRun(job_values(unit_s, clocks, SCHEMES["asp, shares"])).train()
    return trial.unit_s(0.9 * clocks * unit_s / max(SPEEDS)) * minibatches


def show_time(unit_s: float, minibatches: int, rounds: int) -> None:
    pool_s = minibatches * unit_s / sum(SPEEDS)
    even_s = minibatches * unit_s / len(SPEEDS) / min(SPEEDS)
    print(
        f"\n{minibatches} minibatches of {unit_s * 1e3:g} ms at speed 1; machines that never wait take ",
        end="",
    )
    print(f"{pool_s:.2f} s, bsp without messages {even_s:.2f} s ({pool_s / even_s:.3f})")
    rows = [{scheme: timed(scheme, minibatches, unit_s) for scheme in SCHEMES} for _ in range(rounds)]
    loose_s = statistics.median(asp_s(minibatches, unit_s) for _ in range(rounds))
    print("scheme                  seconds   of bsp  of asp*  over the bound  waiting")
    for scheme in SCHEMES:
        seconds = statistics.median(row[scheme][0] for row in rows)
        ratio = statistics.median(row[scheme][0] / row["bsp"][0] for row in rows)
        last = rows[-1][scheme][1]
        waits = last.waiting(1, max(last.done_s))
        rest = f"{ratio:9.3f}{seconds / loose_s:9.3f}{seconds / pool_s:16.3f}{waits:9.1%}"
        print(f"{scheme:22}{seconds:9.2f}{rest}", flush=True)
    print(f"{'* while all compute':22}{loose_s:9.2f}{'':18}{loose_s / pool_s:16.3f}")


# -- accuracy -----------------------------------------------------------------------------------------------


def config(seed: int, clocks: int, **more: Any) -> Any:
    return from_values(
        {
            "application": "torch",
            "data": {"kind": "large_digits"},
            "model": {
                "module": "agileml.apps.torch.models:cnn",
                "arguments": {"channels": 1, "size": 28, "classes": 10},
                "batch_size": 128,
            },
            "optimizer": {"kind": "sgd", "learning_rate": 0.05},
            "clocks": clocks,
            "slices": len(SPEEDS),
            "seed": seed,
            "machines": {"reliable": 1, "transient": 3, "max": len(SPEEDS)},
            **more,
        }
    )


def pooled(count: int) -> list[StepTaken]:
    """ASP with a pool: whoever is free takes the next minibatch, computed from all that is there."""
    free = [(0.0, worker) for worker in range(len(SPEEDS))]
    under_way: list[tuple[float, int, int, int]] = []  # end, worker, position, what it read
    taken: list[StepTaken] = []
    for position in range(count):
        at_s, worker = heapq.heappop(free)
        taken += _ended(under_way, at_s)
        end_s = at_s + 1 / SPEEDS[worker]
        heapq.heappush(under_way, (end_s, worker, position, len(taken)))
        heapq.heappush(free, (end_s, worker))
    return taken + _ended(under_way, float("inf"))


def _ended(under_way: list[tuple[float, int, int, int]], until_s: float) -> list[StepTaken]:
    found = []
    while under_way and under_way[0][0] <= until_s:
        _, _, position, read = heapq.heappop(under_way)
        found.append(StepTaken(position, (read,)))
    return found


def planned(job: Job, cuts: Sequence[int] = ()) -> Iterator[list[tuple[float, str, int]]]:
    """The supersteps of a run by the engine's planner, on machines that take no time for messages: of each the
    minibatches, with their ends in seconds, by end. cuts: the minibatches before which all machines meet."""
    share = tuple((name, 1 << unit) for unit, name in enumerate(NAMES))
    view = View(1, 1, NAMES, (NAMES[0],), (NAMES[0],), share, NAMES, 0, (), 1, INITIAL)
    planner, deal = SuperstepPlanner(job, view, lambda chosen: None, {}), SuperstepDeal(job, view)
    first, now_s = 0, 0.0
    while first < deal.end:
        stop = min((cut for cut in cuts if cut > first), default=deal.end)
        for name in NAMES:
            plan = planner.plan(name, first, stop, now_s)
        assert plan is not None
        ends = [
            (now_s + (number + 1) / speed, name, position)
            for (name, positions), speed in zip(deal.deal(plan).items(), SPEEDS, strict=True)
            for number, position in enumerate(positions)
        ]
        for end_s, name, _ in sorted(ends):
            planner.counted(name, end_s)
        yield sorted(ends)
        first, now_s = deal.after(plan), max(ends)[0]


def supersteps(job: Job) -> Iterator[StepTaken]:
    """The steps of such a run."""
    count = 0
    for ends in planned(job):
        before = dict.fromkeys(NAMES, count)  # steps at the time of each worker's pull
        for _, name, position in ends:
            yield StepTaken(position, (before[name],))
            count += 1
            before[name] = count


def least_s(minibatches: int, most: int) -> float:
    """The least seconds of so many minibatches of 1 s, in any supersteps of up to `most` for each machine."""
    alone_s = [float("inf")]
    for count in range(1, min(minibatches, most * len(SPEEDS)) + 1):
        sizes = cpu_batch_sizes(SPEEDS, count, minimum=0)
        alone_s.append(float(max(sizes / SPEEDS)) if max(sizes) <= most else float("inf"))
    best_s = [0.0]
    for count in range(1, minibatches + 1):
        longest = min(count, len(alone_s) - 1)
        best_s.append(min(alone_s[last] + best_s[count - last] for last in range(1, longest + 1)))
    return best_s[minibatches]


def show_plan(minibatches: int, cuts: Sequence[int]) -> None:
    """What whole minibatches and meetings cost after the first superstep, where messages cost nothing."""
    values = job_values(1.0, minibatches // len(SPEEDS), SCHEMES["elastic(15)"])
    spec = RunSpec("plan", from_values({"application": "uneven_rig:Nothing", **values}))
    job = spec.job(spec.build())
    for stops in ((), cuts):
        first, *rest = planned(job, stops)
        took_s = rest[-1][-1][0] - first[-1][0]
        over = took_s * sum(SPEEDS) / sum(map(len, rest))
        begin = (len(first), *stops)
        best_s = sum(map(least_s, np.diff([*begin, minibatches]).tolist(), [15] * len(begin)))
        best = best_s * sum(SPEEDS) / (minibatches - len(first))
        print(
            f"{minibatches} minibatches, cuts at {list(stops)}: {over:.3f} of the pool without messages, ",
            end="",
        )
        print(f"{best:.3f} with the best supersteps that there are")


def accuracies(seed: int, clocks: int) -> dict[str, float]:
    """Test accuracy of each scheme after the same minibatches."""
    found = {}
    for scheme, more in {
        "bsp": {},
        "pooled asp": {"consistency": {"kind": "elastic"}},
        "elastic(15)": SCHEMES["elastic(15)"],
        "elastic(15), wait": SCHEMES["elastic(15), wait"],
    }.items():
        spec = RunSpec(scheme, config(seed, clocks, **more))
        application = spec.build()
        job = spec.job(application)
        if scheme == "bsp":
            tables = run_sequential(application, optimizer=job.optimizer, clocks=clocks, parts=job.parts)
        else:
            count = clocks * job.units
            steps: Sequence[StepTaken] = pooled(count) if scheme == "pooled asp" else list(supersteps(job))
            assert sorted(step.position for step in steps) == list(range(count))
            tables = Stepwise(application, job.optimizer, job.parts, [steps]).train().tables
        found[scheme] = 100 * application.evaluate(tables)["test_accuracy"]
    return found


def show_accuracy(seeds: int, lengths: Sequence[int]) -> None:
    print(
        f"\ntest accuracy in % of a CNN on digits, SGD at a rate of .05 a step, mean of {seeds} seeds (standard error)"
    )
    for clocks in lengths:
        rows = [accuracies(seed, clocks) for seed in range(seeds)]
        cells = []
        for scheme in rows[0]:
            values = [row[scheme] for row in rows]
            error = np.std(values, ddof=1) / np.sqrt(seeds) if seeds > 1 else float("nan")
            cells.append(f"{scheme} {statistics.mean(values):.2f} ({error:.2f})")
        print(f"{clocks * len(SPEEDS):5} minibatches of 32: " + "; ".join(cells), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one round of fewer and shorter minibatches")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=["time", "plan", "accuracy"])
    arguments = parser.parse_args()
    print(f"{versions('python', 'torch')}, {cores()}")
    if arguments.only in (None, "plan"):
        show_plan(160, (40, 148))
        show_plan(320, (40, 248))
    if arguments.only in (None, "time"):
        unit_s, count = (0.03, 160) if arguments.quick else (0.1, 320)
        show_time(unit_s, count, 1 if arguments.quick else arguments.rounds)
    if arguments.only in (None, "accuracy"):
        show_accuracy(1 if arguments.quick else 4, (50,) if arguments.quick else (50, 100, 200))


if __name__ == "__main__":
    sys.exit(main())
