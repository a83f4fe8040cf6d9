"""One of three machines is killed while the same model trains: how long until steps go on, and what is done again.

`python benchmarks/kill_one.py [--quick] [--kills 20] [--peer-kills 3] [--peers PYTHON] [--only PEER]`. Ours runs on
real local Ray nodes. Ray Train (elastic, default and tuned health checks) and torchft run in processes of the
interpreter PYTHON, by default this one: `pip install proteus-train[bench]` brings them. A peer that is not there or
does not go on is named as such, with no figure. `--only` takes the peers with that in their name: all take 20 minutes.

The limit: a step is 0.2 s on three machines. Ours has a fixed minibatch, so a clock of two machines takes 0.3 s, and a
kill at a random moment of a clock cannot be seen in less than what is left of it. Ray Train and torchft keep the share
of each machine: their steps stay at 0.2 s and their minibatch shrinks.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import re
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent
# The machines read it too.
os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])

PEER_LIMIT_S = 540.0
PEERS = (
    ("torchft, default", "kill_one_torchft.py", "default"),
    ("torchft, tuned", "kill_one_torchft.py", "tuned"),
    ("Ray Train elastic, tuned", "kill_one_ray.py", "tuned"),
    ("Ray Train elastic, default", "kill_one_ray.py", "default"),
)
ROW = "{:<36}{:>6}{:>10}{:>10}{:>10}{:>14}{:>12}"


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that is no less than a share of all."""
    return sorted(values)[math.ceil(share * len(values)) - 1]


def row(name: str, resumed_s: Sequence[float], redone: Sequence[float], beside_s: float | None) -> str:
    median_s = statistics.median(resumed_s)
    ratio = "1.0" if beside_s is None else f"{median_s / beside_s:.1f}"
    times = [f"{value:.2f}" for value in (median_s, percentile(resumed_s, 0.95), max(resumed_s))]
    return ROW.format(name, len(resumed_s), *times, f"{statistics.mean(redone):.1f}", ratio)


def ours(kills: int, freezes: int, notices: int) -> float:
    """Print our rows; the median after a kill."""
    from kill_one_ours import measure

    found = measure(["kill"] * kills + ["freeze"] * freezes + ["notice"] * notices)
    median_s = 0.0
    for kind, name in (
        ("kill", "ours, killed"),
        ("freeze", "ours, frozen"),
        ("notice", "ours, told 30 s ahead"),
    ):
        mine = [cost for cost in found if cost.kind == kind]
        if not mine:
            continue
        if kind == "kill":
            median_s = statistics.median(cost.resumed_s for cost in mine)
        print(row(name, [c.resumed_s for c in mine], [c.clocks_redone for c in mine], None), flush=True)
    killed = [cost for cost in found if cost.kind == "kill"]
    passed = [cost.passed_s for cost in killed]
    print(
        f"  a clock of those who are left: {statistics.median(c.clock_s for c in killed):.2f} s; until the run was "
        f"where it would have been: median {statistics.median(passed):.2f} s, at most {max(passed):.2f} s",
        flush=True,
    )
    return median_s


def peer(name: str, script: str, mode: str, kills: int, python: str, beside_s: float) -> None:
    """Print a peer's row, or why there is none."""
    command = [python, str(HERE / script), mode, str(kills)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PEER_LIMIT_S)
    except subprocess.TimeoutExpired:
        print(f"{name:<36}no figure: not done after {PEER_LIMIT_S:g} s")
        return
    lines = done.stdout.splitlines()
    if not lines:  # whoever printed is done: how it ends does not matter
        problems = done.stderr.strip().splitlines() or ["no output"]
        why = next(
            (line for line in reversed(problems) if re.match(r"[\w.]*(Error|Exception)\b", line)),
            problems[-1],
        )
        print(f"{name:<36}no figure: {why}")
        return
    found = json.loads(lines[-1])
    print(row(name, [c["resumed_s"] for c in found], [c["redone"] for c in found], beside_s), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="3 kills, ours alone")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--peer-kills", type=int, default=3, help="0: ours alone")
    parser.add_argument("--peers", default=sys.executable, metavar="PYTHON")
    parser.add_argument(
        "--only", default="", metavar="PEER", help="peers with this in their name, beside ours"
    )
    options = parser.parse_args()
    kills, others = (3, 0) if options.quick else (options.kills, options.peer_kills)
    load = os.getloadavg()[0]
    print(
        f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, load {load:.1f}"
    )
    print(ROW.format("seconds until steps go on", "n", "median", "p95", "most", "steps redone", "over ours"))
    median_s = ours(kills, *((0, 1) if options.quick else (min(5, kills),) * 2))
    for name, script, mode in PEERS:
        if others and options.only in name:
            peer(name, script, mode, others, options.peers, median_s)


if __name__ == "__main__":
    main()
