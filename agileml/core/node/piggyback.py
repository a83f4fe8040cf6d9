"""One message where two would do, for what is small: there their number counts, not their bytes.

A worker that has computed all of a clock pushes it and asks at once for what the next one reads. In BSP that is not
there before the push is counted, so the question rides on the push; the answer has a later version, so it is the
acknowledgement too. One of its own goes out only when the answer takes long.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from agileml.core.protocol.commands import NodeCommand, Send
from agileml.core.protocol.job import Job
from agileml.core.protocol.messages import Ack, Pull, Push

SMALL_BYTES = 2 << 20  # of all parameters; of larger ones the transfer counts, and an early acknowledgement
ACK_S = 0.05  # how long an acknowledgement waits for the parameters


def rides(job: Job) -> bool:
    """True for jobs whose pulls ride on pushes: small, in BSP, with servers, and every worker reads everything."""
    if job.exchange.has_replicas or job.consistency.slack != 0:
        return False
    return job.layout.whole_reads is not None and job.layout.size_bytes <= SMALL_BYTES


def with_next(commands: Sequence[NodeCommand]) -> list[NodeCommand]:
    """The commands, with pulls of whole blocks in the pushes of the clock before to the same partition."""
    merged: list[NodeCommand | None] = list(commands)
    last: dict[tuple[str, int, int, int], int] = {}  # where a partition's last push of a clock is
    for place, command in enumerate(commands):
        if not isinstance(command, Send):
            continue
        message = command.message
        if isinstance(message, Push):
            last[command.to, message.epoch, message.partition, message.clock] = place
        elif isinstance(message, Pull) and all(rows is None for rows in message.rows):
            at = last.get((command.to, message.epoch, message.partition, message.clock - 1))
            if at is not None:
                push = merged[at]
                assert isinstance(push, Send) and isinstance(push.message, Push), push
                merged[at] = replace(push, message=replace(push.message, pulls_next=True))
                merged[place] = None
    return [command for command in merged if command is not None]


class OwedAcks:
    """Acknowledgements that wait for the parameters that will say the same."""

    def __init__(self) -> None:
        self._owed: dict[
            tuple[str, int], list[tuple[float, Ack]]
        ] = {}  # by worker and partition: due at, what

    def owe(self, worker: str, ack: Ack, now_s: float) -> None:
        """This one may wait."""
        self._owed.setdefault((worker, ack.partition), []).append((now_s + ACK_S, ack))

    def answered(self, worker: str, partition: int, clock: int, version: int) -> None:
        """Parameters of `version` went to a worker, for `clock`: what they acknowledge is not owed any more."""
        owed = self._owed.pop((worker, partition), [])
        if left := [(due_s, ack) for due_s, ack in owed if ack.clock >= min(clock, version)]:
            self._owed[worker, partition] = left

    def take(self, worker: str, partition: int) -> list[Ack]:
        """All that is owed to a worker for a partition."""
        return [ack for _, ack in self._owed.pop((worker, partition), [])]

    def due(self, now_s: float) -> Iterator[tuple[str, Ack]]:
        """(worker, acknowledgement) that have waited long enough, each once."""
        for (worker, partition), owed in list(self._owed.items()):
            if owed[0][0] <= now_s:
                yield from ((worker, ack) for ack in self.take(worker, partition))

    def clear(self) -> None:
        """Nobody of this epoch waits any more."""
        self._owed.clear()
