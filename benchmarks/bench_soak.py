"""A supervised run on local Ray nodes with a fault every 5 s on average: does anything grow, and are the bits right?

The faults are data (`soak_plan.py`, drawn from the seed): processes of machines and of the controller are killed,
one at a time or all at once, stopped or slowed down, the disk is full for a while, a machine falls ill, a Ray node
dies, and the head dies several times: the run's process, then Ray's GCS. The plan's time stands still while the
head is away. At the end the run is told to stop, and one process computes the same clocks. Every few seconds the
memory of every process, its descriptors and the shared memory are noted; over the last two thirds of the time none
of ours may grow once it is two minutes old. Few machines get that old here, so for their memory there is a calm run:
`--every 1e9 --heads 0`. The log has a bound.
`python benchmarks/bench_soak.py [--quick] [--minutes 30] [--nodes 6] [--every 5] [--heads 3] [--seed 0]`. Needs root:
the disk that fills up is a small file system.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
from measuring import computer
from soak_plan import HEADS, LASTS_S, Due, Harm, draw, to_text
from soak_watch import MIB, Growth, Watch

from agileml.cluster.owned_folder import orphans
from agileml.events.run import ClockDone, RunRestarted, RunStarted
from agileml.events.schema import Log, events_of
from agileml.events.sums import ClocksDone
from agileml.runs.event_log import EVENTS, files_of, read_backwards, read_events, read_first

SAMPLE_S = 3.0
POLL_S = 0.1
UP_S = 240.0  # for the run to come up again
LOG_BYTES_PER_S = 5000.0
MOST_MIB_PER_H, MOST_DESCRIPTORS_PER_H = 10.0, 20.0
OURS = ("supervisor", "driver", "controller", "machine", "ray: gcs")  # what we ask of the last makes it grow
DISK_MIB = 24
DUTY_S = 0.05  # a slow machine runs so long, then stands still nine times as long
CONFIG = """
application: soak_job:Soaked
data: {{mark: {folder}/mark}}
clocks: {clocks}
slices: 8
machines: {{reliable: 2, transient: {transient}, max: 8}}
stage: 2
pace: {{unit_s: 0.02}}
optimizer: {{kind: momentum, learning_rate: 0.001}}
cuts: {{every_s: 1.0}}
checkpoint: {{path: {folder}/disk/saved, every_s: 2.0, keep: 2}}
max_failures: 1000000
"""
ENDLESS = 1 << 30  # clocks


class Soak:
    """One supervised run, and what is done to it."""

    def __init__(self, folder: Path, transient: int, seed: int) -> None:
        self.folder, self.out = folder, folder / "run"
        (folder / "job.yaml").write_text(CONFIG.format(folder=folder, transient=transient, clocks=ENDLESS))
        self._log = (folder / "said.txt").open("wb")
        self.run = subprocess.Popen(
            self.command("--out", str(self.out), "--supervise"), stdout=self._log, stderr=self._log,
            cwd=Path(__file__).parent,
        )  # fmt: skip
        self.watch = Watch(self.run.pid)
        self.fired: Counter[Harm] = Counter()
        self.missed: Counter[Harm] = Counter()
        self.outages_s: list[float] = []
        self._draw = random.Random(f"soak/machines/{seed}")
        self._passing: list[threading.Thread] = []
        self._sample_due_s = 0.0

    def command(self, *more: str) -> list[str]:
        return [sys.executable, "-m", "agileml.cli", "run", str(self.folder / "job.yaml"), *more]

    # -- looking --------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Wait a little, with a sample when one is due."""
        if self.run.poll() is not None:
            sys.exit(f"the run ended with {self.run.returncode}:\n{self.said()}")
        if time.monotonic() >= self._sample_due_s:
            self._sample_due_s = time.monotonic() + SAMPLE_S
            self.watch.look()
        time.sleep(POLL_S)

    def said(self) -> str:
        return "\n".join((self.folder / "said.txt").read_text().splitlines()[-30:])

    def first_clock_after(self, unix_s: float) -> float:
        """When the first clock after a moment was complete (Unix time); waits for it."""
        until_s = time.monotonic() + UP_S
        while time.monotonic() < until_s:
            newest = self._newest_clock_unix_s()
            if newest is not None and newest > unix_s:
                return newest
            self.look()
        sys.exit(f"no clock for {UP_S:g} s:\n{self.said()}")

    def _newest_clock_unix_s(self) -> float | None:
        with contextlib.suppress(OSError, ValueError):
            first = read_first(self.out / EVENTS, 8)
            began = next((e for e in first if isinstance(e.event, RunStarted)), None)
            if began is None:
                return None
            assert isinstance(began.event, RunStarted)
            for each in read_backwards(self.out / EVENTS):
                if isinstance(each.event, ClockDone | ClocksDone):
                    return began.event.unix_s - began.t_s + each.t_s
        return None

    # -- faults ---------------------------------------------------------------------------------------------

    def suffer(self, due: Due) -> float:
        """Do what is due; returns the seconds that the head was away."""
        done = self._do(due.harm)
        (self.fired if done else self.missed)[due.harm] += 1
        if not done or due.harm not in HEADS:
            return 0.0
        killed_s = time.time()
        self.outages_s.append(self.first_clock_after(killed_s + 0.5) - killed_s)
        return self.outages_s[-1]

    def _do(self, harm: Harm) -> bool:
        """False where there is nobody whom it could happen to."""
        match harm:
            case Harm.MACHINE:
                return self._signal("MachineActor", signal.SIGKILL)
            case Harm.CONTROLLER:
                return self._signal("HeadActor", signal.SIGKILL)
            case Harm.STORM:
                return all([self._kill_all("MachineActor"), self._kill_all("HeadActor")])
            case Harm.FREEZE:
                return self._for_a_while(LASTS_S[harm], 0.0)
            case Harm.SLOW:
                return self._for_a_while(LASTS_S[harm], DUTY_S)
            case Harm.SICK:
                (self.folder / "mark").touch()
                return True
            case Harm.DISK_FULL:
                return self._fill_disk(LASTS_S[harm])
            case Harm.NODE:
                return self._kill_node()
            case Harm.DRIVER | Harm.GCS:
                name = "--supervised" if harm is Harm.DRIVER else "gcs_server"
                return self._signal(name, signal.SIGKILL)
            case _:
                raise AssertionError(harm)

    def _processes(self, mark: str) -> list[psutil.Process]:
        found = []
        for process in psutil.Process(self.run.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if any(mark in word for word in process.cmdline()):
                    found.append(process)
        return sorted(found, key=lambda process: process.pid)

    def _drawn(self, mark: str) -> psutil.Process | None:
        found = self._processes(mark)
        return self._draw.choice(found) if found else None

    def _signal(self, mark: str, number: int) -> bool:
        victim = self._drawn(mark)
        if victim is None:
            return False
        with contextlib.suppress(psutil.NoSuchProcess):
            victim.send_signal(number)
            return True
        return False

    def _kill_all(self, mark: str) -> bool:
        found = self._processes(mark)
        for process in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        return bool(found)

    def _kill_node(self) -> bool:
        """The raylet of a transient machine, with all that runs on it."""
        raylets = [p for p in self._processes("raylet") if any("transient" in word for word in p.cmdline())]
        raylets = [p for p in raylets if p.name().startswith("raylet")]
        if len(raylets) < 2:  # one stays
            return False
        root = self._draw.choice(raylets)
        for process in [root, *root.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        return True

    def _for_a_while(self, seconds: float, duty_s: float) -> bool:
        """Stop a machine's process for so long; with `duty_s` it runs a tenth of that time."""
        victim = self._drawn("MachineActor")
        if victim is None:
            return False

        def act() -> None:
            until_s = time.monotonic() + seconds
            with contextlib.suppress(psutil.NoSuchProcess):
                while time.monotonic() < until_s:
                    victim.suspend()
                    time.sleep(9 * duty_s if duty_s else seconds)
                    victim.resume()
                    time.sleep(duty_s)

        self._passing.append(threading.Thread(target=act))
        self._passing[-1].start()
        return True

    def _fill_disk(self, seconds: float) -> bool:
        ballast = self.folder / "disk" / "ballast"

        def act() -> None:
            with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(1 << 16))
            time.sleep(seconds)
            ballast.unlink(missing_ok=True)

        self._passing.append(threading.Thread(target=act))
        self._passing[-1].start()
        return True

    def end(self) -> int:
        """Tell the run to stop, and wait; returns its exit code."""
        for thread in self._passing:
            thread.join()
        self.run.terminate()
        try:
            return self.run.wait(timeout=UP_S)
        except subprocess.TimeoutExpired:
            sys.exit(f"the run did not end within {UP_S:g} s:\n{self.said()}")


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """A file system of a few megabytes in `folder`."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", str(folder)]
    subprocess.run(command, check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def drive(soak: Soak, plan: Sequence[Due], seconds: float) -> None:
    """Every fault at its moment, from the first clock on. The plan's time stands still while the head is away."""
    began_s = soak.first_clock_after(0.0)
    for due in plan:
        while time.time() < began_s + due.at_s:
            soak.look()
        began_s += soak.suffer(due)
    while time.time() < began_s + seconds:
        soak.look()
    soak.first_clock_after(time.time())


def print_growth(found: Sequence[Growth]) -> list[str]:
    """A line for each process; returns sentences about ours that grow."""
    print(
        f"{'process':18} {'how many':>8} {'seen s':>7} {'MiB':>7} {'MiB/h':>16} {'descriptors':>12} {'per h':>14}"
    )
    growing = []
    for each in found:
        mib = f"{each.mib_per_h:+.1f} ± {each.mib_error_per_h:.1f}"
        descriptors = f"{each.descriptors_per_h:+.1f} ± {each.descriptors_error_per_h:.1f}"
        print(
            f"{each.kind:18} {each.processes:8} {each.watched_s:7.0f} {each.mib:7.1f} {mib:>16} {each.descriptors:12} "
            f"{descriptors:>14}{'' if each.is_known else '  too little was seen'}"
        )
        is_ours = each.kind in OURS and each.is_known
        if is_ours and not each.is_flat(MOST_MIB_PER_H, MOST_DESCRIPTORS_PER_H):
            growing.append(f"a {each.kind} grows by {mib} MiB and {descriptors} descriptors an hour")
    return growing


def digest_of(folder: Path) -> tuple[str, int]:
    summary = json.loads((folder / "summary.json").read_text())
    return summary["params_sha256"], summary["clocks"]


def same_bits(soak: Soak) -> tuple[bool, int]:
    """Whether one process computes the same, and the clocks."""
    wanted, clocks = digest_of(soak.out)
    one = soak.folder / "one"
    command = soak.command("--sequential", "--out", str(one), "--set", f"clocks={clocks}")
    subprocess.run(command, check=True, capture_output=True, cwd=Path(__file__).parent)
    return digest_of(one)[0] == wanted, clocks


def judge(soak: Soak, seconds: float) -> list[str]:
    """Print what was seen; returns what is wrong."""
    log: Log = read_events(soak.out / EVENTS)
    fired = ", ".join(f"{harm} {count}" for harm, count in sorted(soak.fired.items()))
    rate = f", one each {seconds / soak.fired.total():.1f} s: {fired}" if fired else ""
    print(f"{soak.fired.total()} faults in {seconds:.0f} s{rate}")
    if soak.missed:
        missed = ", ".join(f"{harm} {count}" for harm, count in sorted(soak.missed.items()))
        print(f"without a victim at that moment: {missed}")
    growing = print_growth(soak.watch.growth(seconds / 3))
    shared = [size / MIB for at_s, size in soak.watch.shared_bytes if at_s >= seconds / 3]
    if shared:
        print(f"shared memory: {shared[0]:.1f} MiB, at most {max(shared):.1f}, {shared[-1]:.1f} at the end")
    log_bytes = sum(file.stat().st_size for file in files_of(soak.out / EVENTS))
    bound = LOG_BYTES_PER_S * log[-1].t_s
    print(f"log: {len(log)} events, {log_bytes / 1e6:.2f} MB, bound {bound / 1e6:.2f} MB")
    restarts = events_of(log, RunRestarted)
    outages = ", ".join(f"{s:.0f}" for s in soak.outages_s)
    print(
        f"the head died {len(restarts)} times; seconds until clocks went on, where the plan killed it: {outages or '-'}"
    )
    for cause, times in Counter(each.cause for each in restarts).items():
        print(f"  {times} x {cause}")
    is_same, clocks = same_bits(soak)
    left = len(orphans())
    print(f"{clocks} clocks, bits {'the same' if is_same else 'DIFFER'}, {left} processes left")
    wrong = [*growing]
    wrong += [] if is_same else ["the bits differ"]
    wrong += [] if log_bytes <= bound else ["the log is beyond its bound"]
    wrong += [f"{left} processes are left"] if left else []
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a minute on four nodes, the head dies once")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--nodes", type=int, default=6, help="two of them reliable")
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two faults, on average")
    parser.add_argument("--heads", type=int, default=3, help="how often the head dies")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    minutes, nodes, heads = (
        (1.0, 4, 1) if arguments.quick else (arguments.minutes, arguments.nodes, arguments.heads)
    )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nothing stays
    seconds = 60 * minutes
    plan = draw(arguments.seed, seconds, arguments.every, heads, losses=max(0, nodes - 4))
    with tempfile.TemporaryDirectory(prefix="soak-") as name, small_disk(Path(name) / "disk"):
        (Path(name) / "plan.txt").write_text(to_text(plan))
        soak = Soak(Path(name), nodes - 2, arguments.seed)
        try:
            drive(soak, plan, seconds)
            code = soak.end()
        finally:
            soak.run.kill()
        print(f"{computer('Python', 'Ray')}; {nodes} Ray nodes, seed {arguments.seed}")
        if code:
            sys.exit(f"the run ended with {code}:\n{soak.said()}")
        wrong = judge(soak, seconds)
    if wrong:
        sys.exit("; ".join(wrong))


if __name__ == "__main__":
    main()
