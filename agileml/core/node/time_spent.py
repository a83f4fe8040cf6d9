"""The time that a machine's worker spends on each activity. Counting costs one comparison per message.

A worker does one thing at a time. Beside it, the serving thread adds up and applies contributions; that time counts as
FOLD only while the worker has nothing to compute, because only then does the clock wait for it.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from agileml.core.node.work_log import WorkLog
from agileml.core.protocol.commands import Computed


class Doing(Enum):
    """The activities of a worker, in the order of reports."""

    PULL = "pull"  # waits for parameters: until other workers are done and the blocks have arrived
    COMPUTE = "compute"
    PUSH = "push"  # has computed and waits until every partition has counted it
    FOLD = "fold"  # waits while this machine's server adds up and applies
    FROZEN = "frozen"  # waits for a membership change to end
    IDLE = "idle"  # has no bundles under the present view, or the run is done


DOING = tuple(Doing)
WAITING = (Doing.PULL, Doing.PUSH, Doing.FOLD)  # for others, in the middle of a clock
INDEX = {doing: index for index, doing in enumerate(DOING)}

# (what, clock, start_s, end_s), all in the time of the calls
OnSpan = Callable[[Doing, int, float, float], None]


class TimeSpent:
    """Seconds by `Doing`. Time is an argument and may be wall time: a step backwards counts as zero."""

    def __init__(self) -> None:
        self.doing = Doing.IDLE
        self.units, self.units_s = 0, 0.0  # computed so far, and the seconds that these took
        self.units_helped = 0  # of them, those of other machines
        self.log = WorkLog()
        self.on_span: OnSpan | None = None  # called for each stretch that ends
        self.clock = 0
        self._began_s = 0.0  # the present stretch
        self._since_s: float | None = None  # not counted yet
        self._folded_s = self._waited_s = 0.0  # of what is not counted yet
        self._seconds = [0.0] * len(DOING)

    def turn(self, doing: Doing, clock: int, now_s: float) -> None:
        """Begin another activity of the worker, for this clock."""
        self._count(now_s)
        if self.on_span is not None and now_s > self._began_s > 0:
            self.on_span(self.doing, self.clock, self._began_s, now_s)
        self.doing, self.clock, self._began_s = doing, clock, now_s
        if doing is Doing.COMPUTE:
            self.log.computes(clock)
        elif doing is Doing.IDLE:
            self.log.close()

    def begin_view(self, epoch: int, base: int, now_s: float) -> None:
        """Go on under a new view, from clock `base`."""
        self._count(now_s)
        self.log.begin_view(epoch, base)
        if self.doing is Doing.COMPUTE:  # what it computes for the view before may count in this one
            self.log.computes(self.clock)

    def computed(self, event: Computed, first: int = 0) -> None:
        """Count the units of a computed bundle, with the first partition of the worker, which comes once.

        The time that it waited for parameters counts as PULL.
        """
        self._waited_s += event.waited_s
        if any(partition == first for partition, _ in event.contributions):
            self.units += (units := event.bundle.bit_count())
            self.units_s += event.compute_s
            self.log.computed(units)

    def helped(self, helpee: str, clock: int, units: int) -> None:
        """Count units that were computed for another machine."""
        self.units_helped += units
        self.log.helped(helpee, units)

    def _count(self, now_s: float) -> None:
        if self._since_s is not None:
            seconds = max(0.0, now_s - self._since_s)
            folded_s = min(seconds, self._folded_s)
            self._seconds[INDEX[self.doing]] += seconds - folded_s
            self._seconds[INDEX[Doing.FOLD]] += folded_s
            if self.doing is Doing.COMPUTE:
                waited_s = min(seconds, self._waited_s)
                self._waited_s -= waited_s
                self._seconds[INDEX[Doing.COMPUTE]] -= waited_s
                self._seconds[INDEX[Doing.PULL]] += waited_s
                self.log.spent(seconds - waited_s, waited_s)
            elif self.doing in WAITING:
                self.log.spent(0.0, seconds)
        self._since_s, self._folded_s = now_s, 0.0

    def folded(self, seconds: float) -> None:
        """Count `seconds` that the serving thread spent adding up, after the last `turn`."""
        if self.doing is Doing.PULL or self.doing is Doing.PUSH:
            self._folded_s += seconds

    def waited_s(self, now_s: float) -> float:
        """Seconds until now in which the worker waited for others in the middle of a clock."""
        self._count(now_s)
        return sum(self._seconds[INDEX[doing]] for doing in WAITING)

    def seconds(self, now_s: float) -> tuple[float, ...]:
        """Seconds until now, in the order of DOING."""
        self._count(now_s)
        return tuple(self._seconds)
