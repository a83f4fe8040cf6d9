"""How much room pools have, as their answers show it: one that gave less than was asked has no more for a while. Pure.

Only a fleet whose traffic costs something needs this. Without it a pool that gives half of a fleet is the best one
again at the next decision, since it seems to have room for all, and the fleet stays torn in halves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bidbrain.history.prices import Market

FULL_S = 3600  # until a pool that gave less than was asked is asked again


@dataclass
class Rooms:
    """The vCPUs that one policy asked of its pools, and those that it got.

    A policy does not count on a full pool, but may still ask it for vCPUs that no other pool gives.
    """

    _held: dict[Market, int] = field(default_factory=dict)  # at the last decision
    _asked: dict[Market, int] = field(default_factory=dict)
    _full_until_s: dict[Market, int] = field(default_factory=dict)

    def look(self, now_s: int, held: Mapping[Market, int]) -> None:
        """A decision begins, and this is held or requested in each pool."""
        for market, vcpus in self._asked.items():
            if held.get(market, 0) < self._held.get(market, 0) + vcpus:
                self._full_until_s[market] = now_s + FULL_S
        self._held, self._asked = dict(held), {}
        self._full_until_s = {m: until_s for m, until_s in self._full_until_s.items() if until_s > now_s}

    def ask(self, market: Market, vcpus: int) -> None:
        """So much is asked of a pool by this decision."""
        self._asked[market] = vcpus

    def new(self, market: Market, cap_vcpus: int) -> int:
        """The most that may be counted on beyond what is held there."""
        return 0 if market in self._full_until_s else cap_vcpus
