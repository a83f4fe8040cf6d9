"""Cuts that no machine has: the application's initial values, and parts of a checkpoint."""

from __future__ import annotations

from typing import Protocol

from agileml.application import Array
from agileml.core.node.shard.shard import initial_cut
from agileml.core.protocol.job import Job
from agileml.core.protocol.messages import Cut, Source, SourceKind
from agileml.core.protocol.view import CutId


class Stores(Protocol):
    """The source of cuts that no machine has."""

    def initial(self, partition: int) -> tuple[Array, ...]:
        """The application's initial blocks of a partition."""

    def saved(self, name: CutId, partition: int) -> Cut:
        """A partition's part of a checkpoint."""

    def release(self) -> None:
        """Free the data kept for other partitions: a view is in force."""


def stored_cut(stores: Stores, job: Job, partition: int, source: Source) -> Cut:
    """The part of a partition from a source of kind INITIAL or CHECKPOINT."""
    if source.kind is SourceKind.INITIAL:
        return initial_cut(job, stores.initial(partition))
    assert source.checkpoint is not None, source
    return stores.saved(source.checkpoint, partition)
