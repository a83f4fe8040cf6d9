"""A machine's process: the pure node between a transport and a compute thread."""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from agileml.application import Application, Array
from agileml.checkpoints.errors import CheckpointError
from agileml.config.hardware import Hardware
from agileml.core.compute.spans import FOLD, SERVING, Spans
from agileml.core.compute.unit_computer import UnitComputer
from agileml.core.node.node import Node
from agileml.core.node.time_spent import Doing
from agileml.core.protocol.commands import (
    Abandon,
    Compute,
    Computed,
    Form,
    Gather,
    Introduce,
    Leave,
    NodeCommand,
    NodeEvent,
    Reduce,
    Reduced,
    SavePart,
    Send,
)
from agileml.core.protocol.messages import CONTROLLER, Cut, Failure, Message, Part, Push
from agileml.core.protocol.plan import Strike
from agileml.events.terms import Fault, Task
from agileml.net.events import Address, MessageReceived, PeerLost
from agileml.net.keys import KeyPair
from agileml.net.transport import Transport
from agileml.process.allreduce_exchange import AllReduceExchange
from agileml.process.checkpoint_io import MachineStores, PartWriter
from agileml.process.compute_backend import start_compute
from agileml.process.measurement.own_forecast import own_forecast
from agileml.process.measurement.tracing import Ping, Pong, recorder
from agileml.process.rendezvous import RendezvousBuffers
from agileml.process.run_transport import (
    KINDS,
    Peers,
    Unread,
    Usage,
    Worked,
    kind_of,
    open_transport,
    run_codec,
    urgency_of,
)
from agileml.process.spec import RunSpec
from agileml.process.steady_clock import wall_s

TICK_S = 0.02
USAGE_S = 0.5
PUSHED = KINDS.index("push")
SWITCH_S = 0.0002  # until a thread gives the GIL up: the server thread must not wait 5 ms for it


T = TypeVar("T")


class Machine:
    """Serves, backs up and computes as the controller directs, until it is released or stopped."""

    def __init__(
        self,
        name: str,
        spec: RunSpec,
        application: Application,
        node_ip: str,
        keys: KeyPair,
        head: Address,
        hardware: Hardware | None = None,
        died: Callable[[str], None] | None = None,
    ) -> None:
        """`hardware` None: one core. If a compute process ends by itself, another thread calls `died` with the reason;
        without `died` the machine reports a failure."""
        self.name = name
        self.application = application
        self.job = spec.job(application)
        self._stores = MachineStores(spec, application, self.job)
        replica = application.replica(self.job.optimizer.rate_at) if self.job.is_resident else None
        self.node = Node(name, self.job, spec.timers(), self._stores, replica)
        self._codec = run_codec()
        timeout_s = spec.config.heartbeat.timeout_s
        self._open: Callable[[], Transport] = lambda: open_transport(
            name, spec.run, node_ip, keys, timeout_s, is_ordered=self.job.may_overlap
        )
        self._transport = self._open()
        self._address = self._transport.address
        self._reachable = threading.Event()
        self._reachable.set()
        self._peers: dict[str, Address] = {head.name: head}
        self._transport.connect(head)
        work = UnitComputer(
            application,
            self.job.layout,
            self.job.parts,
            deterministic=self.job.deterministic,
            buffers=2 if self.job.may_overlap else 1,
        )
        self._inbox: queue.SimpleQueue[NodeEvent | Failure] = queue.SimpleQueue()
        self.compute, rooms = start_compute(
            name, spec, work, hardware or Hardware(), self._report, died or self._compute_process_died
        )
        self.rendezvous = RendezvousBuffers(
            rooms, self._codec, self.compute.is_at_work, lambda: self._transport.keep_off()
        )
        self._transport.place_arrays(self.rendezvous.room)
        self._own_forecast = own_forecast(spec.config, self.compute.schedstats)
        self.node.worker.forecast = self._own_forecast.forecast if self._own_forecast else None
        self._part_writer = PartWriter(self._stores.own, self._report)
        self._exchange = AllReduceExchange(name, node_ip, spec.config, self._report)
        self._sent = [0] * len(KINDS)
        self._got = [0] * len(KINDS)
        self._usage_due_s = 0.0
        self._was_idle = True
        self._recorder = recorder(spec.config, self.node, self.compute, node_ip == head.node_ip)
        self._stopping = threading.Event()
        self._failure: Failure | None = None
        self._cut_s = 0.0
        self._asked: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="server", daemon=True)

    def start(self) -> None:
        """Start the server thread."""
        sys.setswitchinterval(SWITCH_S)
        self._thread.start()

    def stop(self) -> None:
        """End both threads and close the transport. A second call does nothing."""
        self._stopping.set()
        self._transport.wake()
        self.compute.stop()
        self.application.ended()
        self._part_writer.stop()
        self._exchange.stop()
        if self._own_forecast is not None:
            self._own_forecast.stop()
        if self._thread.is_alive():
            self._thread.join(timeout=2.0)

    def join(self, timeout_s: float | None = None) -> None:
        """Wait until the machine left or was stopped, at most `timeout_s`."""
        self._thread.join(timeout_s)

    @property
    def is_running(self) -> bool:
        """False once the machine left or was stopped."""
        return self._thread.is_alive()

    @property
    def address(self) -> Address:
        """The address of its transport. During a planned cut of its link this waits for the new address."""
        self._reachable.wait()
        return self._address

    def suffer(self, strike: Strike) -> None:
        """Carry out a planned fault: a cut link, a slow machine, another speed or a full disk."""
        match strike.kind:
            case Fault.CUT:
                self._reachable.clear()
                self._cut_s = strike.seconds
                self._transport.wake()
            case Fault.SLOW:
                self.compute.slow_down(strike.factor, strike.seconds)
            case Fault.SPEED:
                self.compute.change_speed(1 / strike.factor)
            case Fault.DISK_FULL:
                self._part_writer.fill_disk(strike.seconds)
            case _:
                raise AssertionError(strike)

    def meet(self, address: Address) -> None:
        """Connect to the new address of a process of the run."""
        self._asked.put(lambda: self._connect(address))
        self._transport.wake()

    def final_blocks(self, partition: int, clock: int) -> tuple[Array, ...] | None:
        """This machine's copy of a partition in the last cut of the run, of `clock`; None if it has none."""
        # In the server thread, because another could see a cut while it replaces the previous one.
        cut = self._in_server_thread(lambda: self._final_cut(partition, clock))
        return None if cut is None else cut.blocks

    def final_slots(self, partition: int, clock: int) -> tuple[tuple[Array, ...], ...] | None:
        """The optimizer state beside `final_blocks`: by slot, then by table."""
        cut = self._in_server_thread(lambda: self._final_cut(partition, clock))
        return None if cut is None else cut.state

    def last_spans(self) -> Spans | None:
        """The spans that the profile recorded since the last report; None without a profile."""
        recorder = self._recorder
        return None if recorder is None else self._in_server_thread(recorder.end)

    def _in_server_thread(self, look: Callable[[], T]) -> T:
        """Call `look` in the server thread, or here once that thread has ended."""
        answer: Future[T] = Future()
        self._asked.put(lambda: answer.set_result(look()))
        self._transport.wake()
        while self._thread.is_alive():
            with contextlib.suppress(TimeoutError):
                return answer.result(timeout=0.1)
        return answer.result() if answer.done() else look()

    def _final_cut(self, partition: int, clock: int) -> Cut | None:
        backup = self.node.backup
        for cut in (backup.arrived(partition), backup.cut(partition)):
            if cut is not None and cut.clock == clock:
                return cut
        return None

    def bytes_sent(self) -> dict[str, int]:
        """Bytes sent to other machines, by kind of traffic."""
        return dict(zip(KINDS, self._sent, strict=True))

    # -- the server thread ----------------------------------------------------------------------------------

    def _report(self, event: NodeEvent | Failure) -> None:
        self._inbox.put(event)
        self._transport.wake()

    def _compute_process_died(self, reason: str) -> None:
        self._report(Failure(f"machine {self.name}: {reason}", ""))

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                if self._cut_s:
                    self._be_cut_off()
                self.turn()
        except CheckpointError as error:
            self._send_last(Unread(Failure(str(error), "", Task.SERVE)))
        except Exception as error:  # a bug of ours: report it, so that the run does not wait for this machine
            problem = f"{type(error).__name__}: {error}"
            self._send_last(Failure(problem, traceback.format_exc(), Task.SERVE))
        finally:
            self._reachable.set()
            self._transport.close()

    def _send_last(self, message: Failure | Unread) -> None:
        self.send(CONTROLLER, message)
        self._transport.receive(0.2)

    def _be_cut_off(self) -> None:
        """Close the transport for the length of the fault while computing goes on; then open it at a new address."""
        seconds, self._cut_s = self._cut_s, 0.0
        self._transport.close()
        self._stopping.wait(seconds)
        self._transport = self._open()
        self._transport.place_arrays(self.rendezvous.room)
        self._address = self._transport.address
        self._reachable.set()
        for address in self._peers.values():
            self._transport.connect(address)

    def turn(self) -> None:
        """One turn of the server thread: receive, answer, report. Only that thread calls it."""
        if self._own_forecast is not None:
            self._own_forecast.turn()
        while not self._asked.empty():
            self._asked.get()()
        for event in self._transport.receive(TICK_S):
            if isinstance(event, MessageReceived):
                self._received(event)
            elif isinstance(event, PeerLost):
                self.node.lost(event.name)
            elif event.name == CONTROLLER:
                self._usage_due_s = 0.0
            else:
                self.node.found(event.name)
        for name in self._transport.sending():
            self.node.receiving(name, wall_s())
        while True:
            try:
                done = self._inbox.get_nowait()
            except queue.Empty:
                break
            if isinstance(done, Failure):
                self._failure = done
                self.send(CONTROLLER, done)
            else:
                self._happened(done)
        if self._failure is None:
            self._do(self.node.tick(wall_s()))
        is_idle = self.node.spent.doing is Doing.IDLE
        if (now_s := time.monotonic()) >= self._usage_due_s or (is_idle and not self._was_idle):
            self._usage_due_s = now_s + USAGE_S
            self._report_usage()
        self._was_idle = is_idle

    def _report_usage(self) -> None:
        now_s = wall_s()
        if self._failure is not None:  # the controller may not have known this machine yet
            self.send(CONTROLLER, self._failure)
        spent = self.node.spent
        sent, got = tuple(self._sent), tuple(self._got)
        self.send(CONTROLLER, Usage(now_s, sent, got, spent.seconds(now_s), spent.units, spent.units_s))
        if rows := spent.log.take():
            self.send(CONTROLLER, Worked(rows))
        if self._recorder is not None:
            for message in self._recorder.report(now_s):
                self.send(CONTROLLER, message)

    def _received(self, event: MessageReceived) -> None:
        message = self._codec.decode(event.header, event.arrays)
        if isinstance(message, Peers):
            self._meet(message)
            return
        if isinstance(message, Pong):
            if self._recorder is not None:
                self._recorder.clock.answered(message, wall_s())
            return
        self._got[kind_of(message)] += len(event.header) + sum(array.nbytes for array in event.arrays)
        started_s = wall_s()
        commands = self.node.handle(event.sender, message, started_s)
        if isinstance(message, Push):
            self.node.spent.folded(wall_s() - started_s)
        if self._recorder is not None:
            self._recorder.served(self.node, message, started_s, wall_s())
        self._do(commands)

    def _happened(self, event: NodeEvent) -> None:
        if self._own_forecast is not None and isinstance(event, Computed):
            self._own_forecast.read()
        started_s = wall_s()
        commands = self.node.happened(event, started_s)
        if isinstance(event, Computed | Reduced):  # its own updates, or the group's sum, are folded at once
            self.node.spent.folded(wall_s() - started_s)
            if self._recorder is not None:
                self._recorder.add(SERVING, FOLD, event.clock, started_s, wall_s())
        self._do(commands)

    def _meet(self, peers: Peers) -> None:
        for address in peers.addresses:
            if address.name != self.name:
                self._connect(address)
        for name in peers.gone:
            if self._peers.pop(name, None) is not None:
                self._transport.forget(name)
                self.node.found(name)

    def _connect(self, address: Address) -> None:
        self._peers[address.name] = address
        self._transport.connect(address)

    def _do(self, commands: list[NodeCommand]) -> None:
        # Send the messages that others wait for first: a busy compute thread competes for the interpreter.
        for command in commands:
            if isinstance(command, Send):
                self.send(command.to, command.message)
        for command in commands:
            if isinstance(command, Send):
                continue
            if isinstance(command, Leave):
                self._stopping.set()
            elif isinstance(command, SavePart):
                self._part_writer.ask(command)
            elif isinstance(command, Form | Introduce | Reduce | Gather | Abandon):
                self._sent[PUSHED] += self._exchange.ask(command, self._peers)
            else:
                if isinstance(command, Compute) and not command.is_help:
                    assert self.node.view is not None
                    self.rendezvous.close(command, self.node.view.epoch)
                self.compute.ask(command)

    def send(self, to: str, message: Message | Unread | Usage | Worked | Spans | Ping) -> None:
        """Encode a message and hand it to the transport. Only the server thread calls it."""
        if self._recorder is not None and isinstance(message, Part):
            self._recorder.sent_part(message, wall_s())
        header, arrays = self._codec.encode(message)
        if self._transport.send(
            to, header, arrays, urgency=urgency_of(message) if self.job.may_overlap else 0
        ):
            self._sent[kind_of(message)] += len(header) + sum(array.nbytes for array in arrays)
