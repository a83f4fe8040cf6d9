"""The protocol of a fleet whose machines are bought, as a session sees it."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from agileml.runs.folder import RunFolder


@runtime_checkable
class BoughtFleet(Protocol):
    """A fleet with a market behind it (`agileml.market.fleet.MarketFleet`)."""

    @property
    def code(self) -> int:
        """The job's exit code, after the fleet's context was left."""

    def attach(self, folder: RunFolder) -> None:
        """Keep the journal in the run's folder. Raises RunError where another service has it."""

    def ended(self, clock: int) -> None:
        """The session holds the result of so many clocks."""

    def summary(self) -> dict[str, Any] | None:
        """The market's part of summary.json, once the fleet was left; None without a last bill."""
