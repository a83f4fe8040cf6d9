"""Items for a reader that asks for them, of which none is lost with an answer that does not arrive.

The sender keeps an item until the reader has dealt with it. The reader says so when it asks for the next ones. So the
sender also knows which items its death would take with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from agileml.net.events import Address

T = TypeVar("T")


@dataclass(frozen=True)
class Done:
    """The reader has dealt with the first `count` items of the sender at this address."""

    sender: Address
    count: int


class Outbox(Generic[T]):
    """The items of one sender, numbered from 0, without those that are done."""

    def __init__(self) -> None:
        self._items: list[T] = []
        self._first = self._handed_out = 0

    def append(self, item: T) -> None:
        """Add an item."""
        self._items.append(item)

    def pending(self) -> tuple[int, tuple[T, ...]]:
        """All items, and the number of the first."""
        self._handed_out = self._first + len(self._items)
        return self._first, tuple(self._items)

    def drop(self, done: int | None) -> Sequence[T]:
        """Drop and return the items below number `done`; None: all that `pending` returned last."""
        count = (self._handed_out if done is None else done) - self._first
        assert 0 <= count <= len(self._items), (done, self._first)
        dropped, self._items = self._items[:count], self._items[count:]
        self._first += count
        return dropped


class OutboxReader(Generic[T]):
    """The reader's end: which items of which sender it has taken."""

    def __init__(self) -> None:
        self.done: Done | None = None

    def take(self, sender: Address, first: int, items: Iterable[T]) -> tuple[T, ...]:
        """The items that were not taken before. All are to be dealt with before the next call."""
        taken = self.done.count if self.done is not None and self.done.sender == sender else 0
        assert first <= taken, (first, self.done)
        numbered = list(enumerate(items, first))
        self.done = Done(sender, max(taken, first + len(numbered)))
        return tuple(item for number, item in numbered if number >= taken)
