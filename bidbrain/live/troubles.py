"""The present problems of a job's market, as sentences that hold until they are over. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from bidbrain.instants import show_instant

SILENT_S = 120  # calls without an answer are normal for so long


@dataclass
class TroubleWatch:
    """Collects a service's problems; `troubles` lists them. A single call without an answer is not one yet."""

    quoted: tuple[str, ...] = ()  # what the market says of itself
    refused: str = ""  # what the market does not sell and the job needs
    is_unanswered: bool = False  # a call of this step
    _why: str = ""
    _since_s: int | None = None

    def begin(self) -> None:
        """A step of the service begins."""
        self.is_unanswered = False

    def unanswered(self, now_s: int, why: str) -> None:
        """A call of this step had no answer."""
        self.is_unanswered = True
        if self._since_s is None:
            self._since_s, self._why = now_s, why

    def troubles(self, now_s: int, clock: str) -> tuple[str, ...]:
        """Every sentence that holds at the end of a step. clock: what the clock says of itself, empty for nothing."""
        if not self.is_unanswered:
            self._since_s = None
        found = [*self.quoted, clock, self.refused]
        if self._since_s is not None and now_s - self._since_s >= SILENT_S:
            found.append(
                f"no answer since {show_instant(self._since_s)} ({self._why}): nothing is bought, what is held is kept"
            )
        return tuple(sentence for sentence in found if sentence)
