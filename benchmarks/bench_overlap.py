"""Pulling while computing (`overlap`), on two hosts with a link between them and on one machine over ipc.

A clock's parameters are pulled while the clock before is still in its backward, and forward begins with the first
layers. What it can save lies between nothing (one of computing and transfer rules) and forward. `--part`:
links    2 hosts, 25 M parameters (100 MB), a batch whose step takes as long as its transfer: against the engine
         without overlap, and DistributedDataParallel over gloo
sides    5 M parameters with a transfer of a tenth and of ten times the step: overlap must cost nothing there
machine  one machine over ipc: the same network with batch 64, and a small convolutional one
On the links layers pause instead of computing (`paused.py`), because two hosts on this machine share its cores;
the peer trains the same layers. Variants are measured in turn for several rounds, a ratio is the median of theirs.
`python benchmarks/bench_overlap.py [--quick] [--part links,sides,machine] [--rounds 5]`. Links need root.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import ddp_peer
import link_peer
from child_machines import (
    TASKS,
    WARM_UP,
    WORLD,
    Engine,
    Pair,
    Sample,
    application,
    run_ddp,
    run_engine,
    serve_machine,
)
from ddp_peer import Options, Task
from hosts import HostsError, Link
from link_rig import RELIABLE, Rig, machine_line
from measuring import free_port, median_ratio
from paused import EQUAL, VGG

PORT = 29513
BEFORE = "engine, overlap: false"


@dataclass(frozen=True)
class Overlapping(Engine):
    """The engine with a value of `overlap`; `partitions` 0: its own choice."""

    overlap: Any = False

    @property
    def warm_up(self) -> int:
        """Clocks that are not counted; with auto and batches those in which it measures."""
        return {"auto": 18, "batches": 11}.get(self.overlap, WARM_UP)

    def __str__(self) -> str:
        shown = {True: "true", False: "false"}.get(self.overlap, self.overlap)
        return f"overlap: {shown}" + (f", {self.partitions} partitions" if self.partitions else "")

    def config(self, clocks: int, task: Task) -> dict[str, Any]:
        values = super().config(clocks, task)
        if not self.partitions:
            del values["partitions"]
        return values | {"overlap": self.overlap}


def compare(found: Mapping[str, list[float]], to: list[str]) -> None:
    """Print the medians, and the ratios to some of the variants."""
    print(f"  {'':50}{'ms':>9}" + "".join(f"{'/ ' + label.split(', ')[-1]:>32}" for label in to))
    for label, seconds in found.items():
        shown = "".join(f"{median_ratio(seconds, found[other]):32.3f}" for other in to)
        print(f"  {label:50}{statistics.median(seconds) * 1e3:9.1f}{shown}", flush=True)


def in_turn(variants: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {label: [] for label in variants}
    for turn in range(rounds):
        for label, measure in variants.items():
            found[label].append(measure())
        print(
            f"  round {turn + 1} of {rounds}: " + ", ".join(f"{1e3 * s[-1]:.0f}" for s in found.values()),
            flush=True,
        )
    return found


class Hosts2:
    """Two hosts, on which the peer and the engine take steps."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        rig.call(WORLD, link_peer.join, rig.hosts.address(0), PORT, WORLD)

    def peer(self, task: Task, options: Options | None, steps: int) -> float:
        answers = self.rig.call(WORLD, link_peer.steps, task, options, steps)
        return statistics.median(s for seconds in answers for s in seconds[WARM_UP:])

    def engine(self, task: Task, how: Overlapping, steps: int) -> float:
        values = how.config(steps - WARM_UP + how.warm_up, task)
        ran = self.rig.run([RELIABLE] * WORLD, values, application(task))
        return statistics.median(ran.seconds(how.warm_up))


def variants_of(engines: list[Overlapping]) -> dict[str, Overlapping]:
    return {f"engine, {engine}": engine for engine in engines}


def links(arguments: argparse.Namespace, ratios: list[float], elements: int, *, with_peer: bool) -> None:
    """Steps on two hosts, with a transfer of so many times the step."""
    rate = Link(arguments.rate, arguments.delay_ms)
    steps = WARM_UP + (4 if arguments.quick else 8)
    link_s = 4 * elements / rate.payload_bytes_per_s
    with Rig(WORLD, rate) as rig:
        hosts = Hosts2(rig)
        for kind in arguments.model.split(","):
            for ratio in ratios:
                task = paused_task(kind, elements, link_s / ratio)
                variants: dict[str, Callable[[], float]] = {}
                if with_peer:
                    for options in (Options(), *map(Options, (25,) if arguments.quick else (5, 25, 100))):
                        variants[f"DDP {options}"] = partial(hosts.peer, task, options, steps)
                for label, engine in variants_of(chosen(arguments)).items():
                    variants[label] = partial(hosts.engine, task, engine, steps)
                print(
                    f"\n{task.name}, {WORLD} hosts, {rate}: transfer {link_s:.2f} s, computing "
                    f"{link_s / ratio:.2f} s",
                    flush=True,
                )
                found = in_turn(variants, arguments.rounds)
                tuned = [label for label in found if "bucket_cap" in label]
                best = min(tuned, key=lambda label: statistics.median(found[label])) if tuned else None
                compare(found, [BEFORE, *([best] if best else [])])
        rig.call(WORLD, link_peer.leave)


def paused_task(kind: str, elements: int, step_s: float) -> Task:
    shares = {"mlp": EQUAL, "vgg": VGG}[kind]
    arguments = {"shares": shares, "elements": elements, "step_s": step_s}
    return Task(f"{kind}-like, {elements / 1e6:g} M parameters", "paused", arguments, (10,), 10, 2, 64)


def chosen(arguments: argparse.Namespace) -> list[Overlapping]:
    counts = [int(n) for n in arguments.partitions.split(",")]
    before = [Overlapping(None, 0, overlap=False)]
    values = arguments.values.split(",")
    known: dict[str, Any] = {"true": True, "false": False}
    return before + [Overlapping(None, n, overlap=known.get(v, v)) for v in values for n in counts]


def machine(arguments: argparse.Namespace) -> None:
    """Two processes of one machine, over ipc."""
    for name in ("mlp", "cnn"):
        one_machine(arguments, TASKS[name], {"mlp": 12, "cnn": 150}[name] // (2 if arguments.quick else 1))


def one_machine(arguments: argparse.Namespace, task: Task, steps: int) -> None:
    peers, machines = Pair(ddp_peer.serve, WORLD, free_port()), Pair(serve_machine)

    cpu: dict[str, list[float]] = {}

    def told(label: str, sample: Sample) -> float:
        cpu.setdefault(label, []).append(sample.cpu_s)
        return sample.seconds

    def peer(label: str, options: Options) -> float:
        return told(label, run_ddp(peers, task, options, WARM_UP + steps))

    def engine(label: str, how: Overlapping) -> float:
        return told(label, run_engine(machines, task, how, how.warm_up + steps, how.warm_up))

    variants: dict[str, Callable[[], float]] = {
        (label := f"DDP {options}"): partial(peer, label, options) for options in (Options(), Options(25))
    }
    variants |= {label: partial(engine, label, how) for label, how in variants_of(chosen(arguments)).items()}
    print(f"\n{task.name}, batch {task.batch} each, {WORLD} processes over ipc", flush=True)
    compare(in_turn(variants, arguments.rounds), [BEFORE, "DDP defaults"])
    print("  CPU time of both processes, which says what the work is where other programs share the cores")
    compare(cpu, [BEFORE, "DDP defaults"])
    peers.end()
    machines.end()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one round, few steps and variants")
    parser.add_argument("--part", default="links,sides,machine")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--model", default="mlp,vgg", help="of the parts links and sides")
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--delay-ms", type=float, default=0.0)
    parser.add_argument("--partitions", default="0", help="of the engine, such as 8,16; 0: its own choice")
    parser.add_argument(
        "--values",
        default="true,batches",
        help="of the key `overlap` beside false, such as true,auto",
    )
    parser.add_argument("--no-peer", action="store_true", help="the engine alone")
    arguments = parser.parse_args()
    arguments.rounds = arguments.rounds or (1 if arguments.quick else 5)
    print(f"{machine_line()}; rounds: {arguments.rounds}", flush=True)
    parts = arguments.part.split(",")
    try:
        if "links" in parts:
            links(arguments, [1.0], 25_000_000, with_peer=not arguments.no_peer)
        if "sides" in parts:
            links(arguments, [0.1, 10.0], 5_000_000, with_peer=False)
    except HostsError as error:
        print(f"skipped the links: {error}")
    if "machine" in parts:
        machine(arguments)


if __name__ == "__main__":
    main()
