"""A run on a market in one process: the real controller, service and machines, as threads over sockets; no Ray."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from agileml.application import Array, Unit, Updates
from agileml.apps.logistic_regression import LabelledSlice, LogisticRegression
from agileml.cluster.fleet import Admitted, Appeared, FleetEvent, Leaving, Stopping, Vanished
from agileml.cluster.ray_cluster import TieredNode
from agileml.config.job import JobConfig, dump, from_values
from agileml.core.protocol.inputs import Admit, NodeDown, NodeUp, Notice, Stop
from agileml.core.sequential import run_sequential
from agileml.errors import RunError
from agileml.events.run import RunFinished
from agileml.events.schema import E, Log, events_of
from agileml.events.terms import Tier
from agileml.market.fleet import MarketFleet, Settlement
from agileml.market.nodes import tier_of
from agileml.market.setup import first_decision, set_up
from agileml.net.keys import KeyPair
from agileml.process.head import Head
from agileml.process.machine import Machine as Process
from agileml.process.record_store import FileStore
from agileml.process.spec import RunSpec
from agileml.runs.event_log import read_events
from agileml.runs.folder import RunFolder
from agileml.runs.model_file import params_sha256
from agileml.runs.report.page import build_report
from agileml.runs.summary import summarize
from bidbrain.live.cloud import Cloud, CloudError, CredentialsError, Instance
from bidbrain.live.job import Timekeeper
from bidbrain.live.replay import MarketClock, Replay, Warnings

NODE_IP = "127.0.0.1"
LIMIT_S = 600.0
LOOK_S = 0.05  # between two looks at the log of a run that is held
HELD = "tests.agileml.market.market_rig:Held"


class Held(LogisticRegression):
    """Computes no clock from `at` on before the gate opens: what is to happen during a run does, however fast or busy
    the computer is."""

    at = 1 << 40
    gate = threading.Event()

    def process(self, unit: Unit, items: LabelledSlice, parameters: Mapping[str, Array]) -> Updates:
        self._wait(unit)
        return super().process(unit, items, parameters)

    def process_many(
        self,
        units: Sequence[Unit],
        items: Sequence[Any],
        rows: Mapping[str, Array],
        parameters: Mapping[str, Array],
    ) -> Updates:
        self._wait(units[0])
        return super().process_many(units, items, rows, parameters)

    def _wait(self, unit: Unit) -> None:
        assert unit.clock < Held.at or Held.gate.wait(LIMIT_S), "what the run waits for did not happen"


class InstantNodes:
    """Machines are there when their boot is over; one that ends takes its process along at once."""

    def __init__(self, boot_s: int) -> None:
        self._boot_s = boot_s
        self._there: dict[str, Instance] = {}
        self.processes: dict[str, Process] = {}  # by machine id, which is the node's too
        self.killed: list[str] = []
        self._lock = threading.Lock()

    @property
    def warm(self) -> tuple[TieredNode, ...]:
        return ()

    def start(self, machine: Instance) -> None:
        with self._lock:
            self._there[machine.instance_id] = machine

    def kill(self, instance_id: str) -> None:
        with self._lock:
            if self._there.pop(instance_id, None) is None:
                return
            process = self.processes.pop(instance_id, None)
        if process is not None:
            self.killed.append(instance_id)
            process.stop()

    def present(self, wanted: Mapping[str, Instance], now_s: int) -> dict[str, TieredNode]:
        with self._lock:
            return {
                name: TieredNode(name, NODE_IP, tier_of(machine), machine.token)
                for name, machine in self._there.items()
                if name in wanted
                and (tier_of(machine) is Tier.RELIABLE or now_s >= machine.launched_s + self._boot_s)
            }

    def missing(self, nodes: set[str]) -> set[str]:
        return set()

    def run(self, node_id: str, process: Process) -> None:
        """A process was started there, if the machine still is."""
        with self._lock:
            if node_id in self._there:
                self.processes[node_id] = process
                return
        process.stop()


class Moody:
    """A market that fails now and then: every so many calls there are no credentials."""

    def __init__(self, market: Replay, every: int) -> None:
        self._market, self.every = market, every
        self.calls = self.failures = 0
        self.error: type[CloudError] = CredentialsError

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._market, name)
        if name not in ("quotes", "acquire", "release", "ended", "held"):
            return found

        def call(*arguments: Any) -> Any:
            self.calls += 1
            if self.calls % self.every == 0:
                self.failures += 1
                raise self.error("no credentials just now")
            answer = found(*arguments)
            if self.calls % self.every == self.every // 2 and name == "acquire":
                self.failures += 1
                raise self.error("no credentials for the answer")
            return answer

        return call


class StoppedClock:
    """Seconds since `go`, 0 before."""

    def __init__(self) -> None:
        self._began_s: float | None = None

    def __call__(self) -> float:
        return 0.0 if self._began_s is None else time.monotonic() - self._began_s

    def go(self) -> None:
        if self._began_s is None:
            self._began_s = time.monotonic()


class InstantBackend:
    """No cluster: what a market gives is there. `seconds`: by which market time passes."""

    warm = 0
    leave_s = 2.0

    def __init__(self, config: JobConfig, setup: Any) -> None:
        self._config, self._setup = config, setup
        self.nodes = InstantNodes(config.market.boot_s)  # type: ignore[union-attr]
        self.clock: MarketClock | None = None
        self.seconds: Callable[[], float] = time.monotonic
        self.fails_every = 0
        self.may_leave = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self.may_leave or not self.nodes.processes, "every machine was given back"

    def runtime_env(self, variables: Mapping[str, str]) -> dict[str, Any]:
        return {}

    def check(self) -> None:
        pass  # there is no head

    def risk_keeper(self) -> None:
        return None

    def open(self, stopping: threading.Event, folder: Path) -> tuple[Cloud, Timekeeper]:
        market = self._config.market
        speed = market.speed  # type: ignore[union-attr]
        self.clock = MarketClock(self._setup.start_s, speed, 0.02, self.seconds, stopping.wait)
        warnings = Warnings(market.notice_s, market.silent_share, market.seed)  # type: ignore[union-attr]
        self.market = Replay(self._setup.plan.setting, self.clock.now_s, self.nodes, warnings)
        if self.fails_every:
            self.moody = Moody(self.market, self.fails_every)
            return self.moody, self.clock
        return self.market, self.clock


@dataclass
class Ran:
    """What a run left."""

    tables: dict[str, Array]
    clock: int
    settlement: Settlement
    events: Log
    summary: dict[str, Any]
    folder: Path
    killed: list[str] = field(default_factory=list)

    def of(self, kind: type[E]) -> list[E]:
        return events_of(self.events, kind)

    @property
    def sha256(self) -> str:
        return params_sha256(self.tables)


class MarketRig:
    """Does what session, cast and conductor do, with threads."""

    def __init__(
        self,
        values: Mapping[str, Any],
        folder: Path,
        resume: str | None = None,
        interrupt_at: int | None = None,
        backend: Callable[[MarketRig], Any] | None = None,
        unit_s: float | None = None,
    ) -> None:
        """interrupt_at: Ctrl-C comes after so many clocks. backend: None for a played market."""
        self._interrupt_at = interrupt_at
        self.on_clock: Callable[[int], None] = lambda clock: None
        self._until: Callable[[Log], bool] | None = None
        self._look_s = 0.0
        self._is_held = False
        self.with_report = False
        self.config = from_values(values)
        self.setup = set_up(self.config, "job", secrets.token_hex(4), int(time.time()))
        self.backend = backend(self) if backend is not None else self._played()
        unit_s = self.setup.pacing.unit_s if unit_s is None else unit_s
        self.spec = RunSpec(secrets.token_hex(4), self.config, resume=resume, unit_s=unit_s)
        self.fleet = MarketFleet(
            self.setup, self.backend, clocks=self.config.clocks, reliable=self.config.machines.reliable
        )
        self.folder = RunFolder.create(folder / "run", "job")
        self._names: dict[str, str] = {}  # node -> the machine of the run
        self._nodes: dict[str, str] = {}
        self._wall_start_s = time.time() - self.folder.events.now_s

    def _played(self) -> InstantBackend:
        first_decision(self.setup)
        return InstantBackend(self.config, self.setup)

    def hold(self, at: int, until: Callable[[Log], bool]) -> None:
        """Compute no clock from `at` on until the run's log is so. For a run of `Held`."""
        assert self.config.application == HELD and at < self.config.clocks
        self._until = until
        Held.at = at
        Held.gate.clear()

    def _look(self, clock: int) -> None:
        """Open the gate if the log is as a run that is held waits for it. An eviction may take the run back to an
        earlier clock, while machines wait at the gate."""
        self._is_held |= clock >= Held.at
        if self._until is None or not self._is_held or time.monotonic() < self._look_s:
            return
        self._look_s = time.monotonic() + LOOK_S
        if self._until(read_events(self.folder.events.path)):
            self._until = None
            Held.gate.set()

    def run(self) -> Ran:
        keys = KeyPair.generate()
        head = Head(
            self.spec, self.config.machines.reliable, NODE_IP, keys, FileStore(self.folder.path / "records")
        )
        self.head = head
        head.start()
        try:
            with self.fleet:
                self.fleet.attach(self.folder)
                tables, clock = self._conduct(head, keys)
                self.fleet.ended(clock)
        finally:
            Held.gate.set()
            Held.at = 1 << 40
            head.stop()
            for process in list(self.backend.nodes.processes.values()):
                process.stop()
        if self.fleet.left:
            raise RunError(self.fleet.left)  # (a session writes the result all the same)
        assert self.fleet.settlement is not None
        self.folder.events.write(RunFinished(self.folder.events.now_s))
        self.folder.events.close()
        events = read_events(self.folder.events.path)
        what: dict[str, Any] = {
            "params_sha256": params_sha256(tables),
            "metrics": {},
            "split": {},
            "versions": {},
        }
        summary = summarize(events, self.config, **what) | {"market": self.fleet.summary()}
        self.folder.write_summary(summary)
        if self.with_report:
            self.folder.write_report(build_report(dump(self.config), events, summary))
        return Ran(
            tables, clock, self.fleet.settlement, events, summary, self.folder.path, self.backend.nodes.killed
        )

    def _conduct(self, head: Head, keys: KeyPair) -> tuple[dict[str, Array], int]:
        until_s = time.monotonic() + LIMIT_S
        while True:
            for event in self.fleet.poll():
                self._happened(event, head, keys)
            state = head.state()
            for happened in state.events:
                self.fleet.happened(happened, self._nodes.__getitem__)
                self.folder.events.write(happened.event, t_s=happened.at_s - self._wall_start_s)
            if self._interrupt_at is not None and state.clock >= self._interrupt_at:
                raise KeyboardInterrupt
            self.on_clock(state.clock)
            self._look(state.clock)
            for name in state.released:
                self.fleet.release(self._nodes[name])
            assert state.halted is None, state.halted
            if state.finished is not None:
                parts = [
                    self._process(backup).final_blocks(partition, state.finished.clock)
                    for partition, backup in enumerate(state.finished.backup)
                ]
                whole = [blocks for blocks in parts if blocks is not None]
                assert len(whole) == len(parts)
                return self._process(state.finished.backup[0]).job.layout.whole(whole), state.finished.clock
            assert time.monotonic() < until_s, state
            time.sleep(0.01)

    def _process(self, name: str) -> Process:
        return self.backend.nodes.processes[self._nodes[name]]

    def _happened(self, event: FleetEvent, head: Head, keys: KeyPair) -> None:
        match event:
            case Appeared(node, admitted):
                name = f"m{len(self._nodes)}"
                self._names[node.node_id], self._nodes[name] = name, node.node_id
                process = Process(name, self.spec, self.spec.build(), NODE_IP, keys, head.address)
                process.start()
                self.backend.nodes.run(node.node_id, process)
                head.register(process.address, NodeUp(name, node.tier, admitted))
                self.fleet.started(node.node_id)
            case Admitted(node_id, speed):
                name = self._names[node_id]
                self._process(name).compute.change_speed(speed)
                head.tell(Admit(name, speed))
            case Vanished(node_id, loss):
                head.tell(NodeDown(self._names[node_id], loss))
            case Leaving(node_id, deadline_s):
                head.tell(Notice(self._names[node_id], deadline_s))
            case Stopping(deadline_s):
                head.tell(Stop(deadline_s))


def reference(config: JobConfig) -> str:
    """The params_sha256 of the sequential run."""
    spec = RunSpec("reference", config)
    application = spec.build()
    tables = run_sequential(
        application,
        optimizer=spec.job(application).optimizer,
        clocks=config.clocks,
        parts=config.units_per_slice,
        deterministic=config.deterministic,
    )
    return params_sha256(tables)
