"""Run schedules of the model: `python -m tests.model.run --seed 17 --mode ssp`, or `--seeds 0:300`."""

from __future__ import annotations

import argparse
import os
import signal
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from agileml.events.run import ClockDone, MachineQuarantined, MembershipChanged, ShortNoticeJudged
from agileml.events.terms import Cause
from tests.model.schedule import (
    CLIPPED,
    FLUSH,
    HELD,
    HELPED,
    LAMB,
    PIPELINES,
    PLANNED,
    RECUT,
    REPLICATED,
    RESIDENT,
    SCALED,
    SHARDED,
    Schedule,
    make_orderly,
    make_schedule,
    make_sick,
)
from tests.model.simulator import Simulation
from tests.model.toy import ELASTIC, POOLED

SCHEDULES = int(os.environ.get("SCHEDULES", "100"))  # of a mode, in the slow tests
LONGEST_S = 60  # of CPU time: a loop in no time at all
PLAIN = ("bsp", "dense", "sum", "ssp", "asp", "allreduce", "overlap", "batches")
MODES = (
    *PLAIN,
    *PIPELINES,
    *ELASTIC,
    *POOLED,
    *(mode + PLANNED for mode in ("bsp", "dense", "sum", "allreduce", "overlap", "batches")),
    *(mode + CLIPPED for mode in ("bsp", "dense", "ssp", "allreduce", FLUSH)),
    *(mode + SCALED for mode in ("bsp", "dense", "ssp", "allreduce")),
    *(mode + HELD for mode in ("bsp", "dense", "ssp", "allreduce")),
    *(mode + LAMB for mode in ("dense", "overlap", "allreduce")),
    *(mode + HELPED for mode in ("bsp", "dense", "sum", "ssp")),
    *(mode + HELPED + PLANNED for mode in ("bsp", "dense", "sum")),
    *(mode + REPLICATED for mode in (FLUSH, "stash", "none", "vertical_sync")),
    *(mode + RECUT for mode in (FLUSH, "stash")),
    "allreduce" + RESIDENT,
    "allreduce" + SHARDED,
)


@dataclass
class Tally:
    """What happened in many runs. `failed` has (seed, sentence) of those in which an invariant did not hold."""

    mode: str
    runs: int = 0
    messages: int = 0
    simulated_s: float = 0.0
    seconds: float = 0.0  # of CPU
    fired: Counter[str] = field(default_factory=Counter)
    seen: Counter[str] = field(default_factory=Counter)
    failed: list[tuple[int, str]] = field(default_factory=list)

    def add(self, simulation: Simulation) -> None:
        self.messages += simulation.messages
        self.simulated_s += simulation.now_s
        self.fired += simulation.fired
        self.seen += simulation.help_seen()
        self.seen["lost"] += simulation.is_lost
        for event in simulation.events:
            match event:
                case MembershipChanged():
                    self.seen[f"stage {event.stage}"] += 1
                    self.seen["rollbacks"] += event.rolled_back
                    self.seen["recut"] += simulation.schedule.is_recut and event.trigger.cause is Cause.STAGE
                    self.seen["clocks redone"] += event.redone
                case MachineQuarantined():
                    self.seen["quarantined"] += 1
                case ShortNoticeJudged():
                    self.seen[f"short notice: {event.way}"] += 1

    def __str__(self) -> str:
        fired = ", ".join(f"{kind} {count}" for kind, count in sorted(self.fired.items()))
        seen = ", ".join(f"{kind} {count}" for kind, count in sorted(self.seen.items()))
        return (
            f"{self.mode}: {self.runs} schedules, {self.runs / self.seconds:.1f} a CPU second, "
            f"{self.messages} messages, {self.simulated_s:.0f} s simulated, {len(self.failed)} failed\n"
            f"  fired: {fired}\n  seen: {seen}"
        )


def run_one(
    seed: int, mode: str, faults: int | None = None, *, orderly: bool = False, sick: bool = False
) -> Simulation:
    """Run one schedule to its end; raises when an invariant does not hold."""
    schedule: Schedule
    if sick:
        schedule = make_sick(seed, mode)
    else:
        schedule = make_orderly(seed, mode) if orderly else make_schedule(seed, mode, faults)
    return Simulation(schedule).run()


def _too_long(signum: int, frame: object) -> None:
    raise TimeoutError(f"a schedule computed for more than {LONGEST_S} s")


@contextmanager
def time_limit() -> Iterator[None]:
    """End a schedule that computes for too long with a TimeoutError: it loops in no time at all."""
    signal.signal(signal.SIGPROF, _too_long)
    signal.setitimer(signal.ITIMER_PROF, LONGEST_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def run_many(
    seeds: Iterable[int],
    mode: str,
    faults: int | None = None,
    *,
    orderly: bool = False,
    sick: bool = False,
    stop_at_first: bool = False,
) -> Tally:
    """Run the schedules of many seeds, until one fails if told so."""
    tally = Tally(mode)
    started_s = time.process_time()
    for seed in seeds:
        tally.runs += 1
        try:
            with time_limit():
                tally.add(run_one(seed, mode, faults, orderly=orderly, sick=sick))
        except Exception as error:
            tally.failed.append((seed, f"{type(error).__name__}: {str(error)[:300]}"))
            if stop_at_first:
                break
    tally.seconds = time.process_time() - started_s
    return tally


def seed_range(text: str) -> range:
    """The seeds of `first:stop`, or the first so many of a single number."""
    try:
        return range(*(int(part) for part in text.split(":", 1)))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"found {text!r}, expected first:stop or a number of seeds"
        ) from None


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int)
    parser.add_argument("--seeds", type=seed_range, default=range(100), help="first:stop")
    parser.add_argument("--mode", choices=(*MODES, "all"), default="all")
    parser.add_argument("--faults", type=int, help="so many faults in every schedule, none of them gentle")
    parser.add_argument(
        "--orderly", action="store_true", help="joins and long notices only, and nobody repeats anything"
    )
    parser.add_argument("--sick", action="store_true", help="work fails on some machines, too")
    parser.add_argument("--first", action="store_true", help="stop at the first seed that fails")
    arguments = parser.parse_args()
    modes = MODES if arguments.mode == "all" else (arguments.mode,)
    if arguments.seed is not None:
        for mode in modes:
            try:
                simulation = run_one(
                    arguments.seed, mode, arguments.faults, orderly=arguments.orderly, sick=arguments.sick
                )
            except Exception:
                traceback.print_exc()
                raise SystemExit(f"{mode} seed {arguments.seed} failed") from None
            for event in simulation.events:
                if not isinstance(event, ClockDone):
                    print(f"{mode} {event}")
            print(f"{mode} seed {arguments.seed}: {simulation.messages} messages, {simulation.now_s:.1f} s")
        return
    failed = []
    for mode in modes:
        tally = run_many(
            arguments.seeds,
            mode,
            arguments.faults,
            orderly=arguments.orderly,
            sick=arguments.sick,
            stop_at_first=arguments.first,
        )
        print(tally, flush=True)
        for seed, problem in tally.failed:
            print(f"  seed {seed}: {problem}", flush=True)
        failed += [(mode, seed) for seed, _ in tally.failed]
    if failed:
        raise SystemExit(f"failed: {failed}")


if __name__ == "__main__":
    main()
