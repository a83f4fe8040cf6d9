"""Receiving: joins frames to messages, and writes the parts of each large array into one buffer as they arrive."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import zmq

from agileml.net import wire
from agileml.net.events import Event, MessageReceived
from agileml.net.tally import Tally

# (header, number of the array, its size in bytes) -> the buffer for it (uint8, one dimension); None: a new one
Room = Callable[[bytes, int, int], np.ndarray | None]

MAX_DRAIN_BYTES = 64 << 20  # read in one go, so that the caller gets its turn in between


@dataclasses.dataclass(slots=True)
class _Assembly:
    """A message of which the head and some parts have arrived."""

    head: wire.MessageHead
    arrays: list[np.ndarray]
    lent: set[int]  # arrays in buffers that a `Room` gave
    chunks: list[np.ndarray] = dataclasses.field(default_factory=list)  # where each part goes
    next: int = 0

    def __post_init__(self) -> None:
        step = self.head.frame_bytes
        self.chunks = [
            array[start : start + step]
            for array, place in zip(self.arrays, self.head.places, strict=True)
            if place is wire.ArrayPlace.PARTS
            for start in range(0, array.nbytes, step)
        ]


class Inbox:
    """Reads one PULL socket. incarnation: of this process; the inbox counts and drops messages for another.

    room: gives buffers for large arrays before they arrive (see `Room`); without it the inbox allocates them.
    """

    room: Room | None = None

    def __init__(self, incarnation: int, tally: Tally) -> None:
        self._incarnation = incarnation
        self._tally = tally
        self._assemblies: dict[int, _Assembly] = {}  # by link
        self._newest: dict[tuple[str, bool], int] = {}  # links by sender and lane
        self.sending: set[str] = set()  # peers from which a part arrived; the reader clears it

    def drain(self, pull: Any, events: list[Event], most: int) -> None:
        """Read what has arrived and append whole messages to `events`, up to `most` events and MAX_DRAIN_BYTES."""
        read_bytes = 0
        while len(events) < most and read_bytes < MAX_DRAIN_BYTES:
            try:
                first = pull.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            read_bytes += len(first)
            try:
                envelope = wire.read(first)
                if envelope.recipient != self._incarnation:
                    self._tally.misaddressed += 1
                elif isinstance(envelope, wire.MessagePart):
                    read_bytes += self._take_part(envelope, pull, events)
                else:
                    read_bytes += self._take_head(envelope, pull, events)
            except wire.WireError:
                self._tally.malformed += 1
            while pull.getsockopt(zmq.RCVMORE):  # of a message that was dropped
                read_bytes += len(pull.recv(zmq.NOBLOCK, copy=False))

    def keep_off(self) -> None:
        """Stop writing into buffers from `room`; arrays that are incomplete move to buffers of their own."""
        for assembly in self._assemblies.values():
            if assembly.lent:
                for number in assembly.lent:
                    assembly.arrays[number] = assembly.arrays[number].copy()
                assembly.lent.clear()
                assembly.__post_init__()

    def forget(self, name: str) -> None:
        """Drop incomplete messages of a sender."""
        for link in [link for link, assembly in self._assemblies.items() if assembly.head.sender == name]:
            self._tear(link)

    def leave(self, name: str) -> None:
        """As `forget`, for a sender that never comes back."""
        self.forget(name)
        for is_express in (False, True):
            self._newest.pop((name, is_express), None)

    def _take_head(self, head: wire.MessageHead, pull: Any, events: list[Event]) -> int:
        lane = (head.sender, head.express)
        if wire.is_older(head.link, self._newest.get(lane, 0)):
            self._tally.torn += 1  # from a connection that its sender gave up
            return 0
        self._newest[lane] = head.link
        if head.express and wire.ArrayPlace.PARTS in head.places:
            raise wire.WireError("parts on an express link")
        if self._assemblies and not head.express:
            # A sender has one bulk connection at a time, and on it one message at a time.
            self.forget(head.sender)
        if not head.sizes:
            self._deliver(head, (), events)
            return 0
        read_bytes = 0
        arrays: list[np.ndarray] = []
        lent: set[int] = set()
        for place, size, inline in zip(head.places, head.sizes, head.inline, strict=True):
            if inline is not None:
                arrays.append(inline)
            elif place is wire.ArrayPlace.FRAME:
                arrays.append(_whole_frame(pull, size))
                read_bytes += size
            else:
                room = self.room(head.header, len(arrays), size) if self.room else None
                if room is not None:
                    lent.add(len(arrays))
                arrays.append(np.empty(size, np.uint8) if room is None else room)
        if pull.getsockopt(zmq.RCVMORE):
            raise wire.WireError("a head with more frames than its envelope says")
        if wire.ArrayPlace.PARTS in head.places:
            self._assemblies[head.link] = _Assembly(head, arrays, lent)
        else:
            self._deliver(head, tuple(arrays), events)
        return read_bytes

    def _take_part(self, part: wire.MessagePart, pull: Any, events: list[Event]) -> int:
        assembly = self._assemblies.get(part.link)
        if assembly is None or assembly.head.number != part.number:
            return 0  # its message was counted as torn, or the head was lost with its connection
        if part.index != assembly.next or not pull.getsockopt(zmq.RCVMORE):
            self._tear(part.link)
            return 0
        chunk = assembly.chunks[part.index]
        if pull.recv_into(chunk, flags=zmq.NOBLOCK) != chunk.nbytes:
            self._tear(part.link)
            raise wire.WireError("a part of another length than its place")
        assembly.next += 1
        self.sending.add(assembly.head.sender)
        if assembly.next == len(assembly.chunks):
            del self._assemblies[part.link]
            self._deliver(assembly.head, tuple(assembly.arrays), events)
        return chunk.nbytes

    def _tear(self, link: int) -> None:
        del self._assemblies[link]
        self._tally.torn += 1

    def _deliver(self, head: wire.MessageHead, arrays: tuple[np.ndarray, ...], events: list[Event]) -> None:
        self._tally.received(head.sender, len(head.header) + sum(head.sizes))
        events.append(MessageReceived(head.sender, head.header, arrays))


def _whole_frame(pull: Any, size: int) -> np.ndarray:
    """Receive one frame as an array in the memory of libzmq."""
    if not pull.getsockopt(zmq.RCVMORE):
        raise wire.WireError("a head with fewer frames than its envelope says")
    frame = pull.recv(zmq.NOBLOCK, copy=False)
    if len(frame) != size:
        raise wire.WireError(f"a frame of {len(frame)} bytes, its envelope says {size}")
    return np.frombuffer(frame.buffer, np.uint8)
