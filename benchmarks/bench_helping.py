"""Machines that help each other (FlexRR) in the engine, beside BSP, SSP, the ideal and the simulator.

    python benchmarks/bench_helping.py [--quick] [--rounds 3] [--clock 2.0] [--clocks 20] [--patterns power-law:11]

Eight machines with 128 units each. They stand for machines that are slow now and then (thesis 3.4.3): a unit ends
when a speed profile, drawn beforehand and the same for every scheme, has done its work. So two cores are enough for
eight, and what is compared is who waits for whom. The machines are processes that talk by real sockets.
The ideal divides all work perfectly at all times and costs nothing. The simulator runs the same profiles.
`--patterns` are other slowness than that: of figures 3.8 to 3.10 of the thesis `power-law:11`, `disrupted-machine:100`
(for 3.3 clocks at a time, the 20 s of its clocks of 6 s), `uneven:75`.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from measuring import cores, median_ratio, versions
from uneven_rig import UnevenRun

from agileml.events.run import RemedyDecided
from straggler.simulate.patterns import Cluster, DisruptedMachine, Pattern, parse_pattern
from straggler.simulate.profile import ideal_time_s
from straggler.simulate.schemes import Experiment, parse_scheme, run_scheme

MACHINES, UNITS = 8, 128
DELAYS = (0, 100, 200, 400)
TARGETS: Mapping[tuple[str, str], str] = {
    ("slow-worker:0", "flexrr"): "1.01 of bsp, ssp",
    ("slow-worker:100", "flexrr"): "1.08",
    ("slow-worker:200", "flexrr"): "1.08",
    ("slow-worker:200", "bsp-rr"): "1.15",
    ("slow-worker:400", "flexrr"): "1.12",
}
FIGURES = ("power-law:11", "power-law:4", "disrupted-machine:100", "disrupted-machine:400", "uneven:75")
DISRUPTION = 20 / 6  # clocks
SSP = {"consistency": {"kind": "ssp", "slack": 1}}
SCHEMES: Mapping[str, Mapping[str, Any]] = {
    "bsp": {"balance": "static"},
    "ssp:1": {"balance": "static", **SSP},  # fixed shares, as in the thesis; `auto` is a pool
    "bsp-rr": {"helping": True},
    "flexrr": {"helping": True, **SSP},
}


def job(clock_s: float, clocks: int, keys: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "clocks": clocks,
        "slices": 16,
        "units_per_slice": MACHINES * UNITS // 16,
        "stage": 1,
        "machines": {"reliable": 1, "transient": MACHINES - 1, "max": MACHINES},
        "pace": {"unit_s": clock_s / UNITS},
        **keys,
    }


def pattern_of(text: str, clock_s: float) -> Pattern:
    """The pattern of a text, with disruptions as long in clocks as the thesis'."""
    pattern = parse_pattern(text)
    if isinstance(pattern, DisruptedMachine):
        return replace(pattern, period_s=DISRUPTION * clock_s)
    return pattern


def run_s(scheme: str, pattern: Pattern, seed: int, clock_s: float, clocks: int) -> tuple[float, float]:
    """Seconds from the first computation to the last clock, and the share of units that helpers computed."""
    cluster = Cluster(MACHINES, MACHINES, iteration_s=clock_s)
    values = job(clock_s, clocks, SCHEMES[scheme])
    run = UnevenRun(values, pattern.profiles(cluster, seed), pattern.shares(cluster))
    trial = run.train()
    assert run.start.at_s is not None
    began_s = run.start.at_s + time.time() - time.monotonic()
    return trial.done_s[clocks] - began_s, trial.helped / (clocks * MACHINES * UNITS)


@dataclass(frozen=True)
class Row:
    """What a scheme took with a pattern, as medians of the rounds: over the ideal, over BSP, over the ideal by the
    simulator; and the share of units that helpers computed."""

    pattern: str
    scheme: str
    over_ideal: float
    of_bsp: float
    simulated: float
    moved_share: float


def show(text: str, seeds: Sequence[int], clock_s: float, clocks: int) -> list[Row]:
    """A row for each scheme, printed; each round has profiles of its own seed."""
    cluster = Cluster(MACHINES, MACHINES, iteration_s=clock_s)
    experiment = Experiment(cluster, iterations=clocks, units=UNITS)
    over: dict[str, list[float]] = {scheme: [] for scheme in SCHEMES}
    simulated: dict[str, list[float]] = {scheme: [] for scheme in SCHEMES}
    moved: dict[str, list[float]] = {scheme: [] for scheme in SCHEMES}
    pattern = pattern_of(text, clock_s)
    for seed in seeds:
        ideal = ideal_time_s(pattern.profiles(cluster, seed), clocks * MACHINES * clock_s)
        for scheme in SCHEMES:
            took_s, share = run_s(scheme, pattern, seed, clock_s, clocks)
            over[scheme].append(took_s / ideal)
            moved[scheme].append(share)
            simulated[scheme].append(
                run_scheme(parse_scheme(scheme), pattern, experiment, seed)[0].over_ideal
            )
    rows = [
        Row(
            text,
            scheme,
            statistics.median(over[scheme]),
            median_ratio(over[scheme], over["bsp"]),
            statistics.median(simulated[scheme]),
            statistics.median(moved[scheme]),
        )
        for scheme in SCHEMES
    ]
    for row in rows:
        ratio = row.over_ideal / row.simulated
        said = f"{text:22} {row.scheme:8}{row.over_ideal:12.3f}{row.of_bsp:9.3f}{row.simulated:12.3f}{ratio:10.3f}"
        print(f"{said}{row.moved_share:9.1%}  {TARGETS.get((text, row.scheme), '-')}", flush=True)
    return rows


def show_choice(delay: int, clock_s: float, clocks: int) -> None:
    """What `helping: auto` chooses, and what its clocks take before and after, beside static shares."""
    cluster = Cluster(MACHINES, MACHINES, iteration_s=clock_s)
    for name, keys in (("static", SCHEMES["bsp"]), ("auto", {"helping": "auto"})):
        run = UnevenRun(
            job(clock_s, clocks, keys), parse_pattern(f"slow-worker:{delay}").profiles(cluster, 0)
        )
        trial = run.train()
        before_s, after_s = trial.took_s(1, 17) / 16, trial.took_s(20, clocks) / (clocks - 20)
        print(f"{delay:5}% {name:8} clocks 1 to 17: {before_s:.3f} s each, from 20 on {after_s:.3f} s")
        for each in trial.events:
            if isinstance(each.event, RemedyDecided):
                print(
                    f"       clock {each.event.clock}: {each.event.remedy}; {each.event.reason}", flush=True
                )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one round of short clocks, with 200%% only")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clock", type=float, default=2.0, help="seconds of an undisturbed clock")
    parser.add_argument("--clocks", type=int, default=20)
    parser.add_argument(
        "--auto", action="store_true", help="what helping: auto chooses, in at least 30 clocks"
    )
    parser.add_argument("--delays", type=int, nargs="+", default=DELAYS, help="of machines slow now and then")
    parser.add_argument("--patterns", nargs="*", help=f"of slowness instead; without any {' '.join(FIGURES)}")
    parser.add_argument("--seed", type=int, default=0, help="of the first round's profiles")
    parser.add_argument("--json", action="store_true", help="print the rows once more, as the last line")
    arguments = parser.parse_args()
    rounds, clock_s, clocks = arguments.rounds, arguments.clock, arguments.clocks
    delays = arguments.delays
    if arguments.quick:
        rounds, clock_s, clocks, delays = 1, 0.5, 8, (200,)
    if arguments.auto:
        clocks = max(30, clocks)
    print(f"{versions('python')}, {cores()}")
    print(f"{MACHINES} machines, {UNITS} units each, {clocks} clocks of {clock_s:g} s, {rounds} rounds")
    if arguments.auto:
        for delay in delays:
            show_choice(delay, clock_s, clocks)
        return
    slow = [f"slow-worker:{delay}" for delay in delays]
    texts = slow if arguments.patterns is None else arguments.patterns or FIGURES
    print(
        "pattern                scheme    over ideal   of bsp   simulated     ratio   moved  target",
        flush=True,
    )
    seeds = range(arguments.seed, arguments.seed + rounds)
    rows = [row for text in texts for row in show(text, seeds, clock_s, clocks)]
    if arguments.json:
        print(json.dumps([asdict(row) for row in rows]))


if __name__ == "__main__":
    sys.exit(main())
