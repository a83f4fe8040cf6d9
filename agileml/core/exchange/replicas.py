"""Chooses the replicas that a membership change starts from when every machine holds all partitions.

Every replica of the durable view counts, and the newest of each partition wins: losing a machine loses nothing while
another machine of its group lives. A machine that is behind copies from one that is not, so all machines begin the
next view at equal versions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agileml.core.protocol.exchange import nearest
from agileml.core.protocol.messages import Fetch, Promise, Role, ShardState, Source
from agileml.core.protocol.view import CutId, View


def newest(
    view: View, promises: Mapping[str, Promise], committed: CutId
) -> dict[int, tuple[ShardState, list[str]]]:
    """By partition, the newest state among the replicas of the durable view, and the machines that have it, the owner
    first.

    A partition whose replicas are all older than the committed cut is left out: only a machine that is gone had
    reached the cut.
    """
    found: dict[int, tuple[ShardState, list[str]]] = {}
    for node, promise in promises.items():
        for partition, state in promise.shards:
            known = found.get(partition)
            if state.version < committed.clock or (known and known[0].version > state.version):
                continue
            if known is None or known[0].version < state.version:
                found[partition] = (state, [node])
            elif node == view.owner[partition]:
                known[1].insert(0, node)
            else:
                known[1].append(node)
    return found


def fetches(
    view: View, sources: Mapping[int, Source], copies: Mapping[int, Sequence[str]]
) -> list[tuple[str, Fetch]]:
    """The fetches that give every machine of the group all partitions; a machine that has a partition already gets it
    from itself."""
    return [
        (node, Fetch(view.epoch, partition, Role.OWNER, view.committed, found))
        for node in view.group
        for partition, source in sources.items()
        for found in [nearest(node, source, copies.get(partition, ()))]
    ]
