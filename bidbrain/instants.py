"""Instants and intervals: ISO 8601 in files and options, whole seconds since 1970 (UTC) in the code."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

DAY_S = 86_400
FIRST_S, LAST_S = -62_135_596_800, 253_402_300_799  # of the years 1 to 9999


def parse_instant(text: str) -> int:
    """Seconds since 1970 of a date (its 00:00Z) or an instant; without a zone it is UTC.

    Fractions of a second are cut off. Raises ValueError with a sentence.
    """
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(
            f"{text!r} is not a date or instant (expected 2016-03-26 or 2016-03-26T13:00:00Z)"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    seconds = int(moment.timestamp() // 1)
    if not FIRST_S <= seconds <= LAST_S:  # by its zone
        raise ValueError(f"{text!r} is outside of the years 1 to 9999 (UTC)")
    return seconds


def show_instant(seconds: int) -> str:
    """Seconds since 1970 as 2016-03-26T13:00:00Z."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True, order=True)
class Interval:
    """[start_s, end_s) in seconds since 1970."""

    start_s: int
    end_s: int

    @staticmethod
    def parse(text: str) -> Interval:
        """FROM/TO, dates or instants; raises ValueError with a sentence."""
        halves = text.split("/")
        if len(halves) != 2:
            raise ValueError(
                f"{text!r} is not an interval (expected FROM/TO, as 2016-02-25T13:00Z/2016-03-26)"
            )
        interval = Interval(parse_instant(halves[0]), parse_instant(halves[1]))
        if interval.end_s <= interval.start_s:
            raise ValueError(f"the interval {text} ends before it starts")
        return interval

    def __str__(self) -> str:
        return f"{show_instant(self.start_s)}/{show_instant(self.end_s)}"

    @property
    def seconds(self) -> int:
        return max(0, self.end_s - self.start_s)

    def overlap(self, other: Interval) -> Interval:
        """The part that both share; its `seconds` are 0 if there is none."""
        start = max(self.start_s, other.start_s)
        return Interval(start, max(start, min(self.end_s, other.end_s)))

    def minus(self, cuts: tuple[Interval, ...]) -> tuple[Interval, ...]:
        """The pieces that are left without `cuts`, in order of time."""
        pieces: list[Interval] = []
        start = self.start_s
        for cut in sorted(cuts):
            if cut.end_s <= start or cut.start_s >= self.end_s:
                continue
            if cut.start_s > start:
                pieces.append(Interval(start, cut.start_s))
            start = max(start, cut.end_s)
        if start < self.end_s:
            pieces.append(Interval(start, self.end_s))
        return tuple(pieces)
