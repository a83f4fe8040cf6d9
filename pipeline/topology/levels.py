"""The machines as levels (thesis 5.3.1, figure 5.7): devices joined into servers, servers into racks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

MOST_DEVICES = 4096  # planning takes some minutes, and a time that grows with their square


class TopologyError(ValueError):
    """A topology that does not parse or makes no sense; the message is one sentence."""


@dataclass(frozen=True)
class Topology:
    """levels: (count, bytes_per_s) per level, innermost first.

    Level k joins `count` components of level k - 1 by links of `bytes_per_s` each; level 0 is one device.
    Device numbers count the innermost index fastest. Raises TopologyError.
    """

    levels: tuple[tuple[int, float], ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "levels", tuple((c, float(b)) for c, b in self.levels))
        if not self.levels:
            raise TopologyError("a topology needs at least one level, such as 4x12e9")
        for count, bytes_per_s in self.levels:
            if count < 1 or count != int(count):
                raise TopologyError(f"a level's count must be 1 or more, found {count}")
            if not (bytes_per_s > 0 and math.isfinite(bytes_per_s)):
                raise TopologyError(f"a level's bytes per second must be positive, found {bytes_per_s}")
        object.__setattr__(self, "levels", tuple((int(count), each) for count, each in self.levels))

    @property
    def devices(self) -> int:
        """How many devices there are in all."""
        return math.prod(count for count, _ in self.levels)

    def component_devices(self, level: int) -> int:
        """Devices in one component of a level (1 at level 0)."""
        return math.prod(count for count, _ in self.levels[:level])

    def with_outer_count(self, count: int) -> Topology:
        """The same machines with another number of components at the outermost level."""
        return Topology((*self.levels[:-1], (count, self.levels[-1][1])))

    def with_bandwidth(self, level: int, bytes_per_s: float) -> Topology:
        """The same machines with other links at a level (1-based)."""
        levels = list(self.levels)
        levels[level - 1] = (levels[level - 1][0], bytes_per_s)
        return Topology(tuple(levels))

    def link_level(self, a: int, b: int) -> int:
        """The level (1-based) whose links devices a and b use to talk to each other; 0 if a is b."""
        level = 0
        while a != b:
            count = self.levels[level][0]
            a, b, level = a // count, b // count, level + 1
        return level

    def __str__(self) -> str:
        return ",".join(f"{count}x{_short(bytes_per_s)}" for count, bytes_per_s in self.levels)


def check_devices(topology: Topology, speeds: Sequence[float] | None) -> None:
    """Raise TopologyError for more devices than can be planned for, or for speeds that are not theirs."""
    devices = topology.devices
    if devices > MOST_DEVICES:
        raise TopologyError(f"the topology has {devices:,} devices; expected at most {MOST_DEVICES:,}")
    if speeds is None:
        return
    if len(speeds) != devices:
        raise TopologyError(f"device speeds: found {len(speeds)}, the topology has {devices} devices")
    for speed in speeds:
        if not (speed > 0 and math.isfinite(speed)):
            raise TopologyError(f"a device's speed must be a positive number, found {speed}")


def parse_topology(text: str) -> Topology:
    """`4x12e9,4x1.25e9` -> 4 devices per server at 12 GB/s, 4 servers at 1.25 GB/s. Raises TopologyError."""
    levels = []
    for part in text.split(","):
        count_text, sep, speed_text = part.strip().partition("x")
        try:
            if not sep:
                raise ValueError
            levels.append((int(count_text), float(speed_text)))
        except ValueError:
            raise TopologyError(
                f"topology {text!r}: {part.strip()!r} is not COUNTxBYTES_PER_SECOND, as in 4x12e9,4x1.25e9"
            ) from None
    return Topology(tuple(levels))


def parse_bytes(text: str, name: str) -> float:
    """`16GB`, `512MB`, `16GiB` or a plain number of bytes. Raises TopologyError, which says `name`."""
    units = {
        "KB": 1e3,
        "MB": 1e6,
        "GB": 1e9,
        "TB": 1e12,
        "KIB": 2**10,
        "MIB": 2**20,
        "GIB": 2**30,
        "TIB": 2**40,
    }
    digits = text.strip().rstrip("BKMGTibkmgt").rstrip()
    unit = text.strip()[len(digits) :].strip().upper()
    try:
        return float(digits) * ({"": 1.0, "B": 1.0} | units)[unit]
    except (ValueError, KeyError):
        raise TopologyError(f"{name} takes a size such as 16GB, found {text!r}") from None


def _short(bytes_per_s: float) -> str:
    """12e9 rather than 12000000000.0, where that is the same number."""
    if 1e9 <= bytes_per_s < 1e15 and float(text := f"{bytes_per_s / 1e9:g}e9") == bytes_per_s:
        return text
    return repr(bytes_per_s)
