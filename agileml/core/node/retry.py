"""When to send an unanswered message again: exponential backoff, because a large message may just be slow.

Copies of a message that takes longer than the first wait must not pile up behind it, so each wait is twice as long as
the one before. Messages keep their order, so while others arrive from the peer, the answer may be on its way behind
them: the first wait then counts from the peer's last sign of life, up to the longest wait.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import dataclass

from agileml.core.protocol.help_messages import HelpPull
from agileml.core.protocol.messages import Crossing, Get, Message, MinibatchPull, Part, Pull, Push

LONGEST = 16  # the longest wait, in first waits


@dataclass(frozen=True)
class Timers:
    """Seconds between heartbeats, and seconds after which an unanswered message is sent again."""

    status_s: float = 0.1
    retry_s: float = 2.0


class RetryBackoff:
    """Says which unanswered messages are due. Each round, from `begin` to `end`, asks about all of them."""

    def __init__(self, first_s: float) -> None:
        self._first_s = first_s
        self._now_s = 0.0
        self._waits: dict[Hashable, tuple[float, float]] = {}  # key -> (sent, wait from then)
        self._asked: dict[Hashable, tuple[float, float]] = {}
        self._received_s: dict[str, float] = {}

    def receiving(self, peer: str, now_s: float) -> None:
        """Note that a message, or a piece of one, came from a peer."""
        self._received_s[peer] = now_s

    def keep(self, peers: Collection[str]) -> None:
        """Forget when all other machines were heard of: over weeks there are thousands."""
        self._received_s = {peer: at_s for peer, at_s in self._received_s.items() if peer in peers}

    def begin(self, now_s: float) -> None:
        """Begin a round."""
        self._now_s = now_s
        self._asked = {}

    def is_due(self, key: Hashable, peer: str | None = None) -> bool:
        """True when the message named `key` has waited its full time. A new key counts as sent now.

        `peer`: the machine whose signs of life count, because its answer comes in order behind them; None: no machine.
        """
        sent_s, wait_s = self._waits.get(key, (self._now_s, self._first_s))
        waited_s = self._now_s - sent_s
        quiet_s = waited_s if peer is None else self._now_s - self._received_s.get(peer, sent_s)
        is_due = waited_s >= wait_s and (quiet_s >= self._first_s or waited_s >= LONGEST * self._first_s)
        if is_due:
            sent_s, wait_s = self._now_s, min(2 * wait_s, LONGEST * self._first_s)
        self._asked[key] = (sent_s, wait_s)
        return is_due

    def end(self) -> None:
        """Forget the messages that were not asked about: they are answered."""
        self._waits = self._asked


def subject_of(message: Message) -> Hashable:
    """The subject of a message. A repeated message has the subject of the first."""
    match message:
        case Part():
            return "part", message.epoch, message.partition, message.cut.clock
        case Get():
            return "get", message.epoch, message.partition, message.role
        case Push():
            return "push", message.epoch, message.partition, message.clock, message.bundle
        case HelpPull():
            return "help", message.epoch, message.partition, message.task
        case Crossing():
            return "crossing", message.epoch, message.clock, message.unit, message.is_forward
        case MinibatchPull():
            return "pull", message.epoch, message.partition, message.clock, message.unit
        case Pull():
            return "pull", message.epoch, message.partition, message.clock
        case _:
            return message  # small, and without arrays
