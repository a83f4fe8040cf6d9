"""The numerical effect: softmax regression on the digits, replayed exactly as each scheme's run read and pushed.

The simulator logs for every contribution which units it holds, when it read the parameters and when it arrived. Here
these gradients are really computed, on the parameters of that moment, in numpy: BSP, SSP and FlexRR read whole
versions and apply whole clocks, ASP and ElasticBSP apply on arrival. Iterations and seconds to 90% test accuracy,
for good (it holds for five iterations).

    python benchmarks/bench_straggler_training.py [--quick]
"""

from __future__ import annotations

import argparse
import json
from bisect import bisect_right
from dataclasses import dataclass

import numpy as np
from sklearn.datasets import load_digits
from threadpoolctl import threadpool_limits

from straggler.simulate.outcome import Counted, Outcome
from straggler.simulate.patterns import Cluster, parse_pattern
from straggler.simulate.schemes import Experiment, SchemeKind, parse_scheme, run_scheme

GOAL, HOLD = 0.90, 5  # reached when it holds for so many iterations
WORKERS = 16


@dataclass
class Digits:
    """1,437 training and 360 test images, shuffled with a fixed seed."""

    def __post_init__(self) -> None:
        data = load_digits()
        order = np.random.default_rng(0).permutation(len(data.target))
        x = np.column_stack([data.data / 16, np.ones(len(data.target))])[order]
        y = data.target[order]
        self.train_x, self.test_x = x[:1437], x[1437:]
        self.train_y, self.test_y = np.eye(10)[y[:1437]], y[1437:]

    def gradient(self, weights: np.ndarray, items: np.ndarray) -> np.ndarray:
        """Sum over the items, of the mean loss over all: weighted as equation 8 says, whoever computed it."""
        x, y = self.train_x[items], self.train_y[items]
        scores = x @ weights
        scores -= scores.max(axis=1, keepdims=True)
        shares = np.exp(scores)
        shares /= shares.sum(axis=1, keepdims=True)
        return x.T @ (shares - y) / len(self.train_x)

    def accuracy(self, weights: np.ndarray) -> float:
        return float(((self.test_x @ weights).argmax(axis=1) == self.test_y).mean())


def replay_clocks(digits: Digits, outcome: Outcome, rate: float) -> tuple[float, float] | None:
    """(iterations, seconds) to the goal where whole clocks are applied and whole versions read."""
    by_clock: dict[int, list[Counted]] = {}
    for push in outcome.log:
        by_clock.setdefault(push.bundle.clock, []).append(push)
    versions = [np.zeros((65, 10))]
    held: list[tuple[float, float]] = []
    for clock, completed_ns in enumerate(outcome.completed_ns):
        sizes: dict[int, int] = {}
        for push in by_clock[clock]:
            sizes[push.bundle.owner] = max(sizes.get(push.bundle.owner, 0), push.bundle.stop)
        starts, reached = {}, 0
        for owner in sorted(sizes):
            starts[owner], reached = reached, reached + sizes[owner]
        step = np.zeros((65, 10))
        for push in by_clock[clock]:
            read = min(bisect_right(outcome.completed_ns, push.read_ns), clock)
            first = starts[push.bundle.owner]
            items = np.arange(first + push.bundle.start, first + push.bundle.stop)
            step += digits.gradient(versions[read], items[items < len(digits.train_x)])
        versions.append(versions[-1] - rate * step)
        good = digits.accuracy(versions[-1]) >= GOAL
        held = [*held, (clock + 1.0, completed_ns / 1e9)] if good else []
        if len(held) == HOLD:
            return held[0]
    return None


def replay_arrivals(digits: Digits, outcome: Outcome, rate: float, units: int) -> tuple[float, float] | None:
    """The same where every contribution is applied when it arrives; items come from one sequence."""
    reads = sorted(outcome.log, key=lambda push: (push.read_ns, push.worker))
    place = {push.bundle: position for position, push in enumerate(reads)}
    arrived: list[int] = []
    history = [np.zeros((65, 10))]
    held: list[tuple[float, float]] = []
    for done, push in enumerate(outcome.log, 1):
        first = place[push.bundle] * units
        items = np.arange(first, first + units) % len(digits.train_x)
        seen = history[bisect_right(arrived, push.read_ns)]
        history.append(history[-1] - rate * digits.gradient(seen, items))
        arrived.append(push.arrived_ns)
        if done % WORKERS == 0:
            good = digits.accuracy(history[-1]) >= GOAL
            held = [*held, (done / WORKERS, push.arrived_ns / 1e9)] if good else []
            if len(held) == HOLD:
                return held[0]
    return None


def to_goal(
    digits: Digits, text: str, pattern: str, experiment: Experiment, seed: int, rate: float
) -> tuple[float, float] | None:
    """(iterations, seconds) to the goal of one scheme; None where it is not reached."""
    scheme = parse_scheme(text)
    _, outcome = run_scheme(scheme, parse_pattern(pattern), experiment, seed)
    if scheme.kind in (SchemeKind.ASP, SchemeKind.ELASTIC):
        return replay_arrivals(digits, outcome, rate, experiment.units)
    return replay_clocks(digits, outcome, rate)


def table(
    digits: Digits, schemes: list[str], pattern: str, experiment: Experiment, seeds: range, rate: float
) -> list[dict[str, object]]:
    """Print the schemes on one pattern, and give their rows; means of the seeds that reached the goal."""
    print(f"\n{pattern}, learning rate {rate:g}")
    print(f"{'scheme':22}{'iterations':>12}{'s/iteration':>13}{'seconds':>10}{'of BSP':>9}{'reached':>9}")
    base, rows = None, []
    for text in schemes:
        found = [to_goal(digits, text, pattern, experiment, seed, rate) for seed in seeds]
        reached = [item for item in found if item is not None]
        if not reached:
            print(f"{text:22}{'-':>12}{'-':>13}{'-':>10}{'-':>9}{0:>6}/{len(found)}", flush=True)
            continue
        iterations, seconds = (float(mean) for mean in np.mean(reached, axis=0))
        base = base or seconds
        print(
            f"{text:22}{iterations:>12.1f}{seconds / iterations:>13.3f}{seconds:>10.1f}"
            f"{seconds / base:>9.2f}{len(reached):>6}/{len(found)}",
            flush=True,
        )
        row = {"scheme": text, "pattern": pattern, "rate": rate, "iterations": iterations, "seconds": seconds}
        rows.append(row | {"reached": len(reached) / len(found)})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--schemes", help="by commas")
    parser.add_argument("--patterns", help="by spaces")
    parser.add_argument(
        "--rates", help="learning rates, by commas: 0.06 is small, 4.0 near the edge of stability"
    )
    parser.add_argument("--seeds", type=int, help="how many")
    parser.add_argument("--seed", type=int, default=0, help="the first")
    parser.add_argument("--json", action="store_true", help="the rows as JSON as well, in the last line")
    arguments = parser.parse_args()
    quick = arguments.quick
    threadpool_limits(limits=1)  # the matrices are small
    digits = Digits()
    units = -(-len(digits.train_x) // WORKERS)
    experiment = Experiment(Cluster(WORKERS, 4), iterations=60 if quick else 160, units=units)
    schemes = ["bsp", "ssp:1", "flexrr", "asp", "elasticbsp:15"]
    patterns = ["slow-worker:200"]
    if not quick:
        schemes += ["bsp-rr", "lb-bsp:ema", "lb-bsp:narx", "elasticbsp:5", "elasticbsp:60,wait"]
        patterns += ["slow-worker:400", "heterogeneous:0.3333,100"]
    schemes = arguments.schemes.split(",") if arguments.schemes else schemes
    patterns = arguments.patterns.split() if arguments.patterns else patterns
    rates = [float(rate) for rate in (arguments.rates or ("0.35" if quick else "0.06,4.0")).split(",")]
    seeds = range(arguments.seed, arguments.seed + (arguments.seeds or (1 if quick else 3)))
    print(f"softmax regression, digits, {WORKERS} workers on 4 machines, to {GOAL:.0%} test accuracy")
    rows = []
    for rate in rates:
        for pattern in patterns:
            rows += table(digits, schemes, pattern, experiment, seeds, rate)
    if arguments.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
