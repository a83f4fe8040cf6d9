"""The present problems of a job's market, as sentences that hold until they are over. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from bidbrain.history.prices import Market
from bidbrain.instants import show_instant

SILENT_S = 120  # calls without an answer are normal for so long
EARLY_S = 2400  # a machine of EC2 that cannot join shuts down after half an hour
PAUSE_S, MOST_PAUSE_S = 600, 3600  # of a market whose machines fail


@dataclass
class TroubleWatch:
    """Collects a service's problems; `troubles` lists them. A single call without an answer is not one yet."""

    quoted: tuple[str, ...] = ()  # `Quotes.troubles`
    failing: tuple[str, ...] = ()  # markets whose machines end by themselves
    refused: str = ""  # reliable machines that the job needs and the market refused
    is_unanswered: bool = False  # a call of this step
    _why: str = ""
    _since_s: int | None = None

    def begin(self) -> None:
        """Begin a step of the service."""
        self.is_unanswered = False

    def unanswered(self, now_s: int, why: str) -> None:
        """Record that a call of this step had no answer."""
        self.is_unanswered = True
        if self._since_s is None:
            self._since_s, self._why = now_s, why

    def troubles(self, now_s: int, clock: str) -> tuple[str, ...]:
        """Every sentence that holds at the end of a step. clock: the clock's own trouble, or empty."""
        if not self.is_unanswered:
            self._since_s = None
        found = [*self.quoted, *self.failing, clock, self.refused]
        if self._since_s is not None and now_s - self._since_s >= SILENT_S:
            found.append(
                f"no answer since {show_instant(self._since_s)} ({self._why}): nothing is bought, what is held is kept"
            )
        return tuple(sentence for sentence in found if sentence)


@dataclass(frozen=True)
class _Waves:
    """How many waves of machines failed in a row; when the newest was launched, and when it was noticed."""

    count: int
    granted_s: int
    noticed_s: int

    @property
    def until_s(self) -> int:
        """When the job may order there again."""
        return self.noticed_s + (min(PAUSE_S << (self.count - 2), MOST_PAUSE_S) if self.count > 1 else 0)


@dataclass
class Failures:
    """The markets whose machines end by themselves soon after their launch, as where a boot fails or EC2 may not use
    the key of their disks.

    Such a market goes on selling machines, which fail as well. One wave of failures may be chance; after the second in
    a row the job orders nothing there for a while, longer each time.
    """

    _waves: dict[Market, _Waves] = field(default_factory=dict)

    def ended(self, market: Market, granted_s: int, at_s: int) -> None:
        """Record a machine that ended by itself."""
        if at_s - granted_s >= EARLY_S:
            return self.lasted(market, granted_s)
        before = self._waves.get(market)
        if before is None or granted_s > before.noticed_s:  # else of the same wave
            self._waves[market] = _Waves(1 if before is None else min(before.count + 1, 10), granted_s, at_s)
        return None

    def lasted(self, market: Market, granted_s: int) -> None:
        """Record that a machine of the market worked long enough: earlier failures are forgotten. One that was launched
        before those that failed, as with another image, says nothing about them."""
        before = self._waves.get(market)
        if before is not None and granted_s >= before.granted_s:
            del self._waves[market]

    def until_s(self, market: Market) -> int:
        """When the job may order in a market again."""
        waves = self._waves.get(market)
        return 0 if waves is None else waves.until_s

    def left_alone(self, now_s: int) -> frozenset[Market]:
        """The markets in which the job orders nothing now."""
        return frozenset(market for market, waves in self._waves.items() if now_s < waves.until_s)

    def troubles(self, now_s: int) -> Iterator[str]:
        """A sentence for each market of `left_alone`."""
        for market in sorted(self.left_alone(now_s)):
            waves = self._waves[market]
            yield (
                f"machines of {market} end by themselves soon after their launch, {waves.count} times in a row: "
                f"none is bought there until {show_instant(waves.until_s)}"
            )
