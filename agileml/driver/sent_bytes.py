"""The bytes that the machines of a run have sent, over the deaths of its controllers."""

from __future__ import annotations

from collections.abc import Mapping

from agileml.process.run_transport import KINDS


class SentBytes:
    """Adds up what each machine has sent so far.

    A new controller knows nothing of the machines that went before it began, and hears the others one after the other.
    Their bytes count all the same: a total that fell, and rose again, would seem to be traffic.
    """

    def __init__(self) -> None:
        self._by_machine: dict[str, tuple[int, ...]] = {}

    def add(self, by_machine: Mapping[str, tuple[int, ...]]) -> None:
        """Take the newest counts of these machines, in the order of KINDS."""
        self._by_machine |= by_machine

    def by_kind(self) -> dict[str, int]:
        """The bytes of all machines, by what they were for."""
        columns = zip(*self._by_machine.values(), strict=True)
        return dict.fromkeys(KINDS, 0) | dict(zip(KINDS, map(sum, columns), strict=False))
