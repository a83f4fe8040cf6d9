"""The state of a FlexRR worker's work: the ranges that it gave away, and the range that it computes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

from straggler.flexrr.protocol import Bundle, DoThis


class Fate(Enum):
    """The fate of a range that was given away."""

    OFFERED = auto()  # do-this sent, nothing heard
    BEGUN = auto()  # the helper computes it
    CANCELLING = auto()  # cancel-help sent, being computed here, no answer yet
    HELD = auto()  # computed here, still no answer
    MINE = auto()  # the helper will not compute it: to be computed here
    SETTLED = auto()  # pushed, by either


@dataclass(slots=True)
class Offer:
    """A range that was given away, its helper and its fate."""

    assignment: DoThis
    helper: int
    fate: Fate = Fate.OFFERED

    def computed(self) -> bool:
        """The range was computed here; True if the result may be pushed at once, else it waits for the helper."""
        may_push = self.fate is Fate.MINE
        self.fate = Fate.SETTLED if may_push else Fate.HELD
        return may_push

    def taken_back(self) -> bool:
        """The helper will not compute it; True if the result is here and is to be pushed."""
        is_held = self.fate is Fate.HELD
        self.fate = Fate.SETTLED if is_held else Fate.MINE
        return is_held


class Offers:
    """The ranges of one clock that were given away, by the timestamp of the request."""

    def __init__(self) -> None:
        self._by_timestamp: dict[int, Offer] = {}

    def add(self, offer: Offer) -> None:
        """A request for help is sent."""
        self._by_timestamp[offer.assignment.timestamp] = offer

    def find(self, assignment: DoThis) -> Offer | None:
        """The offer of a request; None: of an earlier clock."""
        return self._by_timestamp.get(assignment.timestamp)

    def __iter__(self) -> Iterator[Offer]:
        return iter(self._by_timestamp.values())

    def all_settled(self) -> bool:
        """True if every range has been pushed by someone."""
        return all(offer.fate is Fate.SETTLED for offer in self)

    def unanswered(self) -> list[Offer]:
        """Offers about which the helper is to be asked again."""
        return [offer for offer in self if offer.fate in (Fate.BEGUN, Fate.CANCELLING, Fate.HELD)]

    def open_at(self, helper: int) -> list[Offer]:
        """Offers to a helper that are not settled."""
        return [offer for offer in self if offer.helper == helper and offer.fate is not Fate.SETTLED]

    def to_compute(self) -> Offer | None:
        """The first range that this worker is to compute itself."""
        return next((offer for offer in self if offer.fate in (Fate.CANCELLING, Fate.MINE)), None)


class TaskKind(Enum):
    """Why a worker computes a range."""

    OWN = auto()
    HELP = auto()
    RECLAIM = auto()
    REDO = auto()


@dataclass(slots=True)
class Task:
    """The range that a worker computes now."""

    kind: TaskKind
    bundle: Bundle
    helpee: int = -1
    assignment: DoThis | None = None
    offer: Offer | None = None
