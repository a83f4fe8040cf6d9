"""Where a pool is: the region and zone in its name, as AWS writes them (us-east-1, us-east-1a). Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

# A region ends with a number; a zone of it with a letter, a local zone with its city before that (us-west-2-lax-1a).
_LOCATION = re.compile(
    r"(?<![a-z0-9])(?P<region>[a-z]{2,4}(?:-[a-z]{2,4})?-(?:north|south|east|west|central)[a-z]*-\d+)"
    r"(?P<zone>(?:-[a-z]{3}-\d+)?[a-z])?(?![a-z0-9])"
)


@dataclass(frozen=True, order=True)
class Location:
    """A zone and its region; the zone is the region's name where only that is known."""

    region: str
    zone: str


@cache
def location_of(name: str) -> Location | None:
    """The place that a zone's name, or that of a recording of it, holds; None: it holds none.

    us-east-1a and aws_us-east-1a_v100 are both (us-east-1, us-east-1a).
    """
    found = _LOCATION.search(name)
    return None if found is None else Location(found["region"], found[0])
