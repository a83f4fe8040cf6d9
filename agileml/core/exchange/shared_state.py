"""Chooses the copies that a membership change starts from when every machine has the parameters, and only owners the
optimizer's state of their partitions (ZeRO stage 1: Rajbhandari et al. 2020, section 5.1).

The owners step their partitions and send the others the new values. So a partition is at clock t or t + 1 while t is
stepped, and at its owner first. A change starts from the owners if all are at one clock: after a pause, before the
first of them has stepped, or when all have. Otherwise the run goes back to the committed cut, as with servers: no
machine has the parameters of both clocks to compute t again with, and a lost machine takes its part of the state along.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agileml.core.protocol.exchange import LiveCopies, nearest
from agileml.core.protocol.messages import Fetch, Promise, Role, ShardState, Source
from agileml.core.protocol.view import View


def owners(view: View, promises: Mapping[str, Promise]) -> LiveCopies:
    """By partition, the state at its owner under the durable view, and the machines that have these parameters, the
    owner first."""
    shards = {node: dict(promise.shards) for node, promise in promises.items()}
    states = {p: shards[owner][p] for p, owner in enumerate(view.owner) if p in shards.get(owner, {})}
    return {p: (state, _with(state, p, view.owner[p], shards)) for p, state in states.items()}


def _with(
    state: ShardState, partition: int, owner: str, shards: Mapping[str, Mapping[int, ShardState]]
) -> list[str]:
    """The machines whose copy of a partition is at the version of a state, the owner first."""
    equal = [
        node
        for node, held in shards.items()
        if partition in held and held[partition].version == state.version
    ]
    return sorted(equal, key=lambda node: node != owner)


def fetches(
    view: View, sources: Mapping[int, Source], copies: Mapping[int, Sequence[str]]
) -> list[tuple[str, Fetch]]:
    """The fetches that give every owner its partitions with their state, and all others of the group the parameters,
    from themselves where they have them."""
    found = []
    for node in view.group:
        for partition, source in sources.items():
            role = Role.OWNER if view.owner[partition] == node else Role.REPLICA
            here = copies.get(partition, ()) if role is Role.REPLICA else ()
            found.append(
                (node, Fetch(view.epoch, partition, role, view.committed, nearest(node, source, here)))
            )
    return found
