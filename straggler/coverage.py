"""Which units of a clock have been counted: the one rule that makes redone work harmless.

A set of units is a Python int used as a bit set: bit u stands for unit u. Contributions of one clock are
bundles, sets of units that are equal or disjoint, so a bundle is either all there or not there at all. Work that
is done twice (after an eviction, by a helper that races the helped, by a message sent twice) is the same case:
a bundle that is there already is acknowledged and dropped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from enum import Enum

Units = int
MOST = 1 << 21  # units that a text may speak of: a set is a number of as many bits


class Verdict(Enum):
    """The answer to a bundle that arrives."""

    COUNT = "count"
    DUPLICATE = "duplicate"


def judge(counted: Units, bundle: Units) -> Verdict:
    """Say whether `bundle` is new or has been counted.

    Raises ValueError when a part of the bundle has been counted and a part has not: bundles of one clock must be
    equal or disjoint, so this is an error of the code that dealt out the work.
    """
    if bundle & counted == 0:
        return Verdict.COUNT
    if bundle & ~counted == 0:
        return Verdict.DUPLICATE
    raise ValueError(f"bundle {show(bundle)} is partly counted already: {show(bundle & counted)}")


def span(start: int, stop: int) -> Units:
    """The units start .. stop - 1."""
    return ((1 << (stop - start)) - 1) << start if stop > start else 0


def ranges(units: Units) -> list[tuple[int, int]]:
    """The set as ascending, disjoint, non-adjacent (start, stop) pairs."""
    found = []
    position = 0
    while units:
        zeros = (units & -units).bit_length() - 1
        units >>= zeros
        position += zeros
        ones = (~units & (units + 1)).bit_length() - 1
        found.append((position, position + ones))
        units >>= ones
        position += ones
    return found


def members(units: Units) -> Iterator[int]:
    """The units of the set, ascending."""
    for start, stop in ranges(units):
        yield from range(start, stop)


def union(sets: Iterable[Units]) -> Units:
    """All units that are in any of the sets."""
    result = 0
    for units in sets:
        result |= units
    return result


def aligned_subtrees(units: Units) -> list[Units]:
    """Cut a set into the fewest aligned subtrees of the binary tree over all units, ascending.

    An aligned subtree is a range [k 2^j, (k + 1) 2^j): the leaves below one node of the tree.
    """
    found = []
    for start, stop in ranges(units):
        while start < stop:
            size = start & -start or 1 << (stop - start).bit_length()
            while start + size > stop:
                size >>= 1
            found.append(span(start, start + size))
            start += size
    return found


def subtrees_between(start: int, stop: int) -> int:
    """How many aligned subtrees the units start .. stop - 1 are cut into, without making them; start < stop."""
    height = (start ^ stop).bit_length() - 1
    middle = stop >> height << height  # where the halves of the highest node that is not whole meet
    return (middle - start).bit_count() + (stop - middle).bit_count()


def count_subtrees(units: Units) -> int:
    """How many aligned subtrees a set is cut into."""
    return sum(subtrees_between(*ends) for ends in ranges(units))


def show(units: Units) -> str:
    """The set as text, for example `0-3,8`; `-` is the empty set. `parse` reads it back."""
    return (
        ",".join(str(start) if stop == start + 1 else f"{start}-{stop - 1}" for start, stop in ranges(units))
        or "-"
    )


def parse(text: str) -> Units:
    """Read the text that `show` prints. Raises ValueError for anything else."""
    units = 0
    if text == "-":
        return units
    for item in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", item, re.ASCII)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if last < first:
            raise ValueError(f"{item!r} is no range of units, expected for example 0-3 or 8")
        if last >= MOST:
            raise ValueError(f"{item!r} names a unit beyond the first {MOST}")
        units |= span(first, last + 1)
    return units
