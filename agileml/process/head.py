"""The head, the controller's process: the pure controller between a transport and a record store."""

from __future__ import annotations

import queue
import secrets
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from agileml.application import Array
from agileml.checkpoints.manifest import Identity
from agileml.core.compute.spans import Spans
from agileml.core.controller.controller import Controller
from agileml.core.protocol.commands import (
    ControllerCommand,
    Finished,
    Halt,
    HaltKind,
    Happened,
    Persist,
    Released,
    Seal,
    Send,
)
from agileml.core.protocol.inputs import (
    ControllerInput,
    NodeDown,
    NodeLost,
    NodeSeen,
    NodeUp,
    Persisted,
    Received,
    StepsWritten,
    Superseded,
    Tick,
)
from agileml.core.protocol.messages import CONTROLLER, Failure, Status
from agileml.core.protocol.plan import Strike
from agileml.core.protocol.record import Record
from agileml.events.run import StepsLogged, Warned
from agileml.events.terms import Loss
from agileml.net.events import Address, MessageReceived, PeerConnected, PeerLost
from agileml.net.keys import KeyPair
from agileml.net.outbox import Done, Outbox
from agileml.process.checkpoint_io import ManifestWriter, highest_epoch, resumed, saved_before
from agileml.process.measurement.tracing import Ping, Pong
from agileml.process.record_store import RecordStore
from agileml.process.run_transport import (
    Peers,
    Unread,
    Usage,
    Worked,
    measured,
    open_transport,
    run_codec,
)
from agileml.process.spec import RunSpec
from agileml.process.steady_clock import wall_s

TICK_S = 0.05
GONE_REPEATED = 256  # names of gone machines, repeated to the others: a message may be lost


ForDriver = Happened | Released | Strike  # `state` repeats each until the driver has dealt with it


@dataclass(frozen=True)
class HeadState:
    """The state of the run, and in `pending` what the driver has not dealt with, from number `first` on.

    `address`: this controller's. A machine that is gone is in `bytes_sent` and `spent_s` one last time; one that a new
    controller has not heard yet is in neither.
    """

    address: Address
    first: int
    pending: tuple[ForDriver, ...]
    clock: int
    reported: int  # no report of a clock before this one is still to come
    stage: int
    reliable: int
    transient: int
    bytes_sent: dict[str, tuple[int, ...]]  # by machine, in the order of KINDS
    spent_s: dict[str, tuple[float, ...]]  # by machine, in the order of DOING
    worked: tuple[tuple[str, Worked], ...]  # by machine
    spans: tuple[tuple[str, Spans], ...]  # by machine; empty without a profile
    refused_handshakes: int
    finished: Finished | None
    held: Finished | None  # a cut that waits to be judged
    halted: Halt | None

    @property
    def events(self) -> tuple[Happened, ...]:
        """The events to write."""
        return tuple(each for each in self.pending if isinstance(each, Happened))

    @property
    def released(self) -> tuple[str, ...]:
        """The machines that were released."""
        return tuple(each.node for each in self.pending if isinstance(each, Released))

    @property
    def strikes(self) -> tuple[Strike, ...]:
        """The planned faults to apply."""
        return tuple(each for each in self.pending if isinstance(each, Strike))


class Head:
    """Runs one controller. Any thread may call its methods."""

    def __init__(
        self,
        spec: RunSpec,
        expected: int,
        node_ip: str,
        keys: KeyPair,
        store: RecordStore,
        name: str | None = None,
    ) -> None:
        name = name or f"c-{secrets.token_hex(4)}"  # unique, so that no two controllers write the same record
        application = spec.build()
        job = spec.job(application)
        identity = Identity.of(spec.config, job.layout.tables, spec.application, job.layout.borders)
        self._lock = threading.Lock()
        self._outbox: Outbox[ForDriver] = Outbox()
        newest = store.newest()
        look = saved_before if newest else resumed
        checkpoint = look(spec, job, identity, self._warn)
        record = Record.from_text(newest) if newest else Record(0, name, claimed=highest_epoch(spec))
        self._controller = Controller(
            name, job, spec.controller_settings(expected), spec.plan(), record, checkpoint
        )
        self._manifest_writer = ManifestWriter(
            spec, identity, lambda outcome: self._call(lambda: self._handle(outcome)), self._warn
        )
        self._store = store
        self._codec = run_codec()
        self._encoded: tuple[object, tuple[bytes, list[Array]]] = (None, (b"", []))  # the newest message
        # Well below the gap between ticks from which the controller concludes that it slept itself.
        self._tick_s = min(TICK_S, spec.config.heartbeat.timeout_s / 6)
        self._transport = open_transport(CONTROLLER, spec.run, node_ip, keys, spec.config.heartbeat.timeout_s)
        self.address = self._transport.address
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._addresses: dict[str, Address] = {}
        self._connected: set[str] = set()
        self._met_s: dict[str, float] = {}  # when a machine last spoke, or got our address
        self._meet_again_s = spec.config.heartbeat.timeout_s
        self._seen_due_s = 0.0
        self._usage: dict[str, Usage] = {}
        self._gone: deque[str] = deque(maxlen=GONE_REPEATED)
        self._to_drop: set[str] = set()  # from `_usage`, once `state` has returned it
        self._worked: list[tuple[str, Worked]] = []
        self._spans: list[tuple[str, Spans]] = []
        self._finished: Finished | None = None
        self._halted: Halt | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="controller", daemon=True)

    def start(self) -> None:
        """Start the controller's thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the loop and close the transport."""
        self._stopping.set()
        self._transport.wake()
        if self._thread.is_alive():
            self._thread.join(timeout=2.0)
        self._manifest_writer.finish(1.5)  # our caller waits for 2 s

    def register(self, address: Address, up: NodeUp, replaced: NodeUp | None = None) -> None:
        """Connect to a machine whose process is up at this address, and tell the controller.

        replaced: the dead reliable machine in whose place it came. One call tells the controller of both: if it learned
        of the death first, it would have neither and would end the run.
        """

        def meet() -> None:
            self._addresses[address.name] = address
            self._transport.connect(address)
            self._handle(up)
            if replaced is not None:
                self._note_gone(replaced, Loss.PROCESS_DIED)
            self._introduce(self._connected, address)

        self._call(meet)

    def register_gone(self, up: NodeUp, loss: Loss) -> None:
        """Tell the controller of a machine that is gone, perhaps since before this controller began.

        If the durable view names the machine, the controller must learn of its loss, even if it does not know it.
        """

        self._call(lambda: self._note_gone(up, loss))

    def _note_gone(self, up: NodeUp, loss: Loss) -> None:
        view = self._controller.view
        if view is not None and up.node in view.member_set:
            self._handle(replace(up, deadline_s=None))
        self._forget(up.node)
        self._handle(NodeDown(up.node, loss))

    def tell(self, event: ControllerInput) -> None:
        """Hand an event to the controller, such as a preemption notice, an admission or the loss of a machine."""

        def handle() -> None:
            if isinstance(event, NodeDown):
                self._forget(event.node)
            self._handle(event)

        self._call(handle)

    def state(self, written: Done | None = None) -> HeadState:
        """The state of the run; figures of work and spans are returned once.

        written: how many events the driver has written, and releases and faults it has dealt with: this controller may
        forget them. It ignores a count of another controller's. None: all that the last call returned.
        """
        with self._lock:
            if written is None or written.sender == self.address:
                self._forget_done(written)
            first, pending = self._outbox.pending()
            worked, self._worked = tuple(self._worked), []
            spans, self._spans = tuple(self._spans), []
            bytes_sent = {name: usage.bytes_sent for name, usage in self._usage.items()}
            spent_s = {name: usage.spent_s for name, usage in self._usage.items()}
            self._drop_gone()
            view = self._controller.view
            reliable, transient = self._controller.count_members()
            return HeadState(
                address=self.address,
                first=first,
                pending=pending,
                clock=self._controller.completed,
                reported=self._controller.reported,
                stage=view.stage if view else 0,
                reliable=reliable,
                transient=transient,
                bytes_sent=bytes_sent,
                spent_s=spent_s,
                worked=worked,
                spans=spans,
                refused_handshakes=self._transport.refused_handshakes,
                finished=self._finished,
                held=self._controller.held,
                halted=self._halted,
            )

    def _forget_done(self, written: Done | None) -> None:
        for each in self._outbox.drop(written.count if written is not None else None):
            if isinstance(each, Happened) and isinstance(event := each.event, StepsLogged):
                steps = event.first + len(event.positions)
                self._call(partial(self._handle, StepsWritten(event.partition, event.timeline, steps)))

    def _drop_gone(self) -> None:
        """Forget the figures of machines that are gone, once `state` has returned them."""
        for name in self._to_drop:
            self._usage.pop(name, None)
        self._to_drop.clear()

    def _warn(self, problem: str) -> None:
        """Record a problem with checkpoints that does not end the run. Any thread may call this."""
        with self._lock:
            self._outbox.append(Happened(Warned(problem), wall_s()))

    # -- the controller's thread ----------------------------------------------------------------------------

    def _call(self, action: Callable[[], None]) -> None:
        self._calls.put(action)
        self._transport.wake()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._turn()
        except Exception as error:  # a bug of ours: report it to the session
            with self._lock:
                self._halted = Halt(
                    HaltKind.BROKEN, f"controller: {type(error).__name__}: {error}", traceback.format_exc()
                )
        finally:
            self._transport.close()

    def _turn(self) -> None:
        for event in self._transport.receive(self._tick_s):
            match event:
                case MessageReceived():
                    if event.sender in self._met_s:
                        self._met_s[event.sender] = time.monotonic()
                    message = self._codec.decode(event.header, event.arrays)
                    if isinstance(message, Usage):
                        with self._lock:
                            if event.sender in self._addresses:
                                self._usage[event.sender] = message
                        self._handle(measured(event.sender, message), acts=False)  # the tick below does
                    elif isinstance(message, Worked):
                        with self._lock:
                            self._worked.append((event.sender, message))
                    elif isinstance(message, Spans):
                        with self._lock:
                            self._spans.append((event.sender, message))
                    elif isinstance(message, Unread):
                        self._unread(event.sender, message.failure)
                    elif isinstance(message, Ping):
                        header, arrays = self._codec.encode(Pong(message.sent_s, wall_s()))
                        self._transport.send(event.sender, header, arrays)
                    else:
                        self._handle(Received(event.sender, message), acts=not isinstance(message, Status))
                case PeerConnected():
                    self._connected.add(event.name)
                    self._handle(NodeSeen(event.name))
                    self._introduce([event.name], *self._addresses.values())
                    self._meet(event.name)
                case PeerLost():
                    self._connected.discard(event.name)
                    self._handle(NodeLost(event.name, event.reason))
        while True:
            try:
                self._calls.get_nowait()()
            except queue.Empty:
                break
        if (now_s := time.monotonic()) >= self._seen_due_s:
            self._seen_due_s = now_s + self._tick_s
            for name in self._connected:  # libzmq's threads answer heartbeats even while Python is busy
                self._handle(NodeSeen(name))
                if now_s - self._met_s.get(name, now_s) > self._meet_again_s:
                    self._meet(name)
        self._handle(Tick())

    def _introduce(self, names: set[str] | list[str], *addresses: Address) -> None:
        """Send machines the addresses of others. A machine that connects again gets all: it may have missed some."""
        header, arrays = self._codec.encode(Peers(addresses, tuple(self._gone)))
        for name in names:
            self._transport.send(name, header, arrays)

    def _meet(self, name: str) -> None:
        """Tell a machine the address of this controller until it speaks: it may know only the one before.

        A controller that has stopped, perhaps because another one has replaced it, tells nothing.
        """
        if self._halted is None:
            self._met_s[name] = time.monotonic()
            self._introduce([name], self.address)

    def _forget(self, name: str) -> None:
        self._addresses.pop(name, None)
        self._connected.discard(name)
        self._met_s.pop(name, None)
        self._transport.forget(name)
        if name not in self._gone:
            self._gone.append(name)
        with self._lock:
            self._to_drop.add(name)

    def _unread(self, machine: str, failure: Failure) -> None:
        """Let the controller judge a machine that could not read a checkpoint.

        The controller sends the first such machine away: the reason may be its own mount. If it ends the run, the
        user's code is not at fault (`HaltKind.UNREAD`): the run can go on once its checkpoints can be read.
        """
        was_halted = self._halted is not None
        self._handle(Received(machine, failure))
        with self._lock:
            if self._halted is not None and not was_halted:
                self._halted = replace(self._halted, kind=HaltKind.UNREAD, kept=None)

    def _handle(self, event: ControllerInput, *, acts: bool = True) -> None:
        with self._lock:
            for command in self._controller.handle(event, wall_s(), acts=acts):
                self._do(command)

    def _do(self, command: ControllerCommand) -> None:
        match command:
            case Send():
                # A view is large, and all machines get the same.
                if command.message != self._encoded[0]:
                    self._encoded = command.message, self._codec.encode(command.message)
                self._transport.send(command.to, *self._encoded[1])
            case Persist():
                done = self._store.create(command.number, command.text)
                answer = Persisted(command.number) if done else Superseded(command.number)
                self._calls.put(lambda: self._handle(answer))
                self._transport.wake()
            case Seal():
                self._manifest_writer.ask(command)
            case Happened() | Released() | Strike():
                self._outbox.append(command)
            case Finished():
                self._finished = command
            case Halt():
                self._halted = command
