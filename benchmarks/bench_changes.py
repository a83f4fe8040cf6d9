"""Time lost to changes of members: three machines join, then half of the transient machines leave by notice.

Two reliable and three transient machines, three more join, then the three that were there from the start get a notice.
They serve parameters, so these must move. What a change costs: the time from the start of the clock in which it was
asked for to the end of the next one, less a steady clock of the machines before and one of the machines after. The
work of a clock is the same whoever does it, and sleeps, so that hosts do not compete for this machine's cores.
`python benchmarks/bench_changes.py [--quick] [--rounds 3] [--rate 200mbit]`. Needs root.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import dataclass

from exchange import Exchange
from hosts import Link
from link_rig import RELIABLE, TRANSIENT, WARM_UP, Ran, Rig, machine_line, or_skip

from agileml.core.protocol.inputs import Admit, Notice
from agileml.process.head import Head, HeadState

RELIABLE_COUNT, START, JOINING = 2, 3, 3
SLICES = 64  # so that the work can be dealt out evenly to five machines and to eight
STEADY = 5  # clocks before, between and after the changes
WARNING_S = 120.0
PHASE = 0.5  # of a clock: when in it a change is asked for


@dataclass(frozen=True)
class Load:
    """What a clock is made of. `sleep_s`: work, all machines together."""

    name: str
    model_mb: float
    sleep_s: float


LOADS = (Load("compute rules", 4.0, 20.0), Load("exchange rules", 32.0, 0.0))
QUICK = (Load("compute rules", 1.0, 4.0),)


class Changes:
    """Watches a run and asks for a change in the middle of a clock: first the join, then the notices."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []  # what, clocks that had ended

    def __call__(self, head: Head, state: HeadState, ran: Ran) -> None:
        ended = len(ran.ends_s)
        due = WARM_UP + STEADY if not self.asked else self.asked[-1][1] + 2 + STEADY
        if len(self.asked) == 2 or ended < due:
            return
        if time.time() < ran.ends_s[-1] + PHASE * ran.clock_s(ended - 2):
            return
        if not self.asked:
            for rank in range(JOINING):
                head.tell(Admit(f"m{RELIABLE_COUNT + START + rank}"))
        else:
            for rank in range(START):
                head.tell(Notice(f"m{RELIABLE_COUNT + rank}", time.time() + WARNING_S))
        self.asked.append(("notice" if self.asked else "join", ended))


@dataclass(frozen=True)
class Change:
    """A measured change. `lost`: over a steady clock of the machines after. `moved_mb`: by the change's copies."""

    kind: str
    before_s: float
    after_s: float
    lost_s: float
    later_s: float  # what the two clocks after that took over steady ones

    @property
    def lost(self) -> float:
        return self.lost_s / self.after_s


def changes_of(ran: Ran, asked: list[tuple[str, int]]) -> list[Change]:
    """`asked` at k: clock k was running, k clocks had ended."""
    found = []
    ends = ran.ends_s
    for index, (kind, at) in enumerate(asked):
        before_s = ran.clock_s(at - STEADY + 1, at)
        last = asked[index + 1][1] if index + 1 < len(asked) else len(ends)
        after_s = ran.clock_s(at + 3, last)
        lost_s = ends[at + 1] - ends[at - 1] - before_s - after_s
        later_s = ends[at + 3] - ends[at + 1] - 2 * after_s
        found.append(Change(kind, before_s, after_s, lost_s, later_s))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one short run")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--rate", default="200mbit")
    parser.add_argument("--stage", default=2, type=int, choices=(1, 2, 3))
    parser.add_argument("--json", action="store_true", help="the figures as JSON as well")
    arguments = parser.parse_args()
    rounds = arguments.rounds or (1 if arguments.quick else 3)
    link = Link(arguments.rate)
    count = RELIABLE_COUNT + START + JOINING
    print(
        f"{machine_line()}; {count} hosts, links {link}, stage {arguments.stage}, rounds: {rounds}",
        flush=True,
    )
    tiers = [RELIABLE] * RELIABLE_COUNT + [TRANSIENT] * (START + JOINING)
    figures = {}
    with Rig(count, link) as rig:
        for load in QUICK if arguments.quick else LOADS:
            found: dict[str, list[Change]] = {"join": [], "notice": []}
            fetched_mb = []
            for _ in range(rounds):
                values = {
                    "clocks": WARM_UP + 3 * STEADY + 6,
                    "stage": arguments.stage,
                    "slices": SLICES,
                    "active_fraction": 1.0,
                    "partitions": 24,
                }
                changes = Changes()
                application = Exchange(load.model_mb, load.sleep_s)
                ran = rig.run(tiers, values, application, changes, waiting=JOINING)
                for change in changes_of(ran, changes.asked):
                    found[change.kind].append(change)
                fetched_mb.append(ran.sent.by_kind()["fetch"] / 1e6)
            figures |= report(load, found, fetched_mb, link)
    if arguments.json:
        print(json.dumps(figures))


def report(
    load: Load, found: dict[str, list[Change]], fetched_mb: list[float], link: Link
) -> dict[str, float]:
    """Print what a load's changes cost."""
    print(f"\n{load.name}: {load.model_mb:g} MB, {load.sleep_s:g} s of work in a clock")
    print(f"  {'':8}{'s before':>10}{'s after':>9}{'lost s':>8}{'of a clock':>12}  each round; then later, s")
    figures = {}
    for kind, changes in found.items():
        lost = statistics.median(change.lost for change in changes)
        figures[f"{load.name}, {kind}"] = lost
        print(
            f"  {kind:8}{statistics.median(c.before_s for c in changes):10.2f}"
            f"{statistics.median(c.after_s for c in changes):9.2f}"
            f"{statistics.median(c.lost_s for c in changes):8.2f}{lost:12.3f}  "
            + ", ".join(f"{change.lost:.3f}" for change in changes)
            + "; "
            + ", ".join(f"{change.later_s:.2f}" for change in changes)
        )
    moved = statistics.median(fetched_mb)
    print(f"  both changes copied {moved:.1f} MB: {moved * 1e6 / link.bytes_per_s:.2f} s of one link")
    return figures


if __name__ == "__main__":
    or_skip(main)
