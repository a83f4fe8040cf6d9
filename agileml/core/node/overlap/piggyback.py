"""Pulls that ride on pushes: with small models the number of messages counts, not their bytes.

A worker that has computed a clock pushes it and at once pulls the parameters of the next one. In BSP these exist only
once the push is counted, so the pull rides on the push. The answer has a later version and so also acknowledges the
push; a separate acknowledgement goes out only when the answer takes long.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from agileml.core.protocol.commands import NodeCommand, Send
from agileml.core.protocol.job import Job
from agileml.core.protocol.messages import Ack, HelpPush, Pull, Push

SMALL_BYTES = 2 << 20  # of all parameters; above it, bytes dominate and early acknowledgements help
ACK_S = 0.05  # for which an acknowledgement waits for the parameters


def can_piggyback(job: Job) -> bool:
    """True for jobs whose pulls ride on pushes: small, BSP, with parameter servers, and every worker reads
    everything."""
    if job.exchange.has_replicas or job.consistency.slack != 0 or job.pipeline is not None:
        return False
    return job.layout.whole_reads is not None and job.layout.size_bytes <= SMALL_BYTES


def piggybacked(commands: Sequence[NodeCommand]) -> list[NodeCommand]:
    """The commands, with each pull of whole blocks merged into the push of the clock before to the same partition."""
    merged: list[NodeCommand | None] = list(commands)
    last: dict[tuple[str, int, int, int], int] = {}  # where a partition's last push of a clock is
    for place, command in enumerate(commands):
        if not isinstance(command, Send):
            continue
        message = command.message
        if isinstance(message, Push) and not isinstance(message, HelpPush):
            last[command.to, message.epoch, message.partition, message.clock] = place
        elif isinstance(message, Pull) and all(rows is None for rows in message.rows):
            at = last.get((command.to, message.epoch, message.partition, message.clock - 1))
            if at is not None:
                push = merged[at]
                assert isinstance(push, Send) and isinstance(push.message, Push), push
                merged[at] = replace(push, message=replace(push.message, pulls_next=True))
                merged[place] = None
    return [command for command in merged if command is not None]


class DelayedAcks:
    """Acknowledgements that wait for the parameters that will imply them."""

    def __init__(self) -> None:
        # By worker and partition, acknowledgements with the time at which each is due.
        self._owed: dict[tuple[str, int], list[tuple[float, Ack]]] = {}

    def owe(self, worker: str, ack: Ack, now_s: float) -> None:
        """Delay this acknowledgement."""
        self._owed.setdefault((worker, ack.partition), []).append((now_s + ACK_S, ack))

    def answered(self, worker: str, partition: int, clock: int, version: int) -> None:
        """Parameters of `version` went to a worker for `clock`: drop the acknowledgements that they imply."""
        owed = self._owed.pop((worker, partition), [])
        if left := [(due_s, ack) for due_s, ack in owed if ack.clock >= min(clock, version)]:
            self._owed[worker, partition] = left

    def take(self, worker: str, partition: int) -> list[Ack]:
        """Remove and return the acknowledgements owed to a worker for a partition."""
        return [ack for _, ack in self._owed.pop((worker, partition), [])]

    def due(self, now_s: float) -> Iterator[tuple[str, Ack]]:
        """The (worker, acknowledgement) pairs that have waited long enough, each once."""
        for (worker, partition), owed in list(self._owed.items()):
            if owed[0][0] <= now_s:
                yield from ((worker, ack) for ack in self.take(worker, partition))

    def clear(self) -> None:
        """Drop all acknowledgements: the epoch is over."""
        self._owed.clear()
