"""The simulation against a real pipeline of two processes, and the rates of replicated stages.

    python benchmarks/bench_pipeline_timing.py [--quick]

The real run is torch.distributed.pipelining's Schedule1F1B over gloo, one thread per process, on this CPU. Both
processes profile the model at the same time, so that they see the machine as the pipeline does; then they run
it on the partitioner's cut. Profile and run take turns, and each prediction is held against its own run.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from measuring import computer, free_port, versions
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from pipeline.partition.planner import partition
from pipeline.profile.profiler import profile_module
from pipeline.schedule.policies import full_rate_in_flight, noam, one_f_one_b
from pipeline.schedule.timing import Exchange, Network, StageCost, simulate
from pipeline.topology.levels import Topology

# Microbatches long enough (a third of a second) that handing over between processes is a small part.
WIDTH, LAYERS, SAMPLES, MICROBATCHES = 1024, 8, 256, 8


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    quick = parser.parse_args().quick
    print(f"{computer()}; {versions('Python', 'torch')}")
    replicated()
    real(2 if quick else 7)


def replicated() -> None:
    """Share of the bottleneck's rate, by simulation: balanced stages, a backward takes two forwards."""
    print("\nshare of the slowest stage's rate; balanced stages, F : B = 1 : 2, no communication")
    print(
        f"{'stages':<10} {'NOAM':>5} {'at NOAM':>8} {'in flight':>10} {'there':>7} {'with a barrier there':>21}"
    )
    for replicas in ([1, 1, 1, 1], [3, 1], [1, 2, 1], [1, 4, 1], [1, 8, 1], [2, 4, 1], [1, 3, 2, 1]):
        more = full_rate_in_flight(replicas)
        at_noam = 3 / pace(replicas, noam(replicas), Exchange.BACKGROUND)
        there = 3 / pace(replicas, more, Exchange.BACKGROUND)
        barrier = 3 / pace(replicas, more, Exchange.BARRIER)
        name = "-".join(map(str, replicas))
        print(f"{name:<10} {noam(replicas):>5} {at_noam:>8.1%} {more:>10} {there:>7.1%} {barrier:>21.1%}")


def pace(replicas: list[int], in_flight: int, exchange: Exchange) -> float:
    """Simulated seconds per minibatch in the long run."""
    costs, device = [], 0
    for r in replicas:
        costs.append(StageCost(float(r), 2.0 * r, devices=tuple(range(device, device + r))))
        device += r
    schedule = one_f_one_b(replicas, 480, in_flight=in_flight, barrier=exchange is Exchange.BARRIER)
    network = Network(Topology(((device, 1e9),)), exchange=exchange)
    return simulate(schedule, costs, network).seconds_per_minibatch()


def real(rounds: int) -> None:
    """Start two processes and report what they measured."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(worker, (free_port(), rounds, folder), nprocs=2)
        print((Path(folder) / "result.txt").read_text(), end="")


def model() -> nn.Sequential:
    """Linear layers that are not all alike, so that the cut matters."""
    torch.manual_seed(0)
    widths = [WIDTH * (2 if i in (2, 3) else 1) for i in range(LAYERS + 1)]
    return nn.Sequential(*(nn.Sequential(nn.Linear(a, b), nn.ReLU()) for a, b in itertools.pairwise(widths)))


def worker(rank: int, port: int, rounds: int, folder: str) -> None:
    """One of the two processes."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    rows = []
    for _ in range(rounds):
        dist.barrier()
        measured = profile_module(
            model(), (torch.randn(SAMPLES, WIDTH),), loss=half_square, warm_up=1, repeats=5
        )
        link = link_seconds(rank)
        plan = partition(measured.profile, Topology(((2, 1e15),)), straight=True)
        shared = [plan.stages[0].layers[-1] // 2 + 1, [(s.forward_s, s.backward_s) for s in plan.stages]]
        dist.broadcast_object_list(shared, src=0)
        costs_seen: list[object] = [None, None]
        # Each process computes its own stage: the prediction takes each stage's times from where it runs.
        own = per_stage(measured.profile, int(shared[0]))
        dist.all_gather_object(costs_seen, own)
        costs = [
            StageCost(*costs_seen[0][0], output_bytes=1.0, devices=(0,)),
            StageCost(*costs_seen[1][1], devices=(1,)),
        ]
        network = Network(Topology(((2, 1e15),)), latency_s=link, overlap=True, full_duplex=True)
        predicted = simulate(one_f_one_b([1, 1], MICROBATCHES), costs, network).makespan_s
        rows.append((predicted, run_pipeline(rank, int(shared[0]))))
    if rank == 0:
        lines = [
            f"\none step of {MICROBATCHES} microbatches of {SAMPLES} through 2 processes, ms; each round predicts "
            "its own run",
            f"{'predicted':>10} {'measured':>10} {'error':>7}",
        ]
        for predicted, measured_s in rows:
            lines.append(
                f"{predicted * 1e3:>10.2f} {measured_s * 1e3:>10.2f} {predicted / measured_s - 1:>7.1%}"
            )
        error = statistics.median(p / m - 1 for p, m in rows)
        lines.append(f"median error {error:.1%} (target: within 15%)")
        Path(folder, "result.txt").write_text("\n".join(lines) + "\n")
    dist.barrier()
    dist.destroy_process_group()


def per_stage(profile, cut: int) -> list[tuple[float, float]]:
    """(forward, backward) seconds of the layers before and behind the cut; a Linear and a ReLU per block."""
    layers = profile.layers
    parts = (layers[: 2 * cut], layers[2 * cut :])
    return [(sum(x.forward_s for x in part), sum(x.backward_s for x in part)) for part in parts]


def half_square(output: torch.Tensor, target: torch.Tensor | None = None) -> torch.Tensor:
    """The loss of the profile and of the pipeline alike."""
    return (output**2).mean() if target is None else ((output - target) ** 2).mean()


def link_seconds(rank: int) -> float:
    """One way of an activation between the two processes, half of a round trip."""
    tensor = torch.zeros(SAMPLES, WIDTH)
    times = []
    for _ in range(20):
        start = time.perf_counter()
        if rank == 0:
            dist.send(tensor, 1)
            dist.recv(tensor, 1)
        else:
            dist.recv(tensor, 0)
            dist.send(tensor, 0)
        times.append((time.perf_counter() - start) / 2)
    shared: list[object] = [statistics.median(times)]
    dist.broadcast_object_list(shared, src=0)
    return float(shared[0])  # type: ignore[arg-type]


def run_pipeline(rank: int, cut: int) -> float:
    """Seconds of one step, the median of the faster half of 4, as the profile's."""
    whole = model()
    part = nn.Sequential(*(whole[:cut] if rank == 0 else whole[cut:]))
    stage = PipelineStage(part, rank, 2, torch.device("cpu"))
    schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=half_square)
    inputs = torch.randn(SAMPLES * MICROBATCHES, WIDTH)
    target = torch.zeros(SAMPLES * MICROBATCHES, WIDTH)
    times = []
    for step in range(5):
        part.zero_grad(set_to_none=True)
        dist.barrier()
        start = time.perf_counter()
        if rank == 0:
            schedule.step(inputs)
        else:
            schedule.step(target=target, losses=[])
        dist.barrier()
        if step >= 1:
            times.append(time.perf_counter() - start)
    return statistics.median(sorted(times)[:2])


if __name__ == "__main__":
    main()
