"""A change of members where every worker holds a replica of everything (`exchange: allreduce`).

Every replica of the durable view counts, and of each partition the newest: nothing is lost with a machine as long as
another one of its group is there. Whoever is behind copies from one who is not, so everybody begins the next view at
equal versions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agileml.core.protocol.messages import Fetch, Promise, Role, ShardState, Source, SourceKind
from agileml.core.protocol.view import CutId, View

Found = dict[int, tuple[ShardState, list[str]]]  # by partition, its newest state and who has it


def newest(view: View, promises: Mapping[str, Promise], committed: CutId) -> Found:
    """The newest replicas of the durable view, the owner's first.

    None of a partition whose replicas are all older than the committed cut: it was taken by a machine that is gone.
    """
    found: Found = {}
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
    epoch: int,
    group: Sequence[str],
    committed: CutId,
    sources: Mapping[int, Source],
    has: Mapping[int, Sequence[str]],
) -> list[tuple[str, Fetch]]:
    """What every machine of a group must get: nothing of what it has. `has` says who has what `sources` name."""
    return [
        (node, Fetch(epoch, partition, Role.OWNER, committed, nearest(node, source, has.get(partition, ()))))
        for node in group
        for partition, source in sources.items()
    ]


def nearest(node: str, source: Source, has: Sequence[str]) -> Source:
    """Where a machine gets what `source` names: from itself, if it is one of those who have it."""
    return Source(source.kind, node) if source.kind is SourceKind.SHARD and node in has else source
