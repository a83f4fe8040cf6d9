"""The two kinds of machines."""

from __future__ import annotations

from enum import StrEnum


class Tier(StrEnum):
    """What a machine promises: to stay, or nothing."""

    RELIABLE = "reliable"
    TRANSIENT = "transient"
