"""Time without a clock after the head of a supervised run was killed, beside the plain start of a run.

One supervised run on two local Ray nodes. Each kill, in turn, hits the driver or Ray's GCS, at a random moment of
the seconds after clocks go on; every fourth one is followed by another while the run is starting again. A time is from
the first kill to the first clock after it. The limit is 60 s. The machine may be busy, so the times stand beside the
plain start of the same job, once before and once after. The bits must be those of the job in one process.
`python benchmarks/bench_supervise.py [--quick] [--kills 20] [--seed 0]`.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from measuring import computer

from agileml.events.run import ClockDone, RunRestarted, RunStarted
from agileml.events.schema import Log, events_of
from agileml.runs.event_log import EVENTS, read_events

CONFIG = Path(__file__).resolve().parents[1] / "configs" / "mlr.yaml"
LIMIT_S = 60.0
KINDS = ("driver", "GCS")
ENDLESS = 1 << 30  # clocks
UP_S = 4.0  # a kill comes within this after clocks go on


def command(out: Path, clocks: int, *more: str) -> list[str]:
    settings = ["machines.transient=1", "plan=[]", f"clocks={clocks}"]
    words = [word for setting in settings for word in ("--set", setting)]
    return [sys.executable, "-m", "agileml.cli", "run", str(CONFIG), *words, "--out", str(out), *more]


def log_of(out: Path) -> Log:
    return read_events(out / EVENTS) if (out / EVENTS).exists() else []


def began_unix_s(log: Log) -> float:
    return next(each.event.unix_s - each.t_s for each in log if isinstance(each.event, RunStarted))


def first_clock_unix_s(
    run: subprocess.Popen[bytes], out: Path, since_unix_s: float = 0.0, restarts: int = 0
) -> float:
    """When the first clock after a moment and after so many restarts was complete. (Clocks may go on a while without a
    head.)"""
    while True:
        log, seen = log_of(out), 0
        zero_s = began_unix_s(log) if log else 0.0
        for each in log:
            seen += isinstance(each.event, RunRestarted)
            if isinstance(each.event, ClockDone) and seen >= restarts and each.t_s + zero_s > since_unix_s:
                return each.t_s + zero_s
        if run.poll() is not None:
            raise SystemExit(f"the run ended with {run.returncode}")
        time.sleep(0.05)


def plain_start_s(folder: Path) -> float:
    """From the command to its first clock."""
    begun_unix_s = time.time()
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command(folder, ENDLESS), **quiet) as run:
        took_s = first_clock_unix_s(run, folder, begun_unix_s) - begun_unix_s
        run.terminate()
    return took_s


def kill(run: subprocess.Popen[bytes], kind: str) -> float | None:
    """Kill one half of the head; returns when (Unix time). None: it is not there at the moment."""
    victims = psutil.Process(run.pid).children()
    if kind == "GCS":
        victims = [p for driver in victims for p in driver.children() if p.name().startswith("gcs_server")]
    for victim in victims:
        victim.kill()
    return time.time() if victims else None


def outages(run: subprocess.Popen[bytes], out: Path, count: int, start_s: float, seed: int) -> list[float]:
    """Seconds without a clock after each kill. Every fourth kill is followed by another one while the run starts."""
    chance = random.Random(seed)
    found: list[float] = []
    first_clock_unix_s(run, out)
    for number in range(count):
        time.sleep(chance.uniform(0, UP_S))
        kind, restarts = KINDS[number % 2], len(events_of(log_of(out), RunRestarted))
        since_unix_s = kill(run, kind)
        assert since_unix_s is not None, "the run is up, so its head is there"
        if number % 4 == 3:
            time.sleep(chance.uniform(0, start_s))
            kind += " and driver" if kill(run, "driver") else ""
        found.append(first_clock_unix_s(run, out, restarts=restarts + 1) - since_unix_s)
        print(f"  kill {number + 1}: {kind}, {found[-1]:.1f} s", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two kills")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    kills = 2 if arguments.quick else arguments.kills
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plain_s = [plain_start_s(folder / "before")]
        print(f"  a plain start: {plain_s[0]:.1f} s", flush=True)
        out = folder / "run"
        saves = ("--set", f"checkpoint={{path: {folder}/saved, every_s: 0.5}}")
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        with subprocess.Popen(command(out, ENDLESS, "--supervise", *saves), **quiet) as run:
            took_s = outages(run, out, kills, plain_s[0], arguments.seed)
            run.terminate()  # it ends with its next cut
        clocks = json.loads((out / "summary.json").read_text())["clocks"]
        plain_s.append(plain_start_s(folder / "after"))
        subprocess.run([*command(folder / "one", clocks), "--sequential"], check=True, capture_output=True)
        digests = {
            json.loads((each / "summary.json").read_text())["params_sha256"] for each in (out, folder / "one")
        }
        redone = sum(each.redone for each in events_of(log_of(out), RunRestarted))
    start_s = statistics.mean(plain_s)
    middle_s = statistics.median(took_s)
    print(computer("Python"))
    print(
        f"{kills} kills: median {middle_s:.1f} s, at most {max(took_s):.1f} s without a clock (limit {LIMIT_S:g} s)"
    )
    print(f"a plain start to the first clock: {plain_s[0]:.1f} s before, {plain_s[1]:.1f} s after")
    print(f"median / plain start {middle_s / start_s:.2f}, longest / plain start {max(took_s) / start_s:.2f}")
    print(f"{redone} clocks done again of {clocks}; bits {'the same' if len(digests) == 1 else 'DIFFER'}")
    if len(digests) != 1 or run.returncode:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
