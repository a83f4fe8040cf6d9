"""All-reduce over the machines of an epoch by torch.distributed: one process group per epoch, abandoned at a change.

Machines meet over the run's own messages instead of a TCPStore: the members of a group exchange what they must know of
each other in `Met` and `Introduce`, authenticated and encrypted like all messages. The sums are not: gloo and NCCL
connect the machines without keys. See docs/guides/guarantees.md.

Only its own timeout or the end of a peer's process interrupts a gloo collective. So an abandoned group keeps its
threads and the arrays that it was adding until then, and no other thread waits for it.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from agileml.application import Array, DeviceVector
from agileml.core.protocol.commands import (
    Abandon,
    Broken,
    Form,
    Gather,
    Gathered,
    Introduce,
    Met,
    Reduce,
    Reduced,
)
from agileml.net.collectives import Collectives, GroupMember, PendingSum, Term

Report = Callable[[Met | Reduced | Gathered | Broken], None]

TIMEOUT_S = 1800.0  # the longest clock; connections and heartbeats find a dead or frozen machine sooner
STOP_S = 1.0  # longest wait for groups when the machine's process ends


class AllReduce:
    """The groups of one machine, one after the other. Calls return at once; other threads call `report`."""

    def __init__(
        self, me: str, report: Report, collectives: Collectives, timeout_s: float = TIMEOUT_S
    ) -> None:
        self._me = me
        self._collectives = collectives
        self._report = report
        self._timeout_s = timeout_s
        self._known: dict[int, dict[str, bytes]] = {}  # by epoch: values that arrived before its `Form`
        self._group: _Group | None = None
        self._groups: list[_Group] = []  # also abandoned ones with live threads

    def form(self, command: Form, host: str) -> None:
        """Meet the other members, listening at the address `host`."""
        known = self._known.get(command.epoch, {})
        self._known = {epoch: values for epoch, values in self._known.items() if epoch > command.epoch}
        member = GroupMember(command.epoch, command.group.index(self._me), command.group, host)
        self._group = _Group(member, known, self._report, self._collectives, self._timeout_s)
        self._groups = [group for group in self._groups if group.is_alive] + [self._group]

    def ask(self, command: Introduce | Reduce | Gather | Abandon) -> None:
        """Queue a command."""
        match command:
            case Introduce() if self._group is not None and self._group.member.epoch == command.epoch:
                self._group.introduce(command.key, command.value)
            case Introduce():
                self._known.setdefault(command.epoch, {})[command.key] = command.value
            case Reduce() | Gather() if self._group is not None and self._group.member.epoch == command.epoch:
                self._group.ask(command)
            case Reduce() | Gather():
                pass  # its group was refused
            case Abandon() if self._group is not None:
                self._group.abandon()
                self._group = None

    def stop(self) -> None:
        """Abandon the group and wait up to STOP_S for the threads of all groups.

        A thread that returns from C++ while its process ends would crash it.
        """
        self.ask(Abandon())
        until_s = time.monotonic() + STOP_S
        for group in self._groups:
            group.join(until_s - time.monotonic())


class _MessageStore(dist.Store):
    """The values that members of a group need to connect; `set` sends a value to the others."""

    def __init__(self, known: dict[str, bytes], tell: Callable[[str, bytes], None], timeout_s: float) -> None:
        super().__init__()
        self._values = dict(known)
        self._tell = tell
        self._timeout_s = timeout_s
        self._changed = threading.Condition()
        self._is_closed = False

    def learn(self, key: str, value: bytes) -> None:
        """Take a value, of this or another machine."""
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def close(self) -> None:
        """End all waits with an error."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    # Torch calls these methods, in threads of its own.

    def set(self, key: str, value: bytes | str) -> None:
        found = value.encode() if isinstance(value, str) else bytes(value)
        self.learn(key, found)
        self._tell(key, found)

    def get(self, key: str) -> bytes:
        self.wait([key])
        return self._values[key]

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        limit_s = self._timeout_s if timeout is None else timeout.total_seconds()
        with self._changed:
            there = self._changed.wait_for(
                lambda: self._is_closed or all(key in self._values for key in keys), limit_s
            )
        if self._is_closed or not there:
            missing = [key for key in keys if key not in self._values]
            raise RuntimeError(f"nothing came from {', '.join(missing) or 'the others'} within {limit_s:g} s")

    def check(self, keys: Sequence[str]) -> bool:
        return all(key in self._values for key in keys)

    def has_extended_api(self) -> bool:
        return False


@dataclass
class _Sum:
    """A command and the collectives that carry it out. blocks: of a sum."""

    asked: Reduce | Gather
    blocks: tuple[Array | DeviceVector, ...]
    # With partition 0: loss, examples, pauses, and metrics, and each machine's seconds if asked.
    facts: torch.Tensor | None
    works: list[PendingSum] = field(default_factory=list)


class _Group:
    """A process group. One thread forms it and starts collectives, another one waits for them in order."""

    def __init__(
        self,
        member: GroupMember,
        known: dict[str, bytes],
        report: Report,
        collectives: Collectives,
        timeout_s: float,
    ) -> None:
        self.member = member
        self._collectives = collectives
        self._report_to = report
        self._timeout_s = timeout_s
        self._store = _MessageStore(known, self._tell, timeout_s)
        self._asked: queue.SimpleQueue[Reduce | Gather | None] = queue.SimpleQueue()
        self._under_way: queue.SimpleQueue[_Sum | None] = queue.SimpleQueue()
        self._is_abandoned = threading.Event()
        self._is_over = threading.Event()  # later sums are not to be trusted
        self._giving_up = threading.Lock()
        self._is_given_up = False
        self._process_group: Any = None
        self._threads: tuple[threading.Thread, ...] = ()  # all of them have started
        for run in (self._start_all, self._end_all):
            self._begin(run)

    @property
    def is_alive(self) -> bool:
        """False once its threads have ended."""
        return any(thread.is_alive() for thread in self._threads)

    def join(self, timeout_s: float) -> None:
        """Wait for the threads, at most `timeout_s`."""
        until_s = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, until_s - time.monotonic()))

    def _begin(self, run: Callable[[], None]) -> None:
        thread = threading.Thread(target=run, name="all-reduce", daemon=True)
        thread.start()
        self._threads += (thread,)  # only now: another thread may be waiting for all of them

    def introduce(self, key: str, value: bytes) -> None:
        self._store.learn(key, value)

    def ask(self, command: Reduce | Gather) -> None:
        self._asked.put(command)

    def abandon(self) -> None:
        """Report nothing any more. Returns at once."""
        self._is_abandoned.set()
        self._store.close()
        self._asked.put(None)
        # In a thread of its own, because the first one may be stuck in a collective that it starts.
        self._begin(self._give_up)

    def _give_up(self) -> None:
        """Give the process group up, once it exists, and only once."""
        self._is_over.set()
        with self._giving_up:
            group = self._process_group
            if group is not None and not self._is_given_up:
                self._is_given_up = True
                self._collectives.give_up(group)

    def _tell(self, key: str, value: bytes) -> None:
        self._report(Met(self.member.epoch, key, value))

    def _report(self, event: Met | Reduced | Gathered | Broken) -> None:
        if not self._is_abandoned.is_set():
            self._report_to(event)

    def _fail(self, error: Exception) -> None:
        problem = str(error).strip().split("\n")[0]
        self._report(Broken(self.member.epoch, f"{type(error).__name__}: {problem}"))

    # -- the first thread -----------------------------------------------------------------------------------

    def _start_all(self) -> None:
        try:
            if self.member.size > 1:
                self._process_group = self._collectives.open(self.member, self._store, self._timeout_s)
            while (command := self._asked.get()) is not None and not self._is_abandoned.is_set():
                self._under_way.put(
                    self._sent(command) if isinstance(command, Gather) else self._begun(command)
                )
                del command  # its blocks would lie beside those of the next clock
        except Exception as error:
            self._is_over.set()
            self._fail(error)
        finally:
            # In this order: the second thread lets go of the process group when it ends, and then nobody could.
            try:
                self._give_up()
            finally:
                self._under_way.put(None)

    def _begun(self, command: Reduce) -> _Sum:
        """Start the collectives of a command; a group of one needs none."""
        blocks = tuple(_writeable(block) for block in command.blocks)
        facts = None
        if command.partition == 0:
            facts = self._facts(command)
        found = _Sum(command, blocks, facts)
        if self._process_group is not None:
            terms = [Term.of(block) for block in blocks if block.size]
            terms += [] if facts is None else [Term(facts)]
            found.works = self._collectives.begin(self._process_group, terms)
        return found

    def _sent(self, command: Gather) -> _Sum:
        """Start the broadcasts of a command; a group of one needs none."""
        found = _Sum(command, (), None)
        if self._process_group is not None:
            parts = [
                (self.member.group.index(name), Term.of(array))
                for name, arrays in command.parts
                for array in arrays
            ]
            found.works = self._collectives.begin_broadcasts(self._process_group, parts)
        return found

    def _facts(self, command: Reduce) -> torch.Tensor:
        """Numbers that the sum makes known to all. Every machine has a place of its own for its seconds and for
        its speed, which the sum leaves as they are, to the last bit."""
        facts = [command.loss, float(command.examples), float(command.pause), *command.metrics]
        if command.compute_s is not None:
            for number in (command.compute_s, command.expected):
                of_each = [0.0] * self.member.size
                of_each[self.member.rank] = number
                facts += of_each
        return torch.tensor(facts, dtype=torch.float64)

    # -- the second thread ----------------------------------------------------------------------------------

    def _end_all(self) -> None:
        has_failed = False
        while (found := self._under_way.get()) is not None:
            has_failed = not self._has_ended(found, has_failed=has_failed)
            del found
        # Only now: destroying a group waits for its collectives and holds the interpreter's lock.
        self._process_group = None

    def _has_ended(self, found: _Sum, *, has_failed: bool) -> bool:
        """Wait for the collectives of a command and report the result, if all before have one. False if one failed."""
        try:
            for work in found.works:
                work.wait()
        except Exception as error:
            if not has_failed:
                self._fail(error)
            return False
        if not has_failed and not self._is_over.is_set():
            self._report(_answer(found))
        return not has_failed


def _writeable(block: Array | DeviceVector) -> Array | DeviceVector:
    """The block, or a copy of one that others read."""
    return block if isinstance(block, DeviceVector) or block.flags.writeable else block.copy()


def _answer(found: _Sum) -> Reduced | Gathered:
    asked = found.asked
    if isinstance(asked, Gather):
        return Gathered(asked.epoch, asked.clock)
    loss, examples, pauses, *others = (0.0, 0.0, 0.0) if found.facts is None else found.facts.tolist()
    count = len(asked.metrics)
    return Reduced(
        asked.epoch,
        asked.clock,
        asked.partition,
        found.blocks,
        loss,
        round(examples),
        bool(pauses),
        tuple(others[count : (count + len(others)) // 2]),
        tuple(others[(count + len(others)) // 2 :]),
        tuple(others[:count]),
    )
