"""The helper's side of FlexRR (thesis 3.3, algorithm 2): ranges that other workers asked this one to compute."""

from __future__ import annotations

from straggler.flexrr.protocol import CancelAck, CancelHelp, DoThis, HelpCompleted


class HelpQueue:
    """Requests for help that wait, and what became of the others.

    A request or a cancel may come late or twice: a cancelled range is not taken up again, a range is begun once, and
    every question about it gets the same answer.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[int, DoThis]] = []
        self._begun: dict[int, dict[int, bool]] = {}  # helpee -> timestamp of what was begun -> completed
        self._cancelled: dict[int, int] = {}  # helpee -> latest cancel timestamp
        self._newest_clock: dict[int, int] = {}  # helpee -> latest clock that it asked help for

    def accept(self, helpee: int, request: DoThis) -> bool:
        """Queue a request; False if it is an old or a doubled one."""
        clock, newest = request.bundle.clock, self._newest_clock.get(helpee, -1)
        if (
            clock < newest  # a late double: nothing of that clock is open
            or self.is_cancelled(helpee, request)
            or self.was_begun(helpee, request)
            or (helpee, request) in self._waiting
        ):
            return False
        if clock > newest:
            self._newest_clock[helpee] = clock
            self._begun.pop(helpee, None)  # the helpee will not ask about an earlier clock again
        self._waiting.append((helpee, request))
        return True

    def is_cancelled(self, helpee: int, request: DoThis) -> bool:
        """True if the helpee has cancelled this request, or a later one."""
        return request.timestamp <= self._cancelled.get(helpee, -1)

    def was_begun(self, helpee: int, request: DoThis) -> bool:
        """True if this worker has begun to compute the range."""
        return request.timestamp in self._begun.get(helpee, ())

    def take(self, clock: int, *, any_clock: bool) -> tuple[int, DoThis] | None:
        """The next (helpee, request) to compute; of clocks before `clock` only, unless `any_clock`."""
        for at, (helpee, request) in enumerate(self._waiting):
            if any_clock or request.bundle.clock < clock:
                del self._waiting[at]
                self._begun.setdefault(helpee, {})[request.timestamp] = False
                return helpee, request
        return None

    def complete(self, helpee: int, request: DoThis) -> None:
        """The range is computed."""
        self._begun[helpee][request.timestamp] = True

    def cancel(self, helpee: int, cancel: CancelHelp) -> HelpCompleted | CancelAck:
        """Drop the range that the helpee takes back; returns the answer to it."""
        self._cancelled[helpee] = max(cancel.timestamp, self._cancelled.get(helpee, -1))
        self.drop_cancelled()
        completed = self._begun.get(helpee, {}).get(cancel.assignment.timestamp)
        if completed:
            return HelpCompleted(cancel.assignment)
        return CancelAck(cancel.assignment, begun=completed is not None)

    def drop_cancelled(self) -> None:
        """Keep only the requests that are not cancelled."""
        self._waiting = [(who, what) for who, what in self._waiting if not self.is_cancelled(who, what)]

    def drop_counted(self, clock: int) -> None:
        """Everything up to this clock is counted."""
        self._waiting = [(who, what) for who, what in self._waiting if what.bundle.clock > clock]

    def forget(self, helpee: int) -> None:
        """The helpee left."""
        self._waiting = [(who, what) for who, what in self._waiting if who != helpee]
        self._begun.pop(helpee, None)
