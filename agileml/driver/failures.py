"""Processes that end by themselves: user code that exits or crashes, or memory that ran out.

Their machines live, which is how they are told from losses of machines: a death is held against user code only when
another process has come up on the same machine. Losses of machines never use up the budget.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Death:
    """A process that ended: of which machine of the run, and what is known of why."""

    machine: str
    cause: str

    def __str__(self) -> str:
        return f"the process of machine {self.machine} ended by itself ({self.cause})"


class Failures:
    """Up to `most` such deaths are survived."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.counted: list[Death] = []
        self._open: dict[str, Death] = {}  # by node, until it is known whether the machine lives

    def died(self, node: str, death: Death) -> None:
        """A process ended; whether its machine went too is not known yet."""
        self._open[node] = death

    def machine_lives(self, node: str) -> Death | None:
        """Another process runs on the machine: a death there was not the machine's. Returns it, counted."""
        death = self._open.pop(node, None)
        if death is not None:
            self.counted.append(death)
        return death

    def machine_lost(self, node: str) -> None:
        """The machine is gone: that explains it."""
        self._open.pop(node, None)

    @property
    def is_too_many(self) -> bool:
        """True when one more than `most` are counted."""
        return len(self.counted) > self.most

    def verdict(self) -> str:
        """Why the run stops when they are too many."""
        many = len(self.counted)
        what = (
            "a process ended on a machine that lives"
            if many == 1
            else f"{many} processes ended on machines that live"
        )
        return (
            f"{what}, more than max_failures = {self.most}: user code exits or crashes, or memory runs out; "
            f"the last: {self.counted[-1]}"
        )

    def blamed(self, reason: str) -> str:
        """`reason` for which the run is lost, with the death that most likely led to it."""
        deaths = [*self.counted, *self._open.values()]
        return f"{reason}; before that {deaths[-1]}" if deaths else reason


def cause_of(said: str) -> str:
    """The part that matters of what Ray says about an actor that died."""
    text = " ".join(said.split())
    for mark in ("Worker exit detail: ", "The actor is dead because "):
        if mark in text:
            text = text.partition(mark)[2]
            break
    return text.partition(" Some common causes")[0].strip().rstrip(".")[:300] or "no reason known"
