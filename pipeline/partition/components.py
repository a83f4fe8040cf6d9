"""Components of a topology by type: devices of equal speed, servers with equal devices, and so on upwards.

Equal components are interchangeable, so the partitioner chooses how many of each type a stage gets, not
which. With equal devices there is one type per level and the choice is the thesis' m.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass

import numpy as np

from pipeline.partition.kernels import Ints
from pipeline.topology.levels import Topology


@dataclass(frozen=True)
class Choices:
    """Sub-multisets of one component's children, smallest first; 0 is empty, the last is all of them.

    counts[c]: how many of each child type. The other fields are the flat lists of `kernels.general_row`.
    """

    counts: tuple[tuple[int, ...], ...]
    sizes: Ints
    fewer_at: Ints
    fewer: Ints
    part_at: Ints
    parts: Ints
    rests: Ints
    type_at: Ints
    types: Ints

    @property
    def all(self) -> int:
        """The index of the whole component."""
        return len(self.counts) - 1

    def children(self, c: int) -> list[int]:
        """The child types that c holds."""
        return [t for t, n in enumerate(self.counts[c]) if n]

    def splits(self, c: int) -> list[tuple[int, int]]:
        """(part, rest) for every way to take a proper part from c."""
        at = slice(self.part_at[c], self.part_at[c + 1])
        return list(zip(self.parts[at].tolist(), self.rests[at].tolist(), strict=True))

    def smaller(self, c: int) -> list[int]:
        """Every sub-multiset of c but the empty one, c included, largest first."""
        return [
            d
            for d in range(len(self.counts) - 1, 0, -1)
            if all(x <= y for x, y in zip(self.counts[d], self.counts[c], strict=True))
        ]


@dataclass(frozen=True)
class Components:
    """speeds: of each device type. type_of[k][index]: the type of each component of level k.
    choices[k][type]: for levels 1 and up (choices[0] is empty)."""

    topology: Topology
    speeds: tuple[float, ...]
    type_of: tuple[tuple[int, ...], ...]
    choices: tuple[tuple[Choices, ...], ...]


def components(topology: Topology, speeds: tuple[float, ...] | None) -> Components:
    """Group the components of a topology; `speeds`: one number per device, innermost index fastest."""
    per_device = speeds or (1.0,) * topology.devices
    distinct = tuple(sorted(set(per_device)))
    current = [distinct.index(speed) for speed in per_device]
    type_of = [tuple(current)]
    choices: list[tuple[Choices, ...]] = [()]
    for count, _ in topology.levels:
        kinds = max(current) + 1
        contents = []
        for first in range(0, len(current), count):
            held = Counter(current[first : first + count])
            contents.append(tuple(held[t] for t in range(kinds)))
        known = sorted(set(contents))
        current = [known.index(content) for content in contents]
        type_of.append(tuple(current))
        choices.append(tuple(_choices(content) for content in known))
    return Components(topology, distinct, tuple(type_of), tuple(choices))


def count_choices(topology: Topology, speeds: tuple[float, ...]) -> int:
    """The largest number of (whole, part) pairs at any component: what `components` would have to list."""
    largest = 0
    kinds: list[object] = list(speeds)
    for count, _ in topology.levels:
        groups = [tuple(sorted(map(repr, kinds[i : i + count]))) for i in range(0, len(kinds), count)]
        for group in groups:
            pairs = 1
            for n in Counter(group).values():
                pairs *= (n + 1) * (n + 2) // 2
            largest = max(largest, pairs)
        kinds = list(groups)
    return largest


def _choices(content: tuple[int, ...]) -> Choices:
    counts = sorted(itertools.product(*(range(n + 1) for n in content)), key=lambda c: (sum(c), c))
    index = {c: i for i, c in enumerate(counts)}
    fewer_at, part_at, type_at = [0], [0], [0]
    fewer: list[int] = []
    parts: list[int] = []
    rests: list[int] = []
    types: list[int] = []
    for c in counts:
        for t, n in enumerate(c):
            if n:
                fewer.append(index[(*c[:t], n - 1, *c[t + 1 :])])
                types.append(t)
        for part in itertools.product(*(range(n + 1) for n in c)):
            if any(part) and part != c:
                parts.append(index[part])
                rests.append(index[tuple(x - y for x, y in zip(c, part, strict=True))])
        fewer_at.append(len(fewer))
        part_at.append(len(parts))
        type_at.append(len(types))

    def ints(values: list[int]) -> Ints:
        return np.array(values, dtype=np.int64)

    return Choices(
        counts=tuple(counts),
        sizes=ints([sum(c) for c in counts]),
        fewer_at=ints(fewer_at),
        fewer=ints(fewer),
        part_at=ints(part_at),
        parts=ints(parts),
        rests=ints(rests),
        type_at=ints(type_at),
        types=ints(types),
    )
