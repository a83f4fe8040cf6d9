"""The spans of a profile: what each track of a machine did and when, as numbers in one array."""

from __future__ import annotations

from dataclasses import dataclass

from agileml.application import Array

# Tracks of a machine. Spans of one track never overlap.
WORKER, COMPUTING, SERVING, CUTS, CHANGES = range(5)
TRACKS = ("worker", "computing thread", "serving thread", "cuts on their way", "changes")

# The names of spans: first the activities of a worker, in the order of DOING.
NAMES = (
    "pull",
    "compute",
    "push",
    "fold",
    "frozen",
    "idle",
    "units",  # user code for a bundle
    "read",  # asking which rows its units read, and loading missing slices
    "load",  # slices, in advance
    "answer",  # a pull, with reading and encoding its rows
    "take",  # parameters that arrive
    "cut",
    "change",
)
FOLD, UNITS, READ, LOAD, ANSWER, TAKE, CUT, CHANGE = (
    NAMES.index(name) for name in ("fold", "units", "read", "load", "answer", "take", "cut", "change")
)
COLUMNS = 5  # track, name, clock, start and end


@dataclass(frozen=True)
class Spans:
    """Machine to head: rows of COLUMNS int64; times in Unix microseconds of the head's clock.

    `recorded`: how many spans the machine has recorded so far, these included.
    """

    rows: Array
    recorded: int
