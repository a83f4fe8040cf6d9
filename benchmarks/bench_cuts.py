"""What cuts cost a step where parameters and optimizer state stay on the machines (`optimizer.kind: torch`).

Two processes on this machine, one thread of computing each, an all-reduce: `mlp` (25.0 M parameters, SGD with momentum,
200 MB to copy) and `gpt` (a transformer of 10.5 M, AdamW, 126 MB), as in bench_ddp.py. Three runs in turn, for several
rounds: without cuts; with the cuts of the defaults; with one every few clocks, more than anybody asks for, which shows
what a single one costs. With two reliable machines each copies half and sends it to the other; with one reliable and
one transient machine (`--stage 2`) the transient one copies all.

A time is the mean over all clocks behind the first, because a cut makes some clocks longer; a ratio is the median of
the rounds' ratios. CPU is that of both processes together. Runs of some 20 s differ by a tenth and more, so the cost
of a cut is also taken within the runs that have one every few clocks: how much longer the clocks are in which it
travels than those around them. The limit, for the defaults: 1.03 of the time without cuts.
`python benchmarks/bench_cuts.py [--quick] [--models mlp,gpt] [--stage 1] [--rounds 5] [--clocks 60]`.
"""

import argparse
import json
import secrets
import statistics
from dataclasses import dataclass
from typing import Any

import child_machines  # first: it sets the environment that the processes begin with
import numpy as np
from child_machines import WARM_UP, WORLD, Engine, Pair, application, cpu_between, serve_machine, train
from ddp_peer import Task
from measuring import computer

from agileml.config.job import from_values
from agileml.events.run import CutCommitted
from agileml.process.spec import RunSpec

LIMIT = 1.03
OFTEN = 8  # clocks
TOUCHED = 3  # clocks behind a cut that it may make longer
CUTS: dict[str, dict[str, Any]] = {
    "no cuts": child_machines.NO_CUTS,
    "cuts, defaults": {},
    f"a cut every {OFTEN} clocks": {"every_s": 1e6, "max_clocks": OFTEN},
}


@dataclass(frozen=True)
class Sample:
    """Mean wall seconds of a clock, CPU seconds of both processes, the committed cuts, their seconds on the way, and by
    how much each made the clocks behind it longer."""

    seconds: float
    cpu_s: float
    cuts: int
    travel_s: float
    longer_s: tuple[float, ...]


def longer_by(ends: list[float], cuts: list[int]) -> tuple[float, ...]:
    """By how much the clocks behind each of the cuts are longer, together, than as many of those around them.

    ends: when each clock was applied. cuts: the number of clocks that each cut holds.
    """
    seconds = np.diff(ends)  # seconds[c - 1]: of clock c
    touched = {c + k for c in cuts for k in range(TOUCHED)}
    found = []
    for cut in cuts:
        around = range(max(WARM_UP, cut - OFTEN), min(len(ends), cut + OFTEN))
        others = [seconds[c - 1] for c in around if c not in touched]
        if others and cut + TOUCHED <= len(ends):
            usual = statistics.median(others)
            found.append(float(sum(seconds[cut - 1 : cut - 1 + TOUCHED]) - TOUCHED * usual))
    return tuple(found)


def measured(machines: Pair, task: Task, stage: int, clocks: int, cuts: dict[str, Any]) -> Sample:
    """One run."""
    engine = Engine(None, 4 * WORLD, "allreduce", is_resident=True)
    values = engine.config(WARM_UP + clocks, task)
    if stage == 2:
        values |= {"machines": {"reliable": 1, "transient": 1, "max": WORLD}, "stage": 2}
    spec = RunSpec(secrets.token_hex(4), from_values(values | {"cuts": cuts}), application(task))
    seen: list[CutCommitted] = []
    ends, answers = train(
        machines, spec, lambda event: isinstance(event, CutCommitted) and seen.append(event)
    )
    first, last = ends[WARM_UP - 1], ends[-1]
    cpu_s = sum(cpu_between(seen_s, first, last) for seen_s, _ in answers)
    seen = [event for event in seen if WARM_UP < event.clock < len(ends)]
    return Sample(
        (last - first) / clocks,
        cpu_s / clocks,
        len(seen),
        statistics.median([event.travel_s for event in seen] or [0.0]),
        longer_by(ends, [event.clock for event in seen]),
    )


def report(task: Task, found: dict[str, list[Sample]], clocks: int) -> dict[str, float]:
    """Print the table of a model; returns the ratios."""
    print(
        f"\n{task.name}\n  {'':26}{'ms':>9}{'/ none':>9}{'rounds':>15}{'CPU / none':>12}{'cuts':>7}{'travel s':>10}"
    )
    ratios = {}
    without = found["no cuts"]
    for label, samples in found.items():
        of = [a.seconds / b.seconds for a, b in zip(samples, without, strict=True)]
        cpu = statistics.median(a.cpu_s / b.cpu_s for a, b in zip(samples, without, strict=True))
        ratios[label] = statistics.median(of)
        spread = f"{min(of):.3f}-{max(of):.3f}"
        print(
            f"  {label:26}{statistics.median(s.seconds for s in samples) * 1e3:9.1f}{ratios[label]:9.3f}{spread:>15}"
            f"{cpu:12.3f}{statistics.median(s.cuts for s in samples):7.0f}"
            f"{statistics.median(s.travel_s for s in samples):10.2f}",
            flush=True,
        )
    longer_s = [seconds for sample in found[list(CUTS)[-1]] for seconds in sample.longer_s]
    a_clock = statistics.median(sample.cuts / clocks for sample in found["cuts, defaults"])
    share = statistics.fmean(longer_s) * a_clock / statistics.median(s.seconds for s in without)
    mean, middle = statistics.fmean(longer_s) * 1e3, statistics.median(longer_s) * 1e3
    print(
        f"  a cut makes the {TOUCHED} clocks behind it longer by {mean:.0f} ms (median {middle:.0f}, "
        f"{len(longer_s)} cuts): with the defaults' {a_clock:.3f} cuts a clock {1 + share:.3f}"
    )
    defaults = ratios["cuts, defaults"]
    print(f"  limit {LIMIT}: {'met' if defaults <= LIMIT else 'not met'} by the runs ({defaults:.3f})")
    return ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one round, the transformer, few clocks")
    parser.add_argument("--models", default=None)
    parser.add_argument("--stage", type=int, choices=(1, 2), default=1)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--clocks", type=int)
    parser.add_argument("--json", action="store_true", help="the ratios as JSON as well")
    arguments = parser.parse_args()
    rounds = arguments.rounds or (1 if arguments.quick else 5)
    clocks = arguments.clocks or (24 if arguments.quick else 60)
    models = arguments.models or ("gpt" if arguments.quick else "mlp,gpt")
    print(
        f"{computer('torch', 'python')}; {WORLD} processes, one thread each, stage {arguments.stage}; "
        f"{rounds} rounds of {clocks} clocks",
        flush=True,
    )
    figures = {}
    for name in models.split(","):
        found: dict[str, list[Sample]] = {label: [] for label in CUTS}
        machines = Pair(serve_machine)
        for cuts in CUTS.values():  # once without counting: the memory of cuts is there from then on
            measured(machines, child_machines.TASKS[name], arguments.stage, OFTEN, cuts)
        for number in range(rounds):
            for label, cuts in CUTS.items():
                found[label].append(
                    measured(machines, child_machines.TASKS[name], arguments.stage, clocks, cuts)
                )
            print(f"  round {number + 1} of {rounds} is done", flush=True)
        machines.end()
        figures[name] = report(child_machines.TASKS[name], found, clocks)
    if arguments.json:
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
