"""Parameters that a worker pulls: a clock's, as far as they are here, and those that an older view left."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from agileml.application import Array
from agileml.core.protocol.commands import Begin, Compute
from agileml.core.protocol.messages import Pull

Blocks = tuple[Array, ...]
Rows = tuple[tuple[Array | None, ...], ...]


@dataclass
class Reading:
    """A clock whose parameters are on their way. `begin` is None until its bundles are known.

    `asked`: the partitions that were pulled. `order`: the computation that has begun while parts are missing.
    """

    clock: int
    begin: Begin | None
    rows: Rows | None = None
    parts: dict[int, Blocks] = field(default_factory=dict)
    asked: set[int] = field(default_factory=set)
    order: Compute | None = None

    def choose(self, rows: Rows, carried: Mapping[int, Blocks]) -> None:
        """Settle which rows to read. Whole blocks that were carried over need no pull."""
        self.rows = rows
        for partition, blocks in carried.items():
            if all(chosen is None for chosen in rows[partition]):
                self.parts[partition] = blocks

    def parts_of(self, wanted: Sequence[int], partitions: int) -> tuple[Blocks | None, ...]:
        """By partition, the blocks that are here, None for those on their way, nothing where they are not wanted."""
        return tuple(self.parts.get(p, None if p in wanted else ()) for p in range(partitions))

    def pulls(self, epoch: int, partitions: Iterable[int]) -> Iterator[Pull]:
        """The pulls of those partitions that are not here; none before the rows are known."""
        if self.rows is None:
            return
        wanted = sorted(partitions)
        self.asked.update(wanted)
        for partition in wanted:
            if partition not in self.parts:
                yield Pull(epoch, partition, self.clock, self.rows[partition])


class CarriedBlocks:
    """Whole blocks that were pulled under an older view: they are the same under every view of a timeline."""

    def __init__(self) -> None:
        self._by_clock: dict[int, dict[int, Blocks]] = {}

    def carry(self, readings: Iterable[Reading], *, but: int | None) -> None:
        """Keep what these readings have, except of partition `but`.

        The blocks are copied, because an older clock may come first now, and its parameters will overwrite the buffer.
        """
        for reading in readings:
            if reading.rows is None:
                continue
            carried = self._by_clock.setdefault(reading.clock, {})
            for partition, blocks in reading.parts.items():
                if partition != but and all(rows is None for rows in reading.rows[partition]):
                    carried[partition] = tuple(block.copy() for block in blocks)

    def take(self, clock: int) -> Mapping[int, Blocks]:
        """The blocks of a clock by partition, once."""
        return self._by_clock.pop(clock, {})

    def clear(self) -> None:
        """Drop everything: another timeline begins."""
        self._by_clock.clear()
