"""The codec, messages, transport settings and kinds of traffic that all processes of a run share."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import get_args

from agileml.core.compute.spans import Spans
from agileml.core.node.time_spent import DOING, WAITING, Doing
from agileml.core.node.work_log import WorkRow
from agileml.core.protocol.help_messages import HelpParams, HelpPull
from agileml.core.protocol.inputs import Measured
from agileml.core.protocol.messages import (
    Copy,
    Crossing,
    Failure,
    Get,
    HelpPush,
    LastParams,
    Message,
    MinibatchParams,
    MinibatchPull,
    MinibatchPush,
    Params,
    Part,
    PartAck,
    PlannedParams,
    Pull,
    Push,
    TimedPush,
)
from agileml.net.codec import Codec
from agileml.net.events import Address
from agileml.net.keys import KeyPair
from agileml.net.links import WIDE, Pipe
from agileml.net.listening import has_room
from agileml.net.liveness import HeartbeatTimes
from agileml.net.transport import Transport
from agileml.process.measurement.tracing import Ping, Pong

LAST = 1 << 30
# Where urgent messages overtake others a link is kept busy, and no more waits ahead of them: on a network 1 MB in
# libzmq and 1 MB in the kernel, which is enough for 10 Gbit/s with round trips of 0.8 ms.
ORDERED = Pipe(messages=4)
ORDERED_REMOTE = Pipe(frame_bytes=512 << 10, messages=2, send_buffer_bytes=1 << 20)

KINDS = ("pull", "push", "fetch", "cut", "control")
_KIND_OF: dict[type, str] = {
    Pull: "pull",
    Params: "pull",
    PlannedParams: "pull",
    LastParams: "pull",
    MinibatchPull: "pull",
    MinibatchParams: "pull",
    HelpPull: "pull",
    HelpParams: "pull",
    HelpPush: "push",
    Push: "push",
    Crossing: "push",
    TimedPush: "push",
    MinibatchPush: "push",
    Get: "fetch",
    Copy: "fetch",
    Part: "cut",
    PartAck: "cut",
}


@dataclass(frozen=True)
class Peers:
    """Head to machines: addresses of others, and the names of those that went last and never come back.

    A machine that is not listed is not gone: a new controller learns of the machines one by one.
    """

    addresses: tuple[Address, ...]
    gone: tuple[str, ...] = ()


@dataclass(frozen=True)
class Usage:
    """Machine to head: bytes sent and received so far in the order of KINDS, the seconds that its worker spent on each
    activity in the order of DOING, and the units that it computed and the seconds that these took, at `at_s` by its own
    clock."""

    at_s: float
    bytes_sent: tuple[int, ...]
    bytes_received: tuple[int, ...]
    spent_s: tuple[float, ...]
    units: int
    units_s: float


@dataclass(frozen=True)
class Unread:
    """Machine to head: it failed because it could not read its part of a checkpoint."""

    failure: Failure


@dataclass(frozen=True)
class Worked:
    """Machine to head: rows of its work log that are complete."""

    rows: tuple[WorkRow, ...]


def measured(node: str, usage: Usage) -> Measured:
    """A machine's usage as an input of the controller."""
    received = dict(zip(KINDS, usage.bytes_received, strict=True))
    spent_s = dict(zip(DOING, usage.spent_s, strict=True))
    return Measured(
        node,
        usage.at_s,
        received["pull"],
        received["push"],
        received["cut"],
        spent_s[Doing.COMPUTE],
        spent_s[Doing.PUSH],
        sum(spent_s[doing] for doing in WAITING),
        usage.units,
        usage.units_s,
    )


def kind_of(message: object) -> int:
    """The index in KINDS of a message's traffic."""
    return KINDS.index(_KIND_OF.get(type(message), "control"))


def urgency_of(message: object) -> int:
    """How soon the next clock needs a message: the first layers first, messages that no clock needs last."""
    if isinstance(message, Push | Params):
        return message.partition
    return LAST


@cache
def run_codec() -> Codec:
    """The codec of everything that travels in a run: one for all threads of a process."""
    return Codec([*get_args(Message), Peers, Usage, Unread, Worked, Spans, Ping, Pong])


def socket_folder(run: str) -> Path:
    """The folder for the sockets of all processes at one node IP: among temporary files, or in /tmp where the name of
    their place is too long for sockets, as a batch system may choose TMPDIR."""
    folder = Path(tempfile.gettempdir()) / f"proteus-{run}"
    return folder if has_room(folder) else Path("/tmp") / folder.name


def heartbeat_times(timeout_s: float) -> HeartbeatTimes:
    """The heartbeats of a run. Where a peer may be silent for longer, its first answer may also take longer."""
    unreachable_s = max(HeartbeatTimes.unreachable_s, timeout_s)
    return HeartbeatTimes(timeout_s / 5, timeout_s, unreachable_s)


def open_transport(
    name: str, run: str, node_ip: str, keys: KeyPair, timeout_s: float, *, is_ordered: bool = False
) -> Transport:
    """Open the transport of a process, with keys and with heartbeats that fit the run's timeout.

    `is_ordered`: urgent messages overtake others, all but one or two MB.
    """
    return Transport(
        name,
        node_ip=node_ip,
        ipc_folder=socket_folder(run),
        keys=keys,
        heartbeat=heartbeat_times(timeout_s),
        pipe=ORDERED if is_ordered else WIDE,
        remote_pipe=ORDERED_REMOTE if is_ordered else None,
    )
