"""Rendezvous buffers: parameters from other machines arrive directly at their place in the tables of the next clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from agileml.application import Array
from agileml.core.parameters.layout import Layout
from agileml.core.protocol.commands import Compute
from agileml.core.protocol.messages import Params
from agileml.net.codec import Codec
from agileml.net.codec_arrays import CodecError


class Rooms(Protocol):
    """Memory in which the next computation reads its parameters."""

    layout: Layout

    def room(self, table: int, partition: int, clock: int) -> Array | None:
        """The memory of a partition's block of a table in a clock; None: it has no place of its own."""


class NoRooms:
    """Gives no memory: a stage reads the blocks of its partitions where they are."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def room(self, table: int, partition: int, clock: int) -> Array | None:
        return None


class RendezvousBuffers:
    """Gives a transport memory for the answers to pulls.

    Each partition of a clock gets its place in the whole tables once. An answer that arrives a second time, for another
    clock, or while a computation reads the tables gets other memory; the worker copies it later or drops it. A
    computation that began before some partitions had come gets them in its tables: it reads none before its `Deliver`.
    """

    def __init__(
        self, rooms: Rooms, codec: Codec, is_at_work: Callable[[int], bool], keep_off: Callable[[], None]
    ) -> None:
        """`is_at_work(clock)`: a computation reads the tables of this clock. `keep_off()` ends all writing to buffers
        given out earlier."""
        self._rooms = rooms
        self._codec = codec
        self._is_at_work = is_at_work
        self._keep_off = keep_off
        self._reading = (0, -1)  # epoch and clock
        self._filling: tuple[int, int] | None = None  # the reading of a computation that lacks partitions
        self._given: set[tuple[int, int]] = set()  # (table, partition)
        self.lent = 0  # arrays that were given a place so far

    def room(self, header: bytes, number: int, size: int) -> Array | None:
        """The buffer for array `number` of a message, of `size` bytes (uint8); None: the transport allocates one."""
        try:
            message = self._codec.outline(header)
        except CodecError:
            return None  # decoding the whole message will report it
        if not isinstance(message, Params) or not self._is_known(message.partition, number):
            return None
        reading = message.epoch, message.clock
        if reading != self._filling and self._is_at_work(message.clock):
            return None
        self._turn_to(reading)
        place = self._rooms.room(number, message.partition, message.clock)
        if reading < self._reading or (number, message.partition) in self._given:
            return None
        if place is None or place.nbytes != size:
            return None
        self._given.add((number, message.partition))
        self.lent += 1
        return place.view(np.uint8)

    def _turn_to(self, reading: tuple[int, int]) -> None:
        """Give answers of older epochs and clocks no place from now on."""
        if reading > self._reading:
            self._keep_off()
            self._reading = reading
            self._given.clear()

    def _is_known(self, partition: int, table: int) -> bool:
        layout = self._rooms.layout
        return 0 <= partition < layout.partitions and table < len(layout.tables)

    def close(self, command: Compute, epoch: int) -> None:
        """Stop all writing to the tables: from now on a computation reads them. Only answers of this
        epoch may still bring the partitions that it lacks."""
        self._keep_off()
        clock = self._reading[1]
        assert clock == command.clock or not self._lies_here(command), (self._reading, command.clock)
        is_free = not self._is_at_work(command.clock)
        self._filling = (epoch, command.clock) if is_free and None in command.parts else None
        self._turn_to((epoch, command.clock))

    def _lies_here(self, command: Compute) -> bool:
        places = (self._rooms.room(*given, command.clock) for given in self._given)
        arrays = [array for blocks in command.parts if blocks is not None for array in blocks]
        return any(
            np.may_share_memory(place, array) for place in places if place is not None for array in arrays
        )
