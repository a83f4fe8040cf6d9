"""Killing a service between any two of its effects."""

from __future__ import annotations

import random

from bidbrain.live.journal import Journal, Record


class Killed(BaseException):
    """The service is dead from here on."""


class Fuse:
    """Counts the moments between two effects of a service; burns at the one that was set."""

    def __init__(self, at: int | None) -> None:
        self.at, self.count = at, 0
        self.where = ""
        self.passed: list[str] = []

    def moment(self, where: str) -> None:
        self.count += 1
        self.passed.append(where)
        if self.count == self.at:
            self.where = where
            raise Killed(where)


class FusedJournal:
    """A journal whose writer may die before, inside or after a line."""

    def __init__(self, journal: Journal, fuse: Fuse) -> None:
        self.journal, self.fuse, self.records = journal, fuse, journal.records

    def append(self, record: Record) -> None:
        self.fuse.moment(f"before writing {record.kind}")
        try:
            self.fuse.moment(f"inside the line {record.kind}")
        except Killed:
            with self.journal.path.open("ab") as torn:
                torn.write(b'{"kind":"' + record.kind.encode())
            raise
        self.journal.append(record)
        self.fuse.moment(f"after writing {record.kind}")


class FusedCloud:
    """A market whose caller may die before a call is made or before its answer is used."""

    def __init__(self, cloud, fuse: Fuse) -> None:
        self._cloud, self._fuse, self.together = cloud, fuse, cloud.together

    def __getattr__(self, name: str):
        call = getattr(self._cloud, name)

        def fused(*arguments):
            if name in ("acquire", "release", "held", "ended"):
                self._fuse.moment(f"before {name}")
            answer = call(*arguments)
            if name in ("acquire", "release", "held", "ended"):
                self._fuse.moment(f"after {name}")
            return answer

        return fused


def pick(rng: random.Random, moments: list[str]) -> int:
    """A random moment of a random kind, in the first half of a job: what is rare is tried as often."""
    half = moments[: len(moments) // 2]
    kind = rng.choice(sorted(set(half)))
    return 1 + rng.choice([i for i, each in enumerate(half) if each == kind])
