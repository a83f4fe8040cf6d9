"""Machines described in a YAML file: levels, and optionally each device's memory and speed.

levels:                      # innermost first
  - {count: 4, bytes_per_s: 12.0e9}
  - {count: 4, bytes_per_s: 1.25e9}
memory: 16GB
device_speed: [1, 1, 1, 1, 2, 2, 2, 2, ...]
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from pipeline.topology.levels import Topology, TopologyError, parse_bytes
from pipeline.yaml_text import YamlTextError, read_yaml


@dataclass(frozen=True)
class Machines:
    """A topology with the memory and the speed of each device."""

    topology: Topology
    memory_bytes: float | None
    device_speed: tuple[float, ...] | None


def read_topology(path: Path) -> Machines:
    """Read such a file. Raises TopologyError, whose sentence names the file and the key."""
    try:
        raw = read_yaml(path)
    except YamlTextError as error:
        raise TopologyError(str(error)) from None
    if not isinstance(raw, dict) or not isinstance(raw.get("levels"), list):
        raise TopologyError(f'{path}: expected the key "levels", a list of count and bytes_per_s')
    if unknown := sorted(set(raw) - {"levels", "memory", "device_speed"}):
        raise TopologyError(f"{path}: unknown key {unknown[0]!r}; known are levels, memory, device_speed")
    levels = []
    for number, level in enumerate(raw["levels"]):
        if not isinstance(level, dict) or set(level) != {"count", "bytes_per_s"}:
            raise TopologyError(f"{path}: levels.{number} must have count and bytes_per_s, found {level!r}")
        count = _number(level["count"], path, number)
        if not (math.isfinite(count) and count == int(count)):
            raise TopologyError(
                f"{path}: levels.{number}.count must be a whole number, found {level['count']!r}"
            )
        levels.append((int(count), _number(level["bytes_per_s"], path, number)))
    speeds = raw.get("device_speed")
    if speeds is not None and not isinstance(speeds, list):
        raise TopologyError(f"{path}: device_speed must be a list of numbers, found {speeds!r}")
    memory = raw.get("memory")
    try:
        return Machines(
            Topology(tuple(levels)),
            None if memory is None else parse_bytes(str(memory), "memory"),
            None if speeds is None else tuple(_number(s, path, i) for i, s in enumerate(speeds)),
        )
    except TopologyError as error:
        raise TopologyError(f"{path}: {error}") from None


def _number(value: object, path: Path, position: int) -> float:
    """YAML reads 12e9 as text."""
    try:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError
        return float(value)
    except ValueError:
        raise TopologyError(f"{path}: entry {position} must be a number, found {value!r}") from None
