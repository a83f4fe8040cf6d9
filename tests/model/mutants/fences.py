"""Messages of another epoch are obeyed. PROTOCOL: the epoch fence of a node."""

from __future__ import annotations

from dataclasses import replace

from agileml.core.node.node import Node
from agileml.core.protocol.messages import Ack, Announce, Params, Part, Prepare, Push
from tests.model.mutants.mutant import replaces


@replaces(Node.handle, mode="bsp", caught_by=26)
def server_obeys_any_epoch(original, self, sender, message, now_s):
    """A frozen shard counts a push that its copy at the next owner does not have."""
    if isinstance(message, Push) and message.epoch != self.promised:
        self.server.push(sender, message, now_s, given=True)
    return original(self, sender, message, now_s)


@replaces(Node.handle, mode="bsp", caught_by=26)
def owner_not_frozen_by_its_promise(original, self, sender, message, now_s):
    """Between its promise and the view it goes on counting."""
    if isinstance(message, Push) and self.is_frozen and self.view and message.epoch == self.view.epoch:
        self.server.push(sender, message, now_s, given=True)
    return original(self, sender, message, now_s)


@replaces(Node.handle, mode="bsp", caught_by=6016)
def worker_obeys_acks_of_any_epoch(original, self, sender, message, now_s):
    """After a rollback an old acknowledgement stands for work that is gone."""
    if isinstance(message, Ack) and (self.is_frozen or message.epoch != self.promised):
        self.worker.ack(message)
    return original(self, sender, message, now_s)


@replaces(Node.handle, mode="dense-planned", caught_by=87)
def worker_obeys_parameters_of_any_epoch(original, self, sender, message, now_s):
    """A later version of another timeline stands for an acknowledgement."""
    if isinstance(message, Params) and (self.is_frozen or message.epoch != self.promised):
        self.worker.params(message)
    return original(self, sender, message, now_s)


@replaces(
    Node.handle,
    mode="ssp",
    safe="parts are named by clock and epoch, and a view drops those of other epochs: two more fences",
)
def backup_obeys_any_epoch(original, self, sender, message, now_s):
    """A part of another timeline gets into a cut."""
    if isinstance(message, Part) and message.epoch != self.promised:
        self.backup.part(sender, message)
    return original(self, sender, message, now_s)


@replaces(Node.handle, mode="bsp", caught_by=36)
def old_views_are_obeyed(original, self, sender, message, now_s):
    """A late view takes a promise back."""
    if isinstance(message, Announce) and (self.view is None or message.view.epoch != self.view.epoch):
        self.promised = min(self.promised, message.view.epoch)
    return original(self, sender, message, now_s)


@replaces(
    Node.handle,
    mode="bsp",
    safe="a promise is given again, and says which epoch it is for",
)
def old_fetches_are_obeyed(original, self, sender, message, now_s):
    """A late PREPARE is answered as if it were new."""
    if isinstance(message, Prepare):
        message = replace(message, epoch=max(message.epoch, self.promised))
    return original(self, sender, message, now_s)
