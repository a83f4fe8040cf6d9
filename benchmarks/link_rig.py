"""Runs of the engine on hosts with real links: a machine's process on each host, the controller beside them.

Processes are started once and serve one run after the other, so that variants can be measured in turn. The machines
are those of `proteus run`, without Ray to start them: the same controller, nodes and transport with keys.
"""

from __future__ import annotations

import contextlib
import os
import platform
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any, Self

import numpy as np
import process_environment
import zmq
from hosts import Hosts, HostsError, Link

from agileml.application import Application
from agileml.config.job import from_values
from agileml.core.protocol.commands import Happened
from agileml.core.protocol.inputs import NodeUp
from agileml.driver.sent_bytes import SentBytes
from agileml.events.run import ClockDone
from agileml.events.schema import E
from agileml.events.terms import Tier
from agileml.net.keys import KeyPair
from agileml.process.head import Head, HeadState
from agileml.process.record_store import FileStore
from agileml.process.spec import RunSpec

LIMIT_S = 120.0
WARM_UP = 3  # clocks that are not counted: connections are made, buffers are touched for the first time
ENVIRONMENT = {
    **process_environment.ENVIRONMENT,
    "TORCH_CPP_LOG_LEVEL": "ERROR",  # these hosts have no names
}
RELIABLE, TRANSIENT = Tier.RELIABLE, Tier.TRANSIENT


@dataclass
class Ran:
    """A run: when each clock ended (Unix time in s), what the controller noted, what crossed the links."""

    ends_s: list[float] = field(default_factory=list)
    first_ends_s: list[float] = field(default_factory=list)  # when a clock ended, also those that ended again
    events: list[Happened] = field(default_factory=list)
    traffic: list[tuple[float, list[tuple[int, int]]]] = field(default_factory=list)
    sent: SentBytes = field(default_factory=SentBytes)

    def seconds(self, first: int = WARM_UP, last: int | None = None) -> list[float]:
        """The length of clocks first .. last - 1."""
        return [after - before for before, after in pairwise(self.ends_s[first - 1 : last])]

    def clock_s(self, first: int = WARM_UP, last: int | None = None) -> float:
        """Seconds of a clock, the mean: what happens beside it every few clocks counts."""
        return statistics.fmean(self.seconds(first, last))

    def bytes_per_clock(self, first: int) -> list[tuple[float, float]]:
        """Bytes that each host sent and received in a clock, from clock `first` on."""
        at_s = np.array([at for at, _ in self.traffic])
        counts = np.array([counts for _, counts in self.traffic], float)
        ends = self.ends_s[first - 1 :]
        begin, end = (
            [[np.interp(at, at_s, counts[:, host, way]) for way in (0, 1)] for host in range(counts.shape[1])]
            for at in (ends[0], ends[-1])
        )
        found = (np.array(end) - np.array(begin)) / (len(ends) - 1)
        return [(float(sent), float(received)) for sent, received in found]

    def of(self, kind: type[E]) -> list[E]:
        """The events of a class."""
        return [each.event for each in self.events if isinstance(each.event, kind)]


Watch = Callable[[Head, HeadState, "Ran"], None]


class Rig:
    """A context manager: hosts with a process on each. Raises HostsError."""

    def __init__(self, count: int, link: Link, *, cpus: float | None = None) -> None:
        self.hosts = Hosts(count, link, cpus=cpus)
        self._pipes: list[Connection] = []
        self._children: list[subprocess.Popen[Any]] = []
        self._dead: set[int] = set()

    def __enter__(self) -> Self:
        self.hosts.__enter__()
        try:
            self._start()
        except BaseException:
            self.hosts.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in self._pipes:
            pipe.close()
        self.hosts.__exit__()  # what is left of the processes ends with their hosts
        for child in self._children:
            child.wait()

    def _start(self) -> None:
        script = str(Path(__file__).with_name("host_machine.py"))
        with tempfile.TemporaryDirectory() as folder:
            key = secrets.token_bytes(16)
            with Listener(f"{folder}/rig", authkey=key) as listener:
                for host in range(self.hosts.count):
                    command = [sys.executable, script, f"{folder}/rig"]
                    environment = os.environ | ENVIRONMENT
                    child = self.hosts.start(host, command, env=environment, stdin=subprocess.PIPE, text=True)
                    self._children.append(child)
                    assert child.stdin is not None
                    child.stdin.write(key.hex() + "\n")
                    child.stdin.close()
                    self._pipes.append(listener.accept())

    def call(self, hosts: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """function(*arguments, rank) on the first hosts at once; the answers."""
        for rank in range(hosts):
            self._pipes[rank].send((function, (*arguments, rank)))
        return [self._pipes[rank].recv() for rank in range(hosts)]

    def kill(self, rank: int) -> None:
        """Kill a host's process; nothing runs there any more."""
        self._children[rank].kill()
        self._dead.add(rank)

    def run(
        self,
        tiers: list[Tier],
        values: Mapping[str, Any],
        application: Application,
        watch: Watch | None = None,
        waiting: int = 0,
    ) -> Ran:
        """Train on the first len(tiers) hosts. The last `waiting` machines are there but wait for admission."""
        keys = KeyPair.generate()
        count = len(tiers)
        machines = {"reliable": tiers.count(RELIABLE), "transient": tiers.count(TRANSIENT) - waiting}
        defaults = {
            "application": "mlr",  # named, not used: the application is given
            "optimizer": {"kind": "sgd", "learning_rate": 0.001},
            "slices": 8,
            "deterministic": False,
            "heartbeat": {"interval_s": 0.5, "timeout_s": 5.0},
        }
        config = from_values({**defaults, "machines": {**machines, "max": count}, **values})
        spec = RunSpec(secrets.token_hex(4), config, application)
        spec = spec.measured(spec.build())
        ran = Ran()
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            head = Head(spec, count, self.hosts.here, keys, FileStore(Path(folder) / "records"))
            head.start()
            try:
                for rank in range(count):
                    halves = keys.public, keys.secret
                    told = (f"m{rank}", spec, self.hosts.address(rank), halves, head.address)
                    self._pipes[rank].send(("machine", told))
                addresses = [self._pipes[rank].recv() for rank in range(count)]
                for rank, (address, tier) in enumerate(zip(addresses, tiers, strict=True)):
                    admitted = rank < count - waiting
                    head.register(address, NodeUp(address.name, tier, admitted))
                self._follow(head, ran, count, watch)
            finally:
                with contextlib.suppress(EOFError, OSError):  # killed with this process
                    alive = [rank for rank in range(count) if rank not in self._dead]
                    for rank in alive:
                        self._pipes[rank].send(("stop", ()))
                    for rank in alive:
                        self._pipes[rank].recv()
                head.stop()
        return ran

    def _follow(self, head: Head, ran: Ran, count: int, watch: Watch | None) -> None:
        """Until the last clock's end is known."""
        ends: dict[int, float] = {}
        until_s = time.monotonic() + LIMIT_S
        while True:
            ran.traffic.append((time.time(), [self.hosts.traffic(host) for host in range(count)]))
            state = head.state()
            ran.events += state.events
            for happened in state.events:
                if isinstance(happened.event, ClockDone):
                    ends[happened.event.clock] = happened.at_s
                    ran.first_ends_s.append(happened.at_s)
            ran.ends_s = [ends[clock] for clock in sorted(ends)]
            ran.sent.add(state.bytes_sent)
            if state.halted is not None:
                sys.exit(f"the engine stopped: {state.halted.reason}\n{state.halted.trace}")
            if state.finished is not None:
                return
            if time.monotonic() > until_s:
                sys.exit(f"the engine stood still at clock {state.clock}: {ran.events[-3:]}")
            if watch is not None:
                watch(head, state, ran)
            time.sleep(0.01)


def machine_line() -> str:
    """Machine, load and versions, for the head of a table."""
    return (
        f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores {platform.machine()}, Linux {platform.release()}, "
        f"load {os.getloadavg()[0]:.1f}, python {platform.python_version()}, numpy {np.__version__}, "
        f"pyzmq {zmq.__version__}, libzmq {zmq.zmq_version()}"
    )


def or_skip(main: Callable[[], None]) -> None:
    """Run a benchmark; where there can be no hosts say why in a sentence. With --quick that is no failure."""
    try:
        main()
    except HostsError as error:
        if "--quick" in sys.argv:
            print(f"skipped: {error}")
        else:
            sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit("interrupted")
