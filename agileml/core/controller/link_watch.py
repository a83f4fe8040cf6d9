"""Gives up one of two machines that do not reach each other, and lets it come back when they do."""

from __future__ import annotations

from agileml.core.change.broken_links import BrokenLinks, Pair
from agileml.core.controller.control import Control
from agileml.core.protocol.messages import Unreachable
from agileml.events.run import MachineLost
from agileml.events.terms import Loss, Tier


class LinkWatch:
    """Hears the machines' reports. A controller that takes over begins anew."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._links = BrokenLinks(control.settings.timeout_s)

    def told(self, node: str, message: Unreachable) -> None:
        """A machine says whom it does not reach."""
        self._links.told(node, message.names, self._control.now_s)

    def judge(self) -> None:
        """Give a machine up if it is time, and take those back that are not accused any more."""
        control = self._control
        found = self._links.judge(control.members, control.view, self._is_needed, control.now_s)
        if found is not None:
            control.members.keep_apart(found.machine, control.now_s)
            control.note(MachineLost(found.machine, Loss.CUT_OFF, found.reason))
        for node in self._links.back(control.members, control.now_s):
            control.members.take_back(node)

    def take_back_reliable(self) -> None:
        """Take reliable machines back if there is no other one: the others then do without what they do not reach."""
        members = self._control.members
        apart = [member for member in members.apart() if member.tier is Tier.RELIABLE]
        if apart and not members.has_reliable():
            for member in apart:
                members.take_back(member.name)

    def _is_needed(self, pair: Pair) -> bool:
        """True where the two have something to say to each other: workers of servers have not."""
        control = self._control
        job, view, running = control.job, control.view, control.change
        if job.exchange.has_replicas or job.pipeline is not None or job.helping is not None:
            return True
        views = [view, running.change.view if running is not None and running.change is not None else None]
        serving = {node for each in views if each is not None for node in (*each.owner, *each.backup)}
        return not serving.isdisjoint(pair)
