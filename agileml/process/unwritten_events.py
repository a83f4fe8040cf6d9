"""The events that the driver has not written to the log yet.

The controller keeps an event until the driver says that it is written, which it says when it asks for the next ones. So
an answer that is lost costs nothing, and the controller knows what its death would take with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from agileml.core.protocol.commands import Happened
from agileml.net.events import Address


@dataclass(frozen=True)
class Written:
    """The driver has written the first `count` events of the controller at this address."""

    head: Address
    count: int


class UnwrittenEvents:
    """The events of one controller, numbered from 0, without those that are written."""

    def __init__(self) -> None:
        self._events: list[Happened] = []
        self._first = self._told = 0

    def append(self, event: Happened) -> None:
        """Add an event."""
        self._events.append(event)

    def tell(self) -> tuple[int, tuple[Happened, ...]]:
        """All of them, and the number of the first."""
        self._told = self._first + len(self._events)
        return self._first, tuple(self._events)

    def drop(self, written: int | None) -> Sequence[Happened]:
        """Drop and return the events below number `written`; None: all that were told."""
        count = (self._told if written is None else written) - self._first
        assert 0 <= count <= len(self._events), (written, self._first)
        dropped, self._events = self._events[:count], self._events[count:]
        self._first += count
        return dropped


class EventReader:
    """The driver's end: which events of which controller it has taken."""

    def __init__(self) -> None:
        self.written: Written | None = None

    def take(self, head: Address, first: int, events: Iterable[Happened]) -> tuple[Happened, ...]:
        """The events that were not taken before. All are to be written before the next call."""
        taken = self.written.count if self.written is not None and self.written.head == head else 0
        assert first <= taken, (first, self.written)
        numbered = list(enumerate(events, first))
        self.written = Written(head, max(taken, first + len(numbered)))
        return tuple(event for number, event in numbered if number >= taken)
