"""Divides units between the compute processes of a machine: an even number each, where their items are loaded."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from straggler.coverage import Units, members, union


def shares(units: Units, parts: int, loaded: Sequence[AbstractSet[int]]) -> list[Units]:
    """Divide units between processes; `loaded[i]` has the slices whose items process i has. Unit u is of slice
    u // parts.

    Each process gets as many units as any other, or one less: first units of its loaded slices, in their order, then
    what is left over.
    """
    numbers = list(members(units))
    room = [len(numbers) // len(loaded) + (i < len(numbers) % len(loaded)) for i in range(len(loaded))]
    found = [0] * len(loaded)
    left = []
    for number in numbers:
        owner = next((i for i, here in enumerate(loaded) if number // parts in here and room[i]), None)
        if owner is None:
            left.append(number)
        else:
            found[owner] |= 1 << number
            room[owner] -= 1
    for number in left:
        owner = next(i for i, free in enumerate(room) if free)
        found[owner] |= 1 << number
        room[owner] -= 1
    assert union(found) == units
    return found
