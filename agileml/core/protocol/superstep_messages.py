"""The messages of supersteps (`agileml.core.supersteps`), except pulls and pushes of a minibatch (`messages`).

A minibatch is named by its position in the order of all: unit u of clock c has position c x units + u.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SuperstepPlan:
    """`units[i]` minibatches for the i-th worker of the view's share, from position `first` on."""

    first: int
    units: tuple[int, ...]


@dataclass(frozen=True)
class StepTaken:
    """A step of a partition: the position of its minibatch, and for each partition the number of steps in what
    its gradient was computed from."""

    position: int
    reads: tuple[int, ...]


@dataclass(frozen=True)
class NextSuperstep:
    """Worker to the owner of partition 0: all my minibatches before `first` are counted; which superstep is next?"""

    epoch: int
    first: int


@dataclass(frozen=True)
class SuperstepFixed:
    """The answer to `NextSuperstep`, the same for every worker."""

    epoch: int
    plan: SuperstepPlan


@dataclass(frozen=True)
class SuperstepChosen:
    """Owner of partition 0 to controller, for the log: from `first` on workers get other numbers of minibatches."""

    epoch: int
    first: int
    units: tuple[tuple[str, int], ...]
    predicted_s: float
    reason: str


@dataclass(frozen=True)
class StepsTaken:
    """Owner to controller, for the log: steps of a partition that the controller may lack; number `first` comes first.
    Repeated until `StepsReceived`. `kept`: the owner has all steps from this number on, and can send them again."""

    epoch: int
    partition: int
    first: int
    taken: tuple[StepTaken, ...]
    kept: int


@dataclass(frozen=True)
class StepsReceived:
    """Controller to owner: it has the first `received` steps of a partition, and the log the first `written`.

    An owner goes on from `received`. It keeps what is not written: the controller may die with it, and the next one
    has received nothing.
    """

    epoch: int
    partition: int
    received: int
    written: int
