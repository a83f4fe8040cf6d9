"""Events for tests that need some fields of one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from agileml.events.run import MembershipChanged
from agileml.events.terms import Trigger


def changed(epoch: int, trigger: Trigger, **fields: Any) -> MembershipChanged:
    """A change to one reliable machine in stage 1, but for `fields`."""
    plain = MembershipChanged(epoch, trigger, "first view", 0.05, 1, 1, 0, (), (), 0, 0, rolled_back=False)
    return replace(plain, **fields)
