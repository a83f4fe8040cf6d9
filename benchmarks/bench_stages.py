"""The stages of AgileML on eight hosts with shaped links, against the traditional layout (thesis, figures 4.10-4.13).

A clock is nearly all exchange (`--work-s` adds work that is dealt out and sleeps): every worker reads a model of W
bytes whole and updates all of it. Traditional: all eight machines reliable, a shard and a worker on each. Beside
each measured ratio stands the formula's: bytes that the busiest machine sends over those of a traditional one. A
server with the share o of the parameters sends (1 - o) W of updates and o (workers - 1) W of parameters in a
clock, and receives as much; o W of backups per cut come on top in stages 2 and 3.
`python benchmarks/bench_stages.py [--quick] [--part stages,backups,auto] [--rounds 2] [--rate 200mbit]`. Needs root.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from dataclasses import dataclass

import plain_sockets
from exchange import Exchange
from hosts import Link
from link_rig import RELIABLE, TRANSIENT, WARM_UP, Ran, Rig, machine_line, or_skip

from agileml.events.run import MembershipChanged, StageJudged
from agileml.events.terms import Tier

HOSTS = 8
PARTITIONS = 56  # about; a multiple of the servers in any stage, so that all of them have the same load
SLICES = 64  # of work, so that 7 workers have about the same share
NEVER = {"every_s": 1e6, "max_clocks": 1 << 30}
AUTO_CLOCKS = 20  # after which `auto` should have decided


@dataclass(frozen=True)
class Layout:
    """Machines and how they are used. `stage` 0 stands for auto."""

    reliable: int
    stage: int
    active_fraction: float = 1.0
    backups: bool = True

    @property
    def transient(self) -> int:
        return HOSTS - self.reliable

    @property
    def is_traditional(self) -> bool:
        return not self.transient

    def __str__(self) -> str:
        if self.is_traditional:
            return "traditional, 8 reliable"
        name = f"{'stage ' + str(self.stage) if self.stage else 'auto'}, {self.reliable} + {self.transient}"
        name += "" if self.active_fraction == 1.0 or self.stage == 1 else f", active {self.active_fraction:g}"
        return name + ("" if self.backups else ", no backups")

    @property
    def tiers(self) -> list[Tier]:
        return [RELIABLE] * self.reliable + [TRANSIENT] * self.transient

    def servers(self) -> int:
        return self.reliable if self.is_traditional or self.stage == 1 else self.active

    @property
    def active(self) -> int:
        return max(1, -int(-self.transient * self.active_fraction // 1))

    def partitions(self) -> int:
        """The same in every stage of these machines: what `auto` has is what it is compared with."""
        servers = math.lcm(self.reliable, self.active)
        return PARTITIONS // servers * servers

    def values(self, clocks: int) -> dict[str, object]:
        return {
            "clocks": clocks,
            "stage": self.stage or "auto",
            "active_fraction": self.active_fraction,
            "partitions": self.partitions(),
            **({} if self.backups else {"cuts": NEVER}),
        }

    def most_sent(self) -> float:
        """Bytes over W that a server sends in a clock; all servers work. Backups are not counted."""
        workers = self.transient if self.stage == 3 else HOSTS
        share = 1 / self.servers()
        return (1 - share) + share * (workers - 1)


TRADITIONAL = Layout(HOSTS, 1)
PARTS = {
    "stages": (
        Layout(4, 1),
        Layout(2, 2),
        Layout(1, 2),
        Layout(1, 3),
        Layout(1, 3, 0.5),
        Layout(1, 1),
    ),
    "backups": (Layout(1, 3, backups=False), Layout(1, 3), Layout(1, 2, backups=False), Layout(1, 2)),
    "auto": tuple(Layout(reliable, stage) for reliable in (4, 2, 1) for stage in (1, 2, 3, 0)),
    # 3 is the best of each.
    "chosen": tuple(Layout(reliable, stage) for reliable in (4, 2, 1) for stage in (3, 0)),
    "thesis": (
        *(Layout(reliable, 1) for reliable in (4, 1)),
        Layout(1, 2),
        Layout(1, 3),
        *(Layout(4, stage) for stage in (2, 3)),
    ),
}
QUICK = (Layout(1, 3), Layout(1, 2))


def measure(rig: Rig, layout: Layout, model_mb: float, clocks: int, work_s: float = 0.0) -> Ran:
    if layout.stage == 1 and layout.reliable == 1:
        clocks = WARM_UP + max(2, (clocks - WARM_UP) // 3)  # one link carries all there is
    if layout.stage == 0:
        clocks += AUTO_CLOCKS
    dealt = {"slices": SLICES} if work_s else {}
    return rig.run(layout.tiers, layout.values(clocks) | dealt, Exchange(model_mb, work_s))


def first_clock(layout: Layout) -> int:
    return WARM_UP + (AUTO_CLOCKS if layout.stage == 0 else 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="two layouts, a small model: under a minute")
    parser.add_argument("--part", default="stages", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--clocks", type=int, default=9, help="counted in each run")
    parser.add_argument("--model-mb", type=float)
    parser.add_argument("--work-s", type=float, default=0.0, help="of a clock, all workers together")
    parser.add_argument("--rate", default="200mbit")
    parser.add_argument("--json", action="store_true", help="the figures as JSON as well")
    arguments = parser.parse_args()
    rounds = arguments.rounds or (1 if arguments.quick else 2)
    model_mb = arguments.model_mb or (4.0 if arguments.quick else 16.0)
    parts = [QUICK] if arguments.quick else [PARTS[name] for name in arguments.part.split(",")]
    layouts = list(dict.fromkeys([TRADITIONAL, *(layout for part in parts for layout in part)]))
    link = Link(arguments.rate)
    print(f"{machine_line()}; {HOSTS} hosts, links {link}, W = {model_mb:g} MB, rounds: {rounds}", flush=True)
    found: dict[Layout, list[Ran]] = {layout: [] for layout in layouts}
    plain_s = []
    with Rig(HOSTS, link) as rig:
        for _ in range(rounds):
            plain_s.append(plain(rig, model_mb))
            for layout in layouts:
                ran = measure(rig, layout, model_mb, WARM_UP + arguments.clocks, arguments.work_s)
                found[layout].append(ran)
                print(f"  {layout}: {ran.clock_s(first_clock(layout)):.3f} s a clock", flush=True)
                for decision in ran.of(StageJudged):
                    print(f"    {decision.reason}", flush=True)
        again_s = measure(rig, TRADITIONAL, model_mb, WARM_UP + arguments.clocks, arguments.work_s).clock_s()
    figures = report(found, plain_s, model_mb, link)
    # Far from 1: other programs took the cores for a part of the time.
    figures["traditional, again"] = again_s / found[TRADITIONAL][0].clock_s()
    print(f"the traditional layout once more: {figures['traditional, again']:.2f} of the first time")
    if arguments.json:
        print(json.dumps(figures))


def plain(rig: Rig, model_mb: float) -> float:
    """Seconds in which plain sockets move what a clock of the traditional layout moves."""
    addresses = [rig.hosts.address(host) for host in range(HOSTS)]
    bytes_each = round(TRADITIONAL.most_sent() * model_mb * 1e6 / (HOSTS - 1))
    return max(rig.call(HOSTS, plain_sockets.exchange, addresses, bytes_each, 4))


def report(
    found: dict[Layout, list[Ran]], plain_s: list[float], model_mb: float, link: Link
) -> dict[str, float]:
    """Print the table; ratios are medians of the rounds' ratios."""
    limit_s = TRADITIONAL.most_sent() * model_mb * 1e6 / link.payload_bytes_per_s
    seconds = {layout: [ran.clock_s(first_clock(layout)) for ran in runs] for layout, runs in found.items()}
    print(
        f"\nthe bytes of a traditional clock: {limit_s:.3f} s at the links' rate, {statistics.median(plain_s):.3f} s"
    )
    print("for plain sockets here, all hosts at once")
    print(
        f"{'':34}{'s':>8}{'/ trad.':>9}{'formula':>9}   MB sent a clock, reliable | transient: most, formula"
    )
    figures = {}
    for layout, times in seconds.items():
        ratios = [a / b for a, b in zip(times, seconds[TRADITIONAL], strict=True)]
        figures[str(layout)] = statistics.median(ratios)
        formula = f"{layout.most_sent() / TRADITIONAL.most_sent():9.2f}" if layout.stage else f"{'':9}"
        ran = found[layout][-1]
        sent = [sent / 1e6 for sent, _ in ran.bytes_per_clock(first_clock(layout))]
        tiers = [max(part, default=0.0) for part in (sent[: layout.reliable], sent[layout.reliable :])]
        stages = " ".join(str(view.stage) for view in ran.of(MembershipChanged))
        most = f"{layout.most_sent() * model_mb:.1f}" if layout.stage else f"stages {stages}"
        print(
            f"{layout!s:34}{statistics.median(times):8.3f}{figures[str(layout)]:9.2f}{formula}"
            f"   {tiers[0]:6.1f} | {tiers[1]:6.1f}: {max(tiers):.1f}, {most}"
        )
    return figures


if __name__ == "__main__":
    or_skip(main)
