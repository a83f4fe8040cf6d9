"""What a profile records: stretches of time on the tracks of a machine, as numbers that travel in one array."""

from __future__ import annotations

from dataclasses import dataclass

from agileml.application import Array

# Tracks of a machine. Spans of one track never overlap.
WORKER, COMPUTING, SERVING, CUTS, CHANGES = range(5)
TRACKS = ("worker", "computing thread", "serving thread", "cuts on their way", "changes")

# What a span is: first what a worker does, in the order of DOING.
NAMES = (
    "pull",
    "compute",
    "push",
    "fold",
    "frozen",
    "idle",
    "units",  # user code for a bundle
    "read",  # which rows its units read, with loading what is missing
    "load",  # slices, ahead
    "answer",  # a pull, with what is cut out and encoded for it
    "take",  # parameters
    "cut",
    "change",
)
FOLD, UNITS, READ, LOAD, ANSWER, TAKE, CUT, CHANGE = (
    NAMES.index(name) for name in ("fold", "units", "read", "load", "answer", "take", "cut", "change")
)
COLUMNS = 5  # track, name, clock, start and end


@dataclass(frozen=True)
class Spans:
    """Machine to head: rows of COLUMNS int64; times in Unix microseconds of the head's clock."""

    rows: Array
