"""Pipelines on hosts with links: against data parallelism, the planner's plans against others, changes and a kill.

    python benchmarks/bench_pipeline_hosts.py [--quick] [--part rates,plans,changes,speeds,kill] [--rounds 3]

Four hosts at 200 Mbit/s train models whose layers wait instead of computing (`virtual_pipeline.py`) and send, exchange
and copy real bytes, which are a 50th of the models' own: 200 Mbit/s stand for 10 Gbit/s. `--part`:
rates    GNMT-like and VGG-16-like models without a flush, in the planner's stages: against what it expects, and
         against DistributedDataParallel over gloo, whose layers wait as long
plans    the planner's plan against all other numbers of machines for the stages
changes  a notice and a join in the middle of a run, with a flush and without: what is computed again and what is lost
speeds   one host of half the speed: stages for equal machines, and those by speed
kill     a host of a stage is killed: how long no clock ends
A clock is four minibatches of sixteen units. Needs root.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import link_peer
from ddp_peer import Options, Task
from hosts import Link
from link_rig import RELIABLE, TRANSIENT, Ran, Rig, machine_line, or_skip
from virtual_pipeline import FORWARD, Layer, Model, VirtualLayers, expected_s, set_speed

from agileml.core.protocol.inputs import Admit, NodeDown, Notice
from agileml.core.protocol.job import PipelineMode, PipelineRules
from agileml.core.stage import planned_stages
from agileml.core.stage.pipeline_stages import StageCut, cut_stages, least_slowest
from agileml.events.run import MembershipChanged
from agileml.events.terms import Cause, Loss
from agileml.process.head import Head, HeadState

HOSTS = 4
SCALE = 50  # of bytes
UNITS, MINIBATCHES = 16, 4  # of a clock
PORT = 29517
LONGEST_S = 6.0  # of a run of a slow plan
SKIP = 6  # clocks that are not counted: the pipeline fills, connections are made
OF_THEORY, TIMES_DDP, REPLICATED, OF_BEST, LOST, PREDICTED, KILLED_S = 0.93, 7.0, 0.85, 1.05, 1.25, 0.10, 1.5


def gnmt() -> Model:
    """Eight LSTM layers of width 1,024, two embeddings and a classifier of 32,000 words; 64 sentences of 50 words."""
    width, words, sent = 1024, 32_000, 64 * 50 * 1024
    lstm, table = 8 * width * width, words * width
    encoder = [Layer("embedding", 0.002, table, sent)] + [Layer("lstm", 0.009, lstm, sent)] * 4
    decoder = [Layer("embedding", 0.002, table, sent)] + [Layer("lstm", 0.009, lstm, sent)] * 4
    return _scaled("GNMT-like", [*encoder, *decoder, Layer("classifier", 0.012, table, 1)])


def vgg() -> Model:
    """VGG-16 with 64 images of 224 x 224, 90 ms of computing shared out by multiplications."""
    channels = [3, 64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512]
    sides = [224, 224, 112, 112, 56, 56, 56, 28, 28, 28, 14, 14, 14]
    pooled = {1, 3, 6, 9, 12}  # behind these the side is half as long
    sizes = [9 * a * b for a, b in pairwise(channels)]
    work = [size * side * side for size, side in zip(sizes, sides, strict=True)]
    sent = [
        64 * channel * side * side // (4 if at in pooled else 1)
        for at, (channel, side) in enumerate(zip(channels[1:], sides, strict=True))
    ]
    dense = [25_088 * 4096, 4096 * 4096, 4096 * 1000]
    sizes, work, sent = sizes + dense, work + dense, [*sent, 64 * 4096, 64 * 4096, 1]
    layers = zip(work, sizes, sent, strict=True)
    return _scaled("VGG-16-like", [Layer("", 0.09 * w / sum(work), size, out) for w, size, out in layers])


def _scaled(name: str, layers: Sequence[Layer]) -> Model:
    small = [
        Layer(each.name, each.seconds, max(16, each.parameters // SCALE), max(1, each.sent // SCALE))
        for each in layers
    ]
    return Model(name, tuple(small), UNITS, MINIBATCHES)


def rules_of(model: Model, replicas: tuple[int, ...] | None = None) -> PipelineRules:
    """The rules of a run without a flush; `replicas` None: the planner's."""
    sizes = tuple(4 * layer.parameters for layer in model.layers)
    sent = tuple(4 * each for each in model.unit_sent)
    return PipelineRules(model.unit_s, None, False, PipelineMode("stash"), replicas, sent, sizes)


def shape(cut: StageCut) -> str:
    """The machines of the stages, as `2-1-1`."""
    return "-".join(map(str, cut.replicas))


def train(rig: Rig, model: Model, clocks: int, pipeline: dict[str, Any], **more: Any) -> Ran:
    """A run on four reliable hosts, whose stages they are."""
    tiers, watch, waiting = (
        more.pop("tiers", [RELIABLE] * HOSTS),
        more.pop("watch", None),
        more.pop("waiting", 0),
    )
    values = {
        "application": "virtual_pipeline:VirtualLayers",  # named, not used: the application is given
        "clocks": clocks,
        "slices": UNITS,
        "deterministic": True,
        "pipeline": pipeline,
        "balance": "static",
        **more,
    }
    return rig.run(tiers, values, VirtualLayers(model), watch, waiting)


def ddp_step_s(rig: Rig, model: Model, steps: int) -> float:
    """A step of DistributedDataParallel: one minibatch on each host. The best of its defaults and larger buckets."""
    shares = [
        (layer.parameters / model.parameters, layer.seconds / model.minibatch_s) for layer in model.layers
    ]
    arguments = {"shares": shares, "elements": model.parameters, "step_s": model.minibatch_s}
    task = Task(model.name, "paused", arguments, (10,), 10, 2, 64)
    assert FORWARD == 1 / 3, "the peer's layers take as long forward"
    found = []
    for options in (Options(), Options(5)):
        answers = rig.call(HOSTS, link_peer.steps, task, options, 3 + steps)
        found.append(statistics.median(s for seconds in answers for s in seconds[3:]))
    return min(found)


# -- steady runs --------------------------------------------------------------------------------------------


def others() -> Iterator[tuple[int, ...]]:
    """All numbers of machines for the stages, four in all."""
    yield from ((1, 1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2), (2, 2), (3, 1), (1, 3), (4,))


def rates(rig: Rig, models: Sequence[Model], clocks: int, rounds: int, bytes_per_s: float) -> list[str]:
    """The planner's stages against what is expected of them, and against DDP."""
    rig.call(HOSTS, link_peer.join, rig.hosts.address(0), PORT, HOSTS)
    print(
        "\n| model | stages | expected ms | measured ms | of what is expected | DDP ms | times DDP |",
        flush=True,
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    missed = []
    for model in models:
        cut = cut_stages(rules_of(model), HOSTS, UNITS, bytes_per_s)
        wanted_s = expected_s(model, cut, flushes=False, bytes_per_s=bytes_per_s)
        of_wanted, of_ddp, found, peer = [], [], [], []
        for _ in range(rounds):
            peer.append(ddp_step_s(rig, model, max(3, clocks // 4)))
            ran = train(rig, model, SKIP + clocks, {"mode": "stash", "replicas": "auto"})
            found.append(statistics.median(ran.seconds(SKIP)))
            of_wanted.append(wanted_s / found[-1])
            of_ddp.append(peer[-1] / found[-1])
        share, times = statistics.median(of_wanted), statistics.median(of_ddp)
        took_s, peer_s = statistics.median(found), statistics.median(peer)
        least = REPLICATED if max(cut.replicas) > 1 else OF_THEORY
        print(
            f"| {model.name} | {shape(cut)} | {1e3 * wanted_s:.0f} | {1e3 * took_s:.0f} | {share:.2f} ({least:g}) | "
            f"{1e3 * peer_s:.0f} | {times:.1f} ({TIMES_DDP:g}) |",
            flush=True,
        )
        missed += [f"{model.name}: of what is expected"] * (share < least)
        missed += [f"{model.name}: times DDP"] * (times < TIMES_DDP)
    rig.call(HOSTS, link_peer.leave)
    return missed


def plans(rig: Rig, models: Sequence[Model], clocks: int, bytes_per_s: float) -> list[str]:
    """The planner's plan against the others, each run for real."""
    missed = []
    for model in models:
        chosen = cut_stages(rules_of(model), HOSTS, UNITS, bytes_per_s)
        runs: list[tuple[str, StageCut, dict[str, Any]]] = [
            ("planned", chosen, {"mode": "stash", "replicas": "auto"})
        ]
        for replicas in others():
            cut = cut_stages(rules_of(model, replicas), HOSTS, UNITS)
            runs.append(("", cut, {"mode": "stash", "replicas": list(replicas)}))
        print(f"\n{model.name}\n| stages | expected ms | measured ms |\n| --- | --- | --- |", flush=True)
        found = []
        for name, cut, pipeline in runs:
            wanted_s = expected_s(model, cut, flushes=False, bytes_per_s=bytes_per_s)
            few = min(clocks, max(6, round(LONGEST_S / wanted_s)))
            ran = train(rig, model, SKIP + few, pipeline)
            found.append(statistics.median(ran.seconds(SKIP)))
            print(f"| {name} {shape(cut)} | {1e3 * wanted_s:.0f} | {1e3 * found[-1]:.0f} |", flush=True)
        ratio = found[0] / min(found)
        print(f"planned over the best: {ratio:.3f} (limit {OF_BEST:g})", flush=True)
        missed += [f"{model.name}: planned over the best"] * (ratio > OF_BEST)
    return missed


def speeds(rig: Rig, model: Model, clocks: int, bytes_per_s: float) -> list[str]:
    """One host of half the speed."""
    each = (1.0, 0.5, 1.0, 1.0)
    rig.call(HOSTS, set_speed, each)
    equal = StageCut(least_slowest(model.unit_s, HOSTS), (1,) * HOSTS)
    ours = StageCut(least_slowest(model.unit_s, HOSTS, each), (1,) * HOSTS)
    missed = []
    print(f"\n{model.name}, speeds {each}\n| stages | mode | expected ms | measured ms |", flush=True)
    print("| --- | --- | --- | --- |")
    for mode in ("flush", "stash"):
        for balance, cut in (("static", equal), ("auto", ours)):
            wanted_s = expected_s(model, cut, flushes=mode == "flush", bytes_per_s=bytes_per_s, speeds=each)
            ran = train(rig, model, SKIP + clocks, {"mode": mode}, balance=balance)
            found_s = statistics.median(ran.seconds(SKIP + clocks // 2))
            recuts = [e for e in ran.of(MembershipChanged) if e.trigger.cause is Cause.STAGE]
            sizes = "-".join(str(stop - first) for first, stop in cut.ranges)
            print(
                f"| {balance}, {sizes} layers, {len(recuts)} changes | {mode} | {1e3 * wanted_s:.0f} | "
                f"{1e3 * found_s:.0f} |",
                flush=True,
            )
            if abs(found_s / wanted_s - 1) > PREDICTED:
                missed.append(f"speeds, {mode}, {balance}: {found_s / wanted_s:.2f} of what is expected")
    rig.call(HOSTS, set_speed, (1.0,) * HOSTS)
    return missed


# -- changes ------------------------------------------------------------------------------------------------


class Once:
    """Does something in the middle of a clock, once so many have ended."""

    def __init__(self, after: int, act: Any) -> None:
        self.after, self._act = after, act
        self.at_s = 0.0

    def __call__(self, head: Head, state: HeadState, ran: Ran) -> None:
        if self.at_s or len(ran.ends_s) < self.after:
            return
        if time.time() < ran.ends_s[-1] + 0.5 * ran.clock_s(self.after - 4):
            return
        self.at_s = time.time()
        self._act(head)


def lost_s(ran: Ran, change: MembershipChanged, after: int) -> float:
    """What a change cost over clocks as long as those before and after it."""
    before_s = ran.clock_s(after - 4, after)
    after_s = ran.clock_s(len(ran.ends_s) - 5)
    last = len(ran.ends_s) - 6
    before = max(0, change.base - after - 1)  # of the clocks after + 1 .. last
    return ran.ends_s[last] - ran.ends_s[after] - before * before_s - (last - after - before) * after_s


def changes(rig: Rig, model: Model, clocks: int, bytes_per_s: float) -> list[str]:
    """A notice for a stage, and a join, on one reliable host and four that are the stages."""
    missed = []
    print(f"\n{model.name}, one reliable host and the stages on transient ones", flush=True)
    print("| change | mode | clocks redone | lost ms | allowed ms |\n| --- | --- | --- | --- | --- |")
    after = SKIP + 6
    for mode in ("flush", "stash"):
        for what in ("notice", "join"):
            waiting = what == "join"
            act = (
                (lambda head: head.tell(Admit(f"m{HOSTS}")))
                if waiting
                else (lambda head: head.tell(Notice("m2", time.time() + 60.0)))
            )
            watch = Once(after, act)
            ran = train(
                rig,
                model,
                after + clocks,
                {"mode": mode},
                tiers=[RELIABLE] + [TRANSIENT] * HOSTS,
                watch=watch,
                waiting=int(waiting),
            )
            change = ran.of(MembershipChanged)[-1]
            few, many = (HOSTS - 1, HOSTS) if waiting else (HOSTS, HOSTS - 1)
            cut = StageCut(least_slowest(model.unit_s, few), (1,) * few)
            slot_s = expected_s(model, cut, flushes=False)
            then = least_slowest(model.unit_s, many)
            moved = max(4 * sum(layer.parameters for layer in model.layers[a:b]) for a, b in then)
            allowed_s = LOST * ((few - 1) * slot_s + moved / bytes_per_s)
            cost_s = lost_s(ran, change, after)
            print(
                f"| {what} | {mode} | {change.redone} | {1e3 * cost_s:.0f} | {1e3 * allowed_s:.0f} |",
                flush=True,
            )
            missed += [f"{what}, {mode}: clocks redone"] * (change.redone > 0)
            missed += [f"{what}, {mode}: lost"] * (cost_s > allowed_s)
    return missed


def kill(rig: Rig, model: Model, clocks: int, bytes_per_s: float) -> list[str]:
    """A stage's host is killed. It is the last part: the host stays dead."""
    after = SKIP + 6

    def act(head: Head) -> None:
        rig.kill(2)
        head.tell(NodeDown("m2", Loss.PROCESS_DIED))

    watch = Once(after, act)
    tiers = [RELIABLE] + [TRANSIENT] * HOSTS
    ran = train(rig, model, after + clocks, {"mode": "flush"}, tiers=tiers, watch=watch)
    change = ran.of(MembershipChanged)[-1]
    gap_s = next(at for at in ran.first_ends_s if at > watch.at_s) - watch.at_s
    cut = least_slowest(model.unit_s, HOSTS)
    moved = max(4 * sum(layer.parameters for layer in model.layers[a:b]) for a, b in cut)
    allowed_s = KILLED_S + moved / bytes_per_s
    print(
        f"\n{model.name}, flush: a stage's host killed, 4 to 3 stages: the next clock ended after {gap_s:.2f} s (limit "
        f"{allowed_s:.2f}), {change.redone} clocks computed again",
        flush=True,
    )
    return ["kill"] * (gap_s > allowed_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one round of few clocks, GNMT-like alone")
    parser.add_argument("--part", default="rates,plans,changes,speeds,kill")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--models", default="gnmt,vgg", help="of the parts rates and plans")
    parser.add_argument("--rate", default="200mbit")
    arguments = parser.parse_args()
    rounds = arguments.rounds or (1 if arguments.quick else 3)
    clocks, parts = (12 if arguments.quick else 40), arguments.part.split(",")
    wanted = ["gnmt"] if arguments.quick else arguments.models.split(",")
    models = [{"gnmt": gnmt, "vgg": vgg}[name]() for name in wanted]
    link = Link(arguments.rate)
    bytes_per_s = link.payload_bytes_per_s
    # A run learns the rate from its transfers, for the plan at its next change.
    planned_stages.ASSUMED_BYTES_PER_S = bytes_per_s
    print(f"{machine_line()}; {HOSTS} hosts, links {link}, rounds: {rounds}", flush=True)
    missed = []
    with Rig(HOSTS + 1, link) as rig:
        if "rates" in parts:
            missed += rates(rig, models, clocks, rounds, bytes_per_s)
        if "plans" in parts:
            missed += plans(rig, models, clocks, bytes_per_s)
        if "changes" in parts:
            missed += changes(rig, gnmt(), clocks, bytes_per_s)
        if "speeds" in parts:
            missed += speeds(rig, gnmt(), 120, bytes_per_s)
        if "kill" in parts:
            missed += kill(rig, gnmt(), clocks, bytes_per_s)
    if missed:
        raise SystemExit("missed: " + "; ".join(missed))


if __name__ == "__main__":
    or_skip(main)
