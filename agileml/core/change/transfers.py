"""The bytes that a membership change copies from machine to machine, estimated before it begins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from agileml.application import Update
from agileml.core.change.change_plan import Change
from agileml.core.protocol.deal import bundles_of
from agileml.core.protocol.job import Job
from agileml.core.protocol.messages import Fetch, Promise, Role, ShardState, SourceKind
from agileml.core.protocol.view import NOBODY
from straggler.coverage import union


@dataclass(frozen=True)
class Transfer:
    """Bytes that go from one machine to another."""

    source: str
    to: str
    size_bytes: int


@dataclass(frozen=True)
class ShardSize:
    """Bytes of a partition: dense and sparse tables, each with optimizer state, and one sum of the dense tables."""

    dense: int
    sparse: int
    dense_sum: int

    @property
    def cut(self) -> int:
        """Bytes of a whole cut."""
        return self.dense + self.sparse


def shard_size(job: Job, partition: int, *, is_owner: bool = True) -> ShardSize:
    """Bytes of a partition. is_owner: with what only the owner holds when machines share the optimizer's state."""
    found = {False: 0, True: 0}
    one_sum = 0
    for index, table in enumerate(job.layout.tables):
        start, stop = job.layout.range_of(index, partition)
        if not is_owner and table.update is Update.NONE:
            continue
        block = (stop - start) * (table.columns if table.sparse else 1) * np.dtype(table.dtype).itemsize
        found[table.sparse] += block * (1 + job.optimizer.slots * (table.update is Update.GRADIENT))
        one_sum += block * (not table.sparse)
    return ShardSize(found[False], found[True], one_sum)


def transfers(
    job: Job, change: Change, promises: Mapping[str, Promise], part_bytes: Mapping[int, int]
) -> list[Transfer]:
    """The transfers that the fetches of a change cause.

    `part_bytes`: bytes of each partition's part of the newest cut. We assume that as much has changed since that cut as
    it contained, so a machine with the cut gets at most these bytes of the sparse tables.
    """
    found = []
    for node, fetch in change.fetches:
        source = fetch.source.node
        if source not in (NOBODY, node):
            found.append(Transfer(source, node, _size_bytes(job, node, fetch, promises, part_bytes)))
    return found


def _size_bytes(
    job: Job, node: str, fetch: Fetch, promises: Mapping[str, Promise], part_bytes: Mapping[int, int]
) -> int:
    partition = fetch.partition
    size = shard_size(job, partition, is_owner=fetch.role is not Role.REPLICA)
    if fetch.source.kind is not SourceKind.SHARD or fetch.role is Role.BACKUP:
        return size.cut
    state = dict(promises[fetch.source.node].shards).get(partition, ShardState(0, ()))
    has_cut = node in promises and partition in dict(promises[node].backups)
    sparse = min(size.sparse, part_bytes.get(partition, size.sparse)) if has_cut else size.sparse
    return size.dense + sparse + _sums(job, state) * size.dense_sum


def _sums(job: Job, state: ShardState) -> int:
    """How many arrays of the dense tables travel beside the newest version: the pending sums, and the version before
    while the newest has no contributions."""
    if job.consistency.applies_on_arrival:
        return 0
    waiting = 0
    for _, bundles in state.pending:
        waiting += len(bundles_of(job, union(bundles))) if job.deterministic else 1
    has_previous = state.version > 0 and state.version not in dict(state.pending)
    return waiting + (has_previous and job.consistency.keeps_previous)


def through(moved: Sequence[Transfer]) -> dict[str, int]:
    """By machine, the bytes that it sends or receives, whichever is more."""
    sent: Counter[str] = Counter()
    received: Counter[str] = Counter()
    for transfer in moved:
        sent[transfer.source] += transfer.size_bytes
        received[transfer.to] += transfer.size_bytes
    return {node: max(sent[node], received[node]) for node in sorted({*sent, *received})}
