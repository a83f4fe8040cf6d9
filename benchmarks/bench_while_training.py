"""What an evaluation costs while a run trains, and what slow items cost that loader processes make ready.

Two processes on this machine, one thread of computing each, an all-reduce on replicas (`optimizer.kind: torch`), the
transformer of bench_ddp.py (10.5 M parameters, 8 sequences a process). Everything is measured in turn, for several
rounds; a time is the mean over all clocks behind the first ones, a ratio the median of the rounds' ratios.

Evaluation: every 6 clocks, of 96 test items dealt over both machines. Cost is the time of a clock with them less that
without, times 6; the share of items x forward is the time that forward over half of the items takes in one process
while the other one does the same. The limit is 1.1 of that.

Loader: each item takes 5 ms to come (a wait, as for a disk or a network), so the 8 of a process's clock take 40 ms,
less than a step. One loader process for each machine makes the next clock's items ready, against items that are there
at once. The limit is 1.05. Without a loader process a clock waits for its items.
`python benchmarks/bench_while_training.py [--quick] [--rounds 5] [--clocks 36] [--only evaluation]`.
"""

import argparse
import secrets
import statistics
import time
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import child_machines  # first: it sets the environment that the processes begin with
import torch
from child_machines import WARM_UP, WORLD, Engine, Pair, cpu_between, serve_machine, train
from ddp_peer import Task, items
from measuring import computer
from slow_items import slow

from agileml.apps.torch.module import TorchModule
from agileml.config.job import from_values
from agileml.process.spec import RunSpec

EVERY, TEST_ITEMS = 6, 96
ITEM_S = 0.005
EVALUATION_LIMIT, LOADER_LIMIT = 1.1, 1.05
TASK = child_machines.TASKS["gpt"]


def with_test_items(task: Task) -> Any:
    """(train, test) of a task."""
    x, y = items(task, 0)
    return (x, y), (x[:TEST_ITEMS], y[:TEST_ITEMS])


def forward_alone(pipe: Connection, rank: int) -> None:
    """Seconds of a forward over this process's half of the test items, each time that the parent asks."""
    torch.set_num_threads(1)
    module = TASK.build().eval()
    x, y = (part[:TEST_ITEMS] for part in items(TASK, rank))
    half = slice(0, TEST_ITEMS // WORLD)
    while pipe.recv() is not None:
        seconds = []
        for _ in range(5):
            began_s = time.perf_counter()
            with torch.no_grad():
                torch.nn.functional.cross_entropy(module(x[half]), y[half])
            seconds.append(time.perf_counter() - began_s)
        pipe.send(statistics.fmean(seconds))


@dataclass(frozen=True)
class Sample:
    """Mean seconds of a clock, and CPU seconds of both processes."""

    seconds: float
    cpu_s: float


def measured(machines: Pair, data: Any, clocks: int, **model: Any) -> Sample:
    """One run."""
    values = Engine(None, WORLD, "allreduce", is_resident=True).config(WARM_UP + clocks, TASK)
    values["model"] |= model
    app = TorchModule(build=TASK.build, dataset=data)
    ends, answers = train(machines, RunSpec(secrets.token_hex(4), from_values(values), app))
    first, last = ends[WARM_UP - 1], ends[-1]
    cpu_s = sum(cpu_between(seen, first, last) for seen, _ in answers)
    return Sample((last - first) / clocks, cpu_s / clocks)


def told(label: str, ratios: list[float], limit: float, note: str) -> None:
    """Print a line of the result."""
    middle = statistics.median(ratios)
    verdict = "met" if middle <= limit else "not met"
    spread = f"{min(ratios):.2f}-{max(ratios):.2f}"
    print(f"  {label:52}{middle:8.3f}{spread:>14}   limit {limit}: {verdict}; {note}", flush=True)


def evaluation(rounds: int, clocks: int) -> None:
    """Clocks with evaluations, clocks without, and forward alone, in turn."""
    machines, alone = Pair(serve_machine), Pair(forward_alone)
    data = partial(with_test_items, TASK)
    ratios, costs = [], []
    for _ in range(rounds):
        without = measured(machines, data, clocks)
        with_them = measured(machines, data, clocks, evaluate_every=EVERY)
        alone.tell("forward")
        share_s = statistics.fmean(alone.answers())
        evaluations = len([clock for clock in range(WARM_UP, WARM_UP + clocks) if clock % EVERY == 0])
        cost_s = (with_them.seconds - without.seconds) * clocks / evaluations
        ratios.append(cost_s / share_s)
        costs.append((cost_s, share_s, without.seconds))
    for pair in (machines, alone):
        pair.end()
    cost_s, share_s, clock_s = (statistics.median(column) for column in zip(*costs, strict=True))
    note = f"{cost_s * 1e3:.0f} ms, forward alone {share_s * 1e3:.0f} ms, a clock {clock_s * 1e3:.0f} ms"
    told("an evaluation / its share of items x forward", ratios, EVALUATION_LIMIT, note)


def loader(rounds: int, clocks: int) -> None:
    """Slow items with and without a loader process, and items that are there at once, in turn."""
    machines = Pair(serve_machine, is_leaf=False)
    ratios, bare, clock_s = [], [], []
    for _ in range(rounds):
        ready = measured(machines, partial(slow, TASK, 0.0), clocks, loader_processes=1)
        made = measured(machines, partial(slow, TASK, ITEM_S), clocks, loader_processes=1)
        inside = measured(machines, partial(slow, TASK, ITEM_S), clocks)
        ratios.append(made.seconds / ready.seconds)
        bare.append(inside.seconds / ready.seconds)
        clock_s.append(ready.seconds)
    machines.end()
    note = f"without a loader process {statistics.median(bare):.2f}; a clock {statistics.median(clock_s) * 1e3:.0f} ms"
    told("items of 5 ms, a loader process / items at once", ratios, LOADER_LIMIT, note)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one round, fewer clocks")
    parser.add_argument("--only", choices=("evaluation", "loader"))
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--clocks", type=int)
    arguments = parser.parse_args()
    rounds = arguments.rounds or (1 if arguments.quick else 5)
    clocks = arguments.clocks or (12 if arguments.quick else 36)
    print(
        f"{computer('torch', 'python')}; {TASK.name}, {WORLD} processes, one thread each; {rounds} rounds of "
        f"{clocks} clocks",
        flush=True,
    )
    if arguments.only != "loader":
        evaluation(rounds, clocks)
    if arguments.only != "evaluation":
        loader(rounds, clocks)


if __name__ == "__main__":
    main()
