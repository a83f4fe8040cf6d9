"""Unequal machines: static shares, LB-BSP and ASP of the engine, and DistributedDataParallel, beside the ideal.

    python benchmarks/bench_uneven.py [--quick] [--rounds 3]

Machines stand for slower ones by pauses to absolute deadlines (`pace`), so that two cores are enough for many: what
is compared are shares of work and waiting, not arithmetic. They are processes that talk by real sockets.
DDP's are processes over gloo that pause in the same way. The ideal is the best split of whole units at the true speeds,
with no time for anything else. Schemes run in turn, for several rounds; ratios are medians of the rounds' ratios.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Sequence
from multiprocessing import get_context
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from measuring import cores, versions
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from uneven_rig import Trial, UnevenRun, changes_of, struck

from agileml.core.compute.pace import Pace
from agileml.events.terms import Fault
from straggler.lbbsp.sizes import cpu_batch_sizes

UNITS = 128
SETTLED = 1.1  # of the clock that a phase ends with
SETTLES = 5  # clocks after a change, at most
Speeds = Sequence[float]


def job(speeds: Speeds, unit_s: float, clocks: int, **more: Any) -> dict[str, Any]:
    """A job on machines of these speeds: m0 is reliable and owns the parameters, the others are transient."""
    return {
        "clocks": clocks,
        "slices": UNITS // 8,
        "units_per_slice": 8,
        "stage": 1,
        "machines": {"reliable": 1, "transient": len(speeds) - 1, "max": 8},
        "pace": {"unit_s": unit_s, "speeds": {f"m{i}": float(s) for i, s in enumerate(speeds) if s != 1}},
        **more,
    }


def ideal_s(speeds: Speeds, unit_s: float) -> float:
    """A clock with the best split of whole units, and nothing but computing."""
    units = cpu_batch_sizes(np.array(speeds), UNITS)
    return float(max(units / np.array(speeds))) * unit_s


def even_s(speeds: Speeds, unit_s: float) -> float:
    """A clock with equal shares, and nothing but computing."""
    return UNITS / len(speeds) / min(speeds) * unit_s


def settled_s(trial: Trial, before: int, clock: int) -> float:
    """A clock once it has settled: the mean from `before` on."""
    return trial.took_s(before, clock) / (clock - before)


# -- one change after another -------------------------------------------------------------------------------

CHANGES = (12, 24, 36)  # the speed of m3, a kill, a join
END = 48


def changing(unit_s: float, balance: str) -> tuple[Trial, list[Speeds]]:
    """A run with all changes, and the speeds of its four phases."""
    at_speed, at_kill, at_join = CHANGES
    plan = [
        {"at_clock": at_speed, "speed": 0.5, "machine": "m3"},
        {"at_clock": at_kill, "kill": 1},
        {"at_clock": at_join, "join": 1},
    ]
    trial = UnevenRun(job((1 / 3, 2 / 3, 1, 1), unit_s, END, plan=plan, balance=balance)).train()
    (killed,) = struck(trial, Fault.KILL)
    speeds = {"m0": 1 / 3, "m1": 2 / 3, "m2": 1.0, "m3": 1.0}
    phases: list[Speeds] = [list(speeds.values())]
    speeds["m3"] = 0.5
    phases.append(list(speeds.values()))
    del speeds[killed]
    phases.append(list(speeds.values()))
    phases.append([*speeds.values(), 1.0])
    assert not any(change.redone for change in changes_of(trial))
    return trial, phases


def settles_after(trial: Trial, begin: int, end: int) -> int:
    """Clocks of a phase before those that are as short as its last ones."""
    last_s = settled_s(trial, end - 4, end)
    for clock in range(end - 1, begin, -1):
        if trial.took_s(clock - 1, clock) > SETTLED * last_s:
            return clock - begin
    return 0


def show_changes(unit_s: float, rounds: int) -> None:
    at_speed, at_kill, at_join = CHANGES
    print(
        f"\n4 machines at 1/3, 2/3, 1, 1; {END} clocks of {UNITS} units of {unit_s * 1e3:g} ms; after {at_speed} clocks"
    )
    print(f"the last one has speed 1/2, after {at_kill} one is killed, after {at_join} one of speed 1 joins")
    ratios: list[float] = []
    ideals: list[float] = []
    for round_ in range(rounds):
        even, phases = changing(unit_s, "static")
        ours, same = changing(unit_s, "lbbsp")
        assert phases == same, "the plan draws the same machine"
        begins, ends = (1, *CHANGES), (*CHANGES, END)
        spans = list(zip(("start", "slower", "killed", "joined"), begins, ends, phases, strict=True))
        ideal = sum((end - begin) * ideal_s(speeds, unit_s) for _, begin, end, speeds in spans)
        ratios.append(ours.took_s(1, END) / even.took_s(1, END))
        ideals.append(ideal / even.took_s(1, END))
        if round_ == rounds - 1:
            show_phases(even, ours, spans, unit_s)
    ratio, ideal = statistics.median(ratios), statistics.median(ideals)
    print(f"all {END - 1} clocks: {ratio:.3f} of static (ideal {ideal:.3f}, target .55)")


def show_phases(even: Trial, ours: Trial, spans: list[tuple[str, int, int, Speeds]], unit_s: float) -> None:
    print("phase        static    lbbsp    ideal  of the gain  settled after  waiting")
    for name, begin, end, speeds in spans:
        late = min(begin + SETTLES + 1, end - 2)
        a, b, c = settled_s(even, late, end), settled_s(ours, late, end), ideal_s(speeds, unit_s)
        gain, settled, waits = (a - b) / (a - c), settles_after(ours, begin, end), ours.waiting(late, end)
        print(f"{name:10}{a:9.4f}{b:9.4f}{c:9.4f}{gain:13.3f}{settled:15}{waits:9.1%}", flush=True)


# -- steady speeds ------------------------------------------------------------------------------------------


def asp_s(trial: Trial, speeds: Speeds, unit_s: float, clocks: int) -> float:
    """Seconds in which ASP's machines compute a clock's worth of units, while all of them compute."""
    return trial.unit_s(0.9 * clocks * UNITS / len(speeds) / max(speeds) * unit_s) * UNITS


def ddp_clock_s(speeds: Speeds, unit_s: float, clocks: int) -> float:
    """A clock of DDP with equal batches on processes that pause as our machines do."""
    context = get_context("spawn")
    port = 29500 + os.getpid() % 1000
    answers = context.SimpleQueue()
    peers = [
        context.Process(
            target=ddp_peer, args=(rank, len(speeds), speeds[rank], unit_s, clocks, port, answers)
        )
        for rank in range(len(speeds))
    ]
    for peer in peers:
        peer.start()
    found: float = answers.get()
    for peer in peers:
        peer.join()
    return found


def ddp_peer(
    rank: int, world: int, speed: float, unit_s: float, clocks: int, port: int, answers: Any
) -> None:
    """One process: the mean of its clocks after the first two is rank 0's answer."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    module = DistributedDataParallel(nn.Linear(16, 16))
    optimizer, pace = torch.optim.SGD(module.parameters(), 0.1), Pace(unit_s, speed)
    x, begin_s = torch.zeros(1, 16), 0.0
    for clock in range(clocks):
        if clock == 2:
            begin_s = time.perf_counter()
        started_s = time.monotonic()
        loss = module(x).sum()
        now_s = time.monotonic()
        if (pause_s := pace.computed(UNITS // world, now_s - started_s, now_s)) > 0:
            time.sleep(pause_s)
            pace.paused(time.monotonic() - now_s)
        optimizer.zero_grad()
        loss.backward()  # the machines meet here
        optimizer.step()
    if rank == 0:
        answers.put((time.perf_counter() - begin_s) / (clocks - 2))
    dist.destroy_process_group()


STEADY = (
    ("1/3, 2/3, 1, 1", (1 / 3, 2 / 3, 1.0, 1.0)),
    ("L2: 1/2, 1, 1, 1", (1 / 2, 1.0, 1.0, 1.0)),
    ("L3: 1/3, 1, 1, 1", (1 / 3, 1.0, 1.0, 1.0)),
    ("homogeneous", (1.0, 1.0, 1.0, 1.0)),
)


def show_steady(unit_s: float, rounds: int, clocks: int) -> None:
    print(
        f"\nseconds of a clock at steady speeds, {clocks} clocks (after {SETTLES + 1}); asp: of as many units"
    )
    print("speeds                   static      ddp      asp    lbbsp    ideal  ", end="")
    print("lbbsp / static, ddp, asp; of the ideal gain; waiting")
    for name, speeds in STEADY:
        rows = [steady(speeds, unit_s, clocks) for _ in range(rounds)]
        even, ddp, asp, ours, waits = (statistics.median(column) for column in zip(*rows, strict=True))
        against = ", ".join(f"{statistics.median(row[3] / row[i] for row in rows):.3f}" for i in (0, 1, 2))
        ideal = ideal_s(speeds, unit_s)
        gain = f"{(even - ours) / (even - ideal):.3f}" if ideal < 0.99 * even_s(speeds, unit_s) else "-"
        print(f"{name:22}{even:9.4f}{ddp:9.4f}{asp:9.4f}{ours:9.4f}{ideal:9.4f}  ", end="")
        print(f"{against}; {gain}; {waits:.1%}", flush=True)


def steady(speeds: Speeds, unit_s: float, clocks: int) -> tuple[float, float, float, float, float]:
    """A clock of static, DDP, ASP and LB-BSP in turn, and the waiting of the last."""
    even = UnevenRun(job(speeds, unit_s, clocks, balance="static")).train()
    ddp_s = ddp_clock_s(speeds, unit_s, clocks)
    loose = UnevenRun(job(speeds, unit_s, clocks, balance="static", consistency={"kind": "asp"})).train()
    ours = UnevenRun(job(speeds, unit_s, clocks, balance="lbbsp")).train()
    late = SETTLES + 1
    return (
        settled_s(even, late, clocks),
        ddp_s,
        asp_s(loose, speeds, unit_s, clocks),
        settled_s(ours, late, clocks),
        ours.waiting(late, clocks),
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one round of shorter units")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    rounds = 1 if arguments.quick else arguments.rounds
    unit_s, clocks = (0.004, 16) if arguments.quick else (0.01, 24)
    print(f"{versions('python', 'torch')}, {cores()}")
    show_changes(unit_s, rounds)
    show_steady(unit_s, rounds, clocks)


if __name__ == "__main__":
    sys.exit(main())
