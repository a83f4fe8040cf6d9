"""Sending: two connections to each peer, an express one for small messages, with queues that never block."""

import heapq
import itertools
import secrets
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import zmq

from agileml.net import wire

# ZeroMQ messages that wait in libzmq; the rest waits here, where it can be counted and dropped.
PIPE_MESSAGES = 64
# ZeroMQ messages from one sender that may lie unread in libzmq: frames of 2 MB, whose memory comes on top of the
# parameters. More of them are no faster.
UNREAD_MESSAGES = 8
ZERO_COPY_BYTES = 256 << 10  # copying a smaller frame costs less than the callback that frees it
EXPRESS_BYTES = 32 << 10  # messages with arrays of up to this size take the express link
UNDER_WAY = -1  # the urgency of a message of which a part has left


@dataclass(frozen=True)
class Pipe:
    """How much of a connection's data may wait where no more urgent message overtakes it.

    In libzmq so many ZeroMQ messages with frames of so many bytes, and in the kernel `send_buffer_bytes` (0: as many as
    it likes, 4 MB on most systems).
    """

    frame_bytes: int = wire.FRAME_BYTES
    messages: int = PIPE_MESSAGES
    send_buffer_bytes: int = 0

    def apply(self, socket: Any) -> None:
        """Set the limits of a socket that is not connected yet."""
        socket.setsockopt(zmq.SNDHWM, self.messages)
        if self.send_buffer_bytes:
            socket.setsockopt(zmq.SNDBUF, self.send_buffer_bytes)


WIDE = Pipe()


@dataclass(order=True)
class _Waiting:
    """A message that waits for room in libzmq's queue: the frames of its ZeroMQ messages that have not left."""

    urgency: int
    number: int
    pieces: deque[list[bytes | np.ndarray]] = field(compare=False)


class Link:
    """The sending end of a connection to one peer. After `reset`, `open` makes it usable again.

    open_socket: returns a PUSH socket that connects to the peer. ids: numbers for connections, see `connection_ids`.
    express: this link carries small messages.
    """

    def __init__(
        self,
        sender: str,
        recipient: int,
        open_socket: Callable[[], Any],
        ids: Iterator[int],
        frame_bytes: int,
        queue_bytes: int,
        *,
        express: bool = False,
    ) -> None:
        self._sender = sender.encode()
        self._express = express
        self._recipient = recipient
        self._open_socket = open_socket
        self._ids = ids
        self._frame_bytes = frame_bytes
        self._queue_limit_bytes = queue_bytes
        self._waiting: list[_Waiting] = []  # a heap
        self._waiting_bytes = 0
        self._number = 0
        self.socket: Any = None
        self.open()

    @property
    def waits(self) -> bool:
        """True while messages wait for room in libzmq's queue: call `pump` when `socket` is writable."""
        return bool(self._waiting)

    def open(self) -> None:
        """Start connecting, unless the link is open."""
        if self.socket is None:
            self.socket = self._open_socket()
            self._id = next(self._ids)
            self._origin = wire.Origin(self._sender, self._recipient, self._id, self._express)
            self._number = 0

    def send(self, header: bytes, arrays: Sequence[np.ndarray], urgency: int = 0) -> bool:
        """Queue a message, whole or not at all; False when the queue is full.

        Of messages that wait, those of the least `urgency` leave first, and of equal ones the older.
        """
        self.pump()
        if self._waiting and self._waiting_bytes >= self._queue_limit_bytes:
            return False
        self._number += 1
        pieces = deque(wire.cut(self._origin, self._number, header, arrays, self._frame_bytes))
        message = _Waiting(urgency, self._number, pieces)
        if self._waiting or not self._move(message):
            self._waiting_bytes += sum(map(_size, pieces))
            heapq.heappush(self._waiting, message)
        return True

    def pump(self) -> None:
        """Move waiting messages into libzmq's queue as far as there is room."""
        while self._waiting:
            message = self._waiting[0]
            before = sum(map(_size, message.pieces))
            is_gone = self._move(message)
            self._waiting_bytes -= before - sum(map(_size, message.pieces))
            if not is_gone:
                return
            heapq.heappop(self._waiting)

    def _move(self, message: _Waiting) -> bool:
        """Move what there is room for into libzmq's queue; True if that was all of it. One that is under way stays the
        first: the parts of two messages never mix."""
        while message.pieces and self._push(message.pieces[0]):
            message.pieces.popleft()
            message.urgency = UNDER_WAY
        return not message.pieces

    def reset(self) -> int:
        """Drop the connection and its queue; return how many messages had not left the queue."""
        unsent = len(self._waiting)
        self._waiting.clear()
        self._waiting_bytes = 0
        if self.socket is not None:
            self.socket.close(0)
            self.socket = None
        return unsent

    def _push(self, frames: list[bytes | np.ndarray]) -> bool:
        # On EAGAIN libzmq takes back the frames of a message that it could not queue whole. It updates its view of the
        # room only about once a millisecond, unless getsockopt asks.
        return self._try(frames) or (
            bool(self.socket.getsockopt(zmq.EVENTS) & zmq.POLLOUT) and self._try(frames)
        )

    def _try(self, frames: list[bytes | np.ndarray]) -> bool:
        last = len(frames) - 1
        try:
            for place, frame in enumerate(frames):
                flags = zmq.NOBLOCK if place == last else zmq.NOBLOCK | zmq.SNDMORE
                if isinstance(frame, bytes):
                    self.socket.send(frame, flags)
                else:
                    self.socket.send(frame, flags, copy=frame.nbytes < ZERO_COPY_BYTES)
        except zmq.Again:
            return False
        return True


def connection_ids() -> Iterator[int]:
    """Numbers for the connections of one transport: a random part of the process above a count (`wire.COUNT_BITS`)."""
    return itertools.count(secrets.randbits(64 - wire.COUNT_BITS) << wire.COUNT_BITS)


class Lanes:
    """Both links to a peer, so that an answer of a few bytes does not wait behind seconds of parameters."""

    def __init__(self, bulk: Link, express: Link) -> None:
        self.bulk, self.express = bulk, express

    def of(self, arrays: Sequence[np.ndarray]) -> Link:
        """The link for a message with these arrays."""
        return self.express if sum(array.nbytes for array in arrays) <= EXPRESS_BYTES else self.bulk

    def __iter__(self) -> Iterator[Link]:
        return iter((self.bulk, self.express))


def _size(frames: list[bytes | np.ndarray]) -> int:
    return sum(map(len, frames))
