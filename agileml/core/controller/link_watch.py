"""Gives up one of two machines that do not reach each other, and takes it back when they do."""

from __future__ import annotations

from agileml.core.change.broken_links import BrokenLinks, Pair
from agileml.core.controller.control import Control
from agileml.core.protocol.messages import Unreachable
from agileml.events.run import MachineLost
from agileml.events.terms import Loss, Tier


class LinkWatch:
    """Judges the machines' reports of broken links. A new controller starts without any."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._links = BrokenLinks(control.settings.timeout_s)

    def report(self, node: str, message: Unreachable) -> None:
        """Record the machines that `node` does not reach."""
        self._links.report(node, message.names, self._control.now_s)

    def judge(self) -> None:
        """Give up a machine whose link has been down too long; take back those that no machine accuses any more."""
        control = self._control
        found = self._links.judge(control.members, control.view, self._is_needed, control.now_s)
        if found is not None:
            control.members.keep_apart(found.machine, control.now_s)
            control.note(MachineLost(found.machine, Loss.CUT_OFF, found.reason))
        for node in self._links.back(control.members, control.now_s):
            control.members.take_back(node)

    def take_back_reliable(self) -> None:
        """Take reliable machines back while no other one is alive, although some machines do not reach them."""
        members = self._control.members
        apart = [member for member in members.apart() if member.tier is Tier.RELIABLE]
        if apart and not members.has_reliable():
            for member in apart:
                members.take_back(member.name)

    def _is_needed(self, pair: Pair) -> bool:
        """True if the two exchange messages. With parameter servers two machines that are only workers do not."""
        control = self._control
        job, view, running = control.job, control.view, control.change
        if job.exchange.has_replicas or job.pipeline is not None or job.helping is not None:
            return True
        views = [view, running.change.view if running is not None and running.change is not None else None]
        serving = {node for each in views if each is not None for node in (*each.owner, *each.backup)}
        return not serving.isdisjoint(pair)
