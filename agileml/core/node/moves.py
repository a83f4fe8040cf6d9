"""Moves of shards and backups to this machine in a membership change, and from it: the step *install*.

The controller's `Fetch` names a source. A shard that this machine has itself is installed at once; for another it asks
the source (`Get`), again and again until a `Copy` comes, and tells the controller (`Installed`).
"""

from __future__ import annotations

from collections.abc import Callable

from agileml.core.node.backup import Backup
from agileml.core.node.server import Server
from agileml.core.node.sources.stores import stored_cut
from agileml.core.protocol.messages import (
    CONTROLLER,
    Copy,
    Cut,
    Fetch,
    Get,
    Installed,
    Message,
    Role,
    ShardCopy,
    SourceKind,
)


class ShardMoves:
    """The moves of one machine. `tag` is the durable view's epoch, whose copies a change starts from."""

    def __init__(self, server: Server, backup: Backup, send: Callable[[str, Message], None]) -> None:
        self._server = server
        self._backup = backup
        self._send = send
        self._fetching: dict[tuple[int, Role], Fetch] = {}

    def clear(self) -> None:
        """Fetch nothing more: another epoch begins."""
        self._fetching.clear()

    def fetch(self, message: Fetch, tag: int) -> None:
        """Install a shard or a backup from data on this machine, or ask the source for it."""
        is_backup = message.role is Role.BACKUP
        here = self._stage_here(message, tag) if is_backup else self._server.fetch(message, tag)
        if not here and (message.partition, message.role) not in self._fetching:
            self._fetching[message.partition, message.role] = message
            self._ask_for(message)

    def _stage_here(self, message: Fetch, tag: int) -> bool:
        """Stage a backup from data on this machine; False when another machine must be asked."""
        server, backup, source = self._server, self._backup, message.source
        if not backup.is_staged(message.epoch, message.partition):
            if source.kind in (SourceKind.INITIAL, SourceKind.CHECKPOINT):
                cut: Cut | None = stored_cut(server.stores, server.job, message.partition, source)
            elif source.kind is SourceKind.SHARD:
                # Its own replica may be behind, unless it is the source that the controller named.
                cut = server.shard_cut(message.partition, tag) if source.node == server.me else None
            else:
                cut = backup.cut(message.partition) or server.own_cut(message.partition, tag)
            if cut is None:
                return False
            backup.stage(message.epoch, message.partition, message.committed, cut)
        self._send(CONTROLLER, Installed(message.epoch, message.partition, Role.BACKUP))
        return True

    def _ask_for(self, fetch: Fetch) -> None:
        have = self._backup.name(fetch.partition) if fetch.source.kind is SourceKind.SHARD else None
        self._send(fetch.source.node, Get(fetch.epoch, fetch.partition, fetch.role, fetch.source, have))

    def give(self, asker: str, message: Get, tag: int) -> None:
        """Send a machine the copy that it asks for, if it is here."""
        if message.source.kind is SourceKind.BACKUP:
            cut = self._backup.cut(message.partition)
            copy = ShardCopy(cut, None, ()) if cut else None
        else:
            copy = self._server.copy_for(message, tag)
        if copy is not None:
            copy = self._server.as_role(message.role, copy)
            self._send(asker, Copy(message.epoch, message.partition, message.role, copy))

    def came(self, message: Copy) -> None:
        """Install a copy that this machine has asked for."""
        fetch = self._fetching.get((message.partition, message.role))
        copy = self._backup.completed(message.partition, message.copy) if fetch is not None else None
        if fetch is None or copy is None:
            return
        del self._fetching[message.partition, message.role]
        if message.role is Role.BACKUP:
            self._backup.stage(message.epoch, message.partition, fetch.committed, copy.cut)
            self._send(CONTROLLER, Installed(message.epoch, message.partition, Role.BACKUP))
        else:
            self._server.install(fetch, copy)

    def resend(self) -> None:
        """Ask again for all that has not come."""
        for fetch in self._fetching.values():
            self._ask_for(fetch)
