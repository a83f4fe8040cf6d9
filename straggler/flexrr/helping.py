"""What a FlexRR worker keeps in mind: ranges that it gave away, and what it computes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from straggler.flexrr.protocol import Bundle, DoThis


class Fate(Enum):
    """Of a range that was given away."""

    OFFERED = auto()  # do-this sent, nothing heard
    BEGUN = auto()  # a helper is at it
    CANCELLING = auto()  # cancel-help sent, being computed here, no answer yet
    HELD = auto()  # computed here, still no answer
    MINE = auto()  # back for good, to be computed here
    SETTLED = auto()  # pushed, by either


@dataclass(slots=True)
class Offer:
    """A range that was given away, to whom, and what became of it."""

    assignment: DoThis
    helper: int
    fate: Fate


class TaskKind(Enum):
    """Why a worker computes a range."""

    OWN = auto()
    HELP = auto()
    RECLAIM = auto()
    REDO = auto()


@dataclass(slots=True)
class Task:
    """What a worker computes now."""

    kind: TaskKind
    bundle: Bundle
    helpee: int = -1
    assignment: DoThis | None = None
    offer: Offer | None = None
