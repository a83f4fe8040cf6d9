"""What the engine adds where the machine's own arithmetic is all that counts.

    python benchmarks/bench_one_machine.py [--quick] [--rounds 5] [--only mf|mlr|backups]

MF: a pass over made ratings (5 million, 6,000 users, 4,000 items, rank 32) in 16 clocks by one worker, against the bare
numba kernel over the same ratings in the same process' settings. MLR: a clock of 60,000 x 784 x 10 by two workers of
one thread, against the same step in one torch process of one thread; beside it two such processes that do half of it
each at the same time and exchange nothing, which is as far as this machine's memory lets two go. Backups: a clock of
a dense model with cuts as often as the configuration says, against the same without any.
Everything runs in turn, for several rounds; a ratio is the median of the rounds' ratios. CPU is that of one process per
pass or clock (of the busiest one, where there are two): what the wall time would be on an idle machine.
"""

import argparse
import secrets
import statistics
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, ClassVar

import child_machines  # first: it sets what malloc and BLAS do, for us and for the children
import numpy as np
import torch
from child_machines import NO_CUTS, Pair, cpu_between, serve_machine
from measuring import computer
from torch import nn

from agileml.application import Settings
from agileml.apps.labelled import load_labelled
from agileml.apps.logistic_regression import LogisticRegression
from agileml.apps.matrix_factorization import MatrixFactorization, _steps
from agileml.config.job import from_values
from agileml.core.compute.threads import single_threaded
from agileml.process.spec import RunSpec

PASS_CLOCKS = 16
RATE, L2 = 0.0005, 0.1
FIRST_CLOCKS = 3  # that are not counted
Sample = tuple[float, float]  # wall and CPU seconds


class SharedMf(MatrixFactorization):
    """Ratings are made once in a process."""

    made: ClassVar[dict[int, Any]] = {}

    def with_settings(self, settings: Settings) -> "SharedMf":
        found = SharedMf(settings)
        count = settings.data["ratings"]
        if count not in self.made:
            self.made[count] = found.data
        found.__dict__["data"] = self.made[count]
        return found


def mf_settings(ratings: int, slices: int) -> Settings:
    data = {"kind": "made", "users": 6000, "items": 4000, "ratings": ratings, "test_fraction": 0.0}
    return Settings(data, {"rate": RATE, "l2": L2, "rank": 32}, 0, slices, PASS_CLOCKS)


def config(settings: Settings, application: str, machines: int, clocks: int, **more: Any) -> dict[str, Any]:
    return {
        "application": application,
        "data": dict(settings.data),
        "model": dict(settings.model),
        "clocks": clocks,
        "clocks_per_pass": settings.clocks_per_pass,
        "slices": settings.slices,
        "machines": {"reliable": machines, "transient": 0, "max": machines},
        "stage": 1,
        "cuts": NO_CUTS,
        "heartbeat": {"interval_s": 0.5, "timeout_s": 30.0},
        **more,
    }


def run(machines: Pair, values: dict[str, Any], application: Any = None) -> tuple[list[float], list[Any]]:
    """(when each clock ended, what CPU time each process had at what time)."""
    spec = RunSpec(secrets.token_hex(4), from_values(values), application)
    ends, answers = child_machines.train(machines, spec)
    return ends, [seen for seen, _ in answers]


def between(ends: list[float], seen: list[Any], first: int, last: int) -> Sample:
    """Wall and CPU seconds of the busiest process from the end of one clock to that of another."""
    return ends[last] - ends[first], max(cpu_between(one, ends[first], ends[last]) for one in seen)


def timed(work: Callable[[], Any]) -> Sample:
    start, start_cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - start, time.process_time() - start_cpu


def bench_mf(rounds: int, quick: bool) -> None:
    ratings = 1_000_000 if quick else 5_000_000
    machine = Pair(serve_machine, world=1)
    app = SharedMf(mf_settings(ratings, 1)).with_settings(mf_settings(ratings, 1))
    share = app.load(0)
    tables = {table.name: app.initial(table).copy() for table in app.tables()}
    arguments = (tables["users"], tables["items"], True, np.float32(RATE), np.float32(L2))
    bare = partial(_steps, share.users, share.items, share.values, *arguments)
    bare()
    for slices, deterministic, limit in ((1, False, 1.3), (16, True, 2.0)):
        found = []
        for _ in range(rounds):
            settings = mf_settings(ratings, slices)
            values = config(settings, "mf", 1, 3 * PASS_CLOCKS, deterministic=deterministic, partitions=1)
            ends, seen = run(machine, values, SharedMf(settings))
            last = 3 * PASS_CLOCKS - 1
            passes = [
                between(ends, seen, last - n * PASS_CLOCKS - PASS_CLOCKS, last - n * PASS_CLOCKS)
                for n in (0, 1)
            ]
            found.append((min(passes), min(timed(bare) for _ in range(3))))
        what = f"MF pass, {ratings:,} ratings, {'deterministic, 16 slices' if deterministic else 'not deterministic'}"
        show(what, found, limit)
    machine.end()


def mlr_step(x: torch.Tensor, y: torch.Tensor) -> Callable[[], None]:
    layer = nn.Linear(x.shape[1], 10)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)

    def step() -> None:
        loss = nn.functional.cross_entropy(layer(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def serve_half(pipe: Connection, rank: int, settings: Settings) -> None:
    """Half of the examples in a process: so many steps whenever asked, timed, until None comes."""
    torch.set_num_threads(1)
    labelled = load_labelled(settings)
    x = torch.from_numpy(labelled.scaled(labelled.train_items[rank::2]))
    step = mlr_step(x, torch.from_numpy(labelled.train_labels[rank::2].copy()))
    step()
    pipe.send(None)
    while (count := pipe.recv()) is not None:
        pipe.send([timed(step) for _ in range(count)])


def bench_mlr(rounds: int, quick: bool) -> None:
    examples = 20_000 if quick else 60_000
    data = {"kind": "blobs", "examples": examples, "features": 784, "classes": 10, "test_fraction": 0.0}
    settings = Settings(data, {}, 0, 2, 1)
    torch.set_num_threads(1)
    labelled = load_labelled(settings)
    x = torch.from_numpy(labelled.scaled(labelled.train_items))
    step = mlr_step(x, torch.from_numpy(labelled.train_labels))
    pair = Pair(serve_machine)
    halves = Pair(serve_half, settings)
    halves.answers()
    found, alone = [], []
    with single_threaded():
        step()
        for _ in range(rounds):
            optimizer = {"kind": "sgd", "learning_rate": 0.1}
            more = {"deterministic": False, "partitions": 2, "optimizer": optimizer}
            ends, seen = run(pair, config(settings, "mlr", 2, 15, **more), LogisticRegression(settings))
            wall, cpu = between(ends, seen, FIRST_CLOCKS, 14)
            count = 14 - FIRST_CLOCKS
            peer = middle([timed(step) for _ in range(5)])
            halves.tell(11)
            found.append(((wall / count, cpu / count), peer))
            alone.append((max(map(middle, halves.answers())), peer))
    pair.end()
    halves.end()
    show(f"MLR clock, {examples:,} x 784 x 10, two workers / one torch process", found, 0.52)
    show("the limit: two torch processes at once, half of it each, no exchange", alone)


def middle(samples: list[Sample]) -> Sample:
    """The median wall time, the least CPU time."""
    return statistics.median(wall for wall, _ in samples), min(cpu for _, cpu in samples)


def bench_backups(rounds: int, quick: bool) -> None:
    """A dense model on one reliable and two transient machines; cuts by the default rule against none."""
    task = child_machines.TASKS["mlp"]
    clocks = 20 if quick else 30
    three = Pair(serve_machine, world=3)
    for stage, limit in ((2, 1.05), (3, 1.03)):
        found = []
        for _ in range(rounds):
            samples = []
            for cuts in ({}, NO_CUTS):
                values = child_machines.job_values(
                    clocks,
                    model={"batch_size": 96},
                    optimizer={"kind": "momentum", "learning_rate": 0.001},
                    slices=4,
                    machines={"reliable": 1, "transient": 2, "max": 3},
                    stage=stage,
                    active_fraction=1.0,
                    partitions=2,
                    cuts=cuts,
                )
                ends, seen = run(three, values, child_machines.application(task, 3))
                wall, cpu = between(ends, seen, FIRST_CLOCKS, clocks - 2)
                samples.append((wall / (clocks - 2 - FIRST_CLOCKS), cpu / (clocks - 2 - FIRST_CLOCKS)))
            found.append((samples[0], samples[1]))
        show(f"backups on / off, {task.name}, stage {stage}, 1 + 2", found, limit)
    three.end()


def show(what: str, found: list[tuple[Sample, Sample]], target: float | None = None) -> None:
    """A row: medians, and the medians of the rounds' ratios."""
    ours, theirs = (
        [statistics.median(pair[side][k] for pair in found) * 1e3 for k in (0, 1)] for side in (0, 1)
    )
    wall, cpu = (statistics.median(pair[0][k] / pair[1][k] for pair in found) for k in (0, 1))
    print(
        f"{what:72}{ours[0]:9.1f}{theirs[0]:9.1f}{wall:7.2f}{ours[1]:11.1f}{theirs[1]:9.1f}{cpu:7.2f}"
        + (f"   <= {target}" if target else ""),
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one round, less data, no backups")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--only", choices=("mf", "mlr", "backups"))
    arguments = parser.parse_args()
    quick = arguments.quick
    rounds = arguments.rounds or (1 if quick else 5)
    print(f"{computer('torch', 'numpy', 'python')}; {rounds} rounds")
    print(f"{'':72}{'ms':>9}{'peer':>9}{'ratio':>7}{'CPU ms':>11}{'peer':>9}{'ratio':>7}")
    for name, bench in (("mf", bench_mf), ("mlr", bench_mlr), ("backups", bench_backups)):
        if arguments.only == name or (arguments.only is None and not (quick and name == "backups")):
            bench(rounds, quick)


if __name__ == "__main__":
    main()
