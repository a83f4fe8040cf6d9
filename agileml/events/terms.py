"""Words that events share with the rest of the code: tiers of machines, planned faults."""

from __future__ import annotations

from enum import StrEnum


class Tier(StrEnum):
    """What a machine promises: to stay, or nothing."""

    RELIABLE = "reliable"
    TRANSIENT = "transient"


class Fault(StrEnum):
    """What is done to machines, or to the controller, without asking."""

    KILL = "kill"  # the whole machine, without a word
    KILL_RELIABLE = "kill_reliable"
    FREEZE = "freeze"  # it stands still, with its connections open
    CUT = "cut"  # it runs on, but no message gets through
    SLOW = "slow"  # it computes so many times slower
    DISK_FULL = "disk_full"  # checkpoints cannot be written
    KILL_CONTROLLER = "kill_controller"
