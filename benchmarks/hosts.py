"""Several hosts on one machine: network namespaces on a bridge, with shaped links and CPU quotas. Needs root, iproute2.

Each host has its own address and a link of its own, shaped both ways, and may be held to a share of a CPU. The
machine itself is on the bridge too, unshaped: what is measured must be a host. All hosts share one file system.

    with Hosts(8, Link("200mbit")) as hosts:
        hosts.start(0, ["iperf3", "-s"])

What belongs to it carries a number that a locked file guards. A lock dies with its process, so what a killed one left
behind is found, ended and removed by the next that starts. By hand:
`python benchmarks/hosts.py up 4 --rate 200mbit --delay-ms 5 --cpus 0.5` (until Ctrl-C), in another terminal
`ip netns exec proteus0h1 CMD`; `python benchmarks/hosts.py clean` removes what killed ones left.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Any, Self

LOCKS = Path("/run/proteus-hosts")
CGROUPS = Path("/sys/fs/cgroup")
MOST_LABS, MOST_HOSTS = 40, 99
QUOTA_PERIOD_US = 20_000  # of a CPU quota: short, so that a host that used up its share is not away for long
TCP_SHARE = 1448 / 1514  # of a link's bytes: what is not headers
SPACE = re.compile(r"proteus(\d+)h\d+$")


class HostsError(Exception):
    """There can be no hosts here; the text is one sentence that says why."""


@dataclass(frozen=True)
class Link:
    """A host's link, the same in both directions. `rate` as tc writes it (200mbit), None: not shaped."""

    rate: str | None = None
    delay_ms: float = 0.0  # one way, added at the sender

    def __str__(self) -> str:
        delay = f", {self.delay_ms:g} ms" if self.delay_ms else ""
        return f"{self.rate or 'not shaped'}{delay}"

    @property
    def bytes_per_s(self) -> float:
        """What the link carries in a second and direction, headers included."""
        found = re.fullmatch(r"([\d.]+)([kmg]?)bit", self.rate or "")
        if found is None:
            raise HostsError(f"link: found the rate {self.rate!r}, expected one such as 200mbit or 1gbit")
        return float(found[1]) * {"": 1, "k": 1e3, "m": 1e6, "g": 1e9}[found[2]] / 8

    @property
    def payload_bytes_per_s(self) -> float:
        """The same without headers."""
        return self.bytes_per_s * TCP_SHARE


class Hosts:
    """A context manager: hosts 0 .. count - 1, ended with everything that runs in them. Raises HostsError."""

    def __init__(self, count: int, link: Link | None = None, *, cpus: float | None = None) -> None:
        """`cpus`: the share of a CPU that each host may use, None for no limit."""
        if not 1 <= count <= MOST_HOSTS:
            raise HostsError(f"hosts: found {count}, expected 1 to {MOST_HOSTS}")
        self.count, self.link = count, link or Link()
        self._cpus = cpus
        self._lock: IO[str] | None = None
        self._lab = -1
        self._sigterm_before: Any = None
        self._started: list[subprocess.Popen[Any]] = []

    def __enter__(self) -> Self:
        why = why_not()
        if why is not None:
            raise HostsError(why)
        clean()
        self._lab, self._lock = _free_lab()
        self._sigterm_before = signal.signal(signal.SIGTERM, _leave)
        try:
            _remove(self._lab)
            self._make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is None:
            return
        with _undisturbed():
            for process in self._started:  # one that just started may not be in its namespace yet
                process.kill()
                process.wait()
            _remove(self._lab)
            self._lock.close()
            self._lock = None
            signal.signal(signal.SIGTERM, self._sigterm_before)

    @property
    def here(self) -> str:
        """The address of this machine on the bridge; not shaped."""
        return _address(self._lab, 1)

    def address(self, host: int) -> str:
        """The IP address of a host."""
        return _address(self._lab, 11 + host)

    def space(self, host: int) -> str:
        """The name of its network namespace."""
        return _space(self._lab, host)

    def start(self, host: int, command: Sequence[str], **popen: Any) -> subprocess.Popen[Any]:
        """Start a command on a host, with the arguments of subprocess.Popen."""
        inside = ["ip", "netns", "exec", self.space(host), *command]
        if self._cpus is not None:  # it joins the group before it becomes the command: its children follow
            procs = _cgroup(self._lab, host) / "cgroup.procs"
            inside = ["sh", "-c", f'echo $$ > {procs} && exec "$@"', "sh", *inside]
        process = subprocess.Popen(inside, **popen)
        self._started.append(process)
        return process

    def shape(self, host: int, link: Link) -> None:
        """Change a host's link."""
        for inside, device in ((_space(self._lab, host), "eth0"), (None, _veth(self._lab, host))):
            _shape(inside, device, link)

    def traffic(self, host: int) -> tuple[int, int]:
        """Bytes that a host has sent and received, as its link's other end counts them: large segments, with one
        header each."""
        counts = Path("/sys/class/net", _veth(self._lab, host), "statistics")
        return int((counts / "rx_bytes").read_text()), int((counts / "tx_bytes").read_text())

    def _make(self) -> None:
        bridge = _bridge(self._lab)
        _ip("link", "add", bridge, "type", "bridge")
        _ip("addr", "add", f"{self.here}/24", "dev", bridge)
        _ip("link", "set", bridge, "up")
        for host in range(self.count):
            space, veth = _space(self._lab, host), _veth(self._lab, host)
            _ip("netns", "add", space)
            _ip("link", "add", veth, "type", "veth", "peer", "name", "eth0", "netns", space)
            _ip("link", "set", veth, "master", bridge, "up")
            _ip("-n", space, "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
            _ip("-n", space, "link", "set", "eth0", "up")
            _ip("-n", space, "link", "set", "lo", "up")
            self.shape(host, self.link)
            if self._cpus is not None:
                _limit_cpus(_cgroup(self._lab, host), self._cpus)


def why_not() -> str | None:
    """Why there can be no hosts here: one sentence, None if there can."""
    if os.geteuid() != 0:
        return "hosts of its own need root: network namespaces, shaped links and quotas are made by root only"
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            return f"hosts of its own need iproute2: {tool} is not installed"
    return None


def clean() -> None:
    """End and remove what hosts of killed processes left behind."""
    LOCKS.mkdir(mode=0o700, exist_ok=True)
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    names = [line.split()[0] for line in listed.splitlines() if line]
    labs = {int(found[1]) for name in names if (found := SPACE.match(name))}
    for lab in sorted(labs):
        if (lock := _try_lock(lab)) is not None:
            with lock:
                _remove(lab)


# -- one lab: everything with the same number ----------------------------------------------------------------


def _bridge(lab: int) -> str:
    return f"proteus{lab}"


def _space(lab: int, host: int) -> str:
    return f"proteus{lab}h{host}"


def _veth(lab: int, host: int) -> str:
    return f"proteus{lab}v{host}"


def _address(lab: int, last: int) -> str:
    return f"10.{210 + lab}.0.{last}"


def _try_lock(lab: int) -> IO[str] | None:
    """The open file that says this number is ours; None when another process has it."""
    file = open(LOCKS / f"{lab}.lock", "w")  # noqa: SIM115  it stays open as long as the hosts live
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


def _free_lab() -> tuple[int, IO[str]]:
    for lab in range(MOST_LABS):
        if (lock := _try_lock(lab)) is not None:
            return lab, lock
    raise HostsError(f"hosts: found {MOST_LABS} sets of hosts in use, expected one to be free")


def _remove(lab: int) -> None:
    spaces = Path("/run/netns")
    for path in sorted(spaces.glob(f"{_space(lab, 0)[:-1]}*")) if spaces.exists() else []:
        _end_processes(path.name)
        # Its peer inside goes with it at once; the namespace itself may outlive its name.
        _ip("link", "del", path.name.replace("h", "v"), check=False)
        _ip("netns", "del", path.name)
    for group in _groups():
        for folder in group.glob(f"{_space(lab, 0)[:-1]}*"):
            _remove_cgroup(folder)
    _ip("link", "del", _bridge(lab), check=False)


def _end_processes(space: str) -> None:
    """Kill what runs in a namespace and wait until it is gone."""
    for _ in range(100):
        found = subprocess.run(["ip", "netns", "pids", space], capture_output=True, text=True, check=True)
        pids = [int(pid) for pid in found.stdout.split()]
        if not pids:
            return
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _ip(*arguments: str, check: bool = True) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise HostsError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


def _shape(space: str | None, device: str, link: Link) -> None:
    """A token bucket for the rate; what is delayed is delayed after it, where the sender's packets leave."""
    tc = ["tc"] if space is None else ["tc", "-n", space]
    subprocess.run([*tc, "qdisc", "del", "dev", device, "root"], capture_output=True, check=False)
    steps = []
    if link.rate is not None:
        bucket = ["tbf", "rate", link.rate, "burst", "256kb", "latency", "100ms"]
        steps.append(["root", "handle", "1:", *bucket])
    if link.delay_ms and space is not None:
        at = ["parent", "1:1"] if steps else ["root"]
        steps.append([*at, "netem", "delay", f"{link.delay_ms}ms", "limit", "100000"])
    for step in steps:
        done = subprocess.run(
            [*tc, "qdisc", "add", "dev", device, *step], capture_output=True, text=True, check=False
        )
        if done.returncode:  # a kernel may lack a kind, netem for instance
            kind = next(word for word in step if word in ("tbf", "netem"))
            raise HostsError(f"tc cannot shape a link to {link} with {kind}: {done.stderr.strip()}")


# -- CPU quotas, with either version of cgroups ---------------------------------------------------------------


def _groups() -> list[Path]:
    """The folder in which groups with CPU quotas are made, if there is one."""
    if (CGROUPS / "cpu").is_dir():
        return [CGROUPS / "cpu"]
    return [CGROUPS] if (CGROUPS / "cgroup.controllers").exists() else []


def _cgroup(lab: int, host: int) -> Path:
    if not _groups():
        raise HostsError(f"hosts: no CPU quotas here: {CGROUPS} is no mounted cgroup hierarchy with cpu")
    return _groups()[0] / _space(lab, host)


def _limit_cpus(group: Path, cpus: float) -> None:
    quota_us = max(1000, round(cpus * QUOTA_PERIOD_US))
    try:
        if group.parent == CGROUPS:  # version 2
            (CGROUPS / "cgroup.subtree_control").write_text("+cpu")
            group.mkdir()
            (group / "cpu.max").write_text(f"{quota_us} {QUOTA_PERIOD_US}")
        else:
            group.mkdir()
            (group / "cpu.cfs_period_us").write_text(str(QUOTA_PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(quota_us))
    except OSError as error:
        raise HostsError(f"hosts: this system grants no CPU quota ({error})") from None


def _remove_cgroup(folder: Path) -> None:
    for _ in range(100):
        try:
            folder.rmdir()
            return
        except OSError:  # its last process is still going
            time.sleep(0.02)


# -- ends ---------------------------------------------------------------------------------------------------


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Signals wait until the removal is done."""
    signals = {signal.SIGINT, signal.SIGTERM}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def main() -> None:
    parser = argparse.ArgumentParser(description="Several hosts with shaped links on this machine.")
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="make hosts and keep them until Ctrl-C")
    up.add_argument("count", type=int)
    up.add_argument("--rate", help="of each link, each way: 200mbit, 1gbit")
    up.add_argument("--delay-ms", type=float, default=0.0)
    up.add_argument("--cpus", type=float, help="CPUs that each host may use")
    commands.add_parser("clean", help="remove what killed ones left")
    arguments = parser.parse_args()
    try:
        if arguments.command == "clean":
            if (why := why_not()) is not None:
                raise HostsError(why)
            clean()
            return
        link = Link(arguments.rate, arguments.delay_ms)
        with Hosts(arguments.count, link, cpus=arguments.cpus) as hosts:
            for host in range(hosts.count):
                print(f"{hosts.address(host)}  ip netns exec {hosts.space(host)} CMD")
            print(f"{hosts.here}  this machine, not shaped; Ctrl-C ends it all", flush=True)
            signal.pause()
    except HostsError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        print()


if __name__ == "__main__":
    main()
