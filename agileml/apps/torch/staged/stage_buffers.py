"""The buffers of a stage, such as the running statistics of batch norm.

As in data parallelism each unit begins with the buffers of its clock, and the next clock begins with the mean of what
the units made of them: so they do not depend on the order of units, nor on the cut. A unit gets tensors of its own,
because several are between forward and backward at a time. A buffer that no forward changes is the module's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from agileml.application import Array
from agileml.apps.torch.flat import BUFFERS, FlatModule, TensorSpan, borrowed, share_of_change
from pipeline.stages.cut import StageCode
from pipeline.stages.traced import TracedModel

Blocks = Sequence[tuple[Array, ...]]  # of each partition: one of each table behind the parameters'


@dataclass(frozen=True)
class _Place:
    """Where a buffer that a forward changes lies: in the stage's code; in which table and partition, and from where."""

    number: int
    table: int
    partition: int
    start: int
    span: TensorSpan


class StageBuffers:
    """edges: for each table behind the parameters', where the stage's partitions begin in it, and their end."""

    def __init__(
        self, flat: FlatModule, traced: TracedModel, code: StageCode, edges: Sequence[Sequence[int]]
    ) -> None:
        tables = [table for table in flat.tables() if table.name in flat.spans_of_buffers]
        self._spans = [flat.spans_of_buffers[table.name] for table in tables]
        self._is_fraction = [table.name == BUFFERS for table in tables]
        self._changes = [any(span.name in traced.changed for span in spans) for spans in self._spans]
        self._constant = [traced.values[name] for name in code.buffers]
        self._edges = edges
        numbers = {name: number for number, name in enumerate(code.buffers) if name in traced.changed}
        self._places = [
            _Place(numbers[span.name], table, partition, span.start - begin, span)
            for table, spans in enumerate(self._spans)
            for partition, (begin, end) in enumerate(zip(edges[table], edges[table][1:], strict=False))
            for span in spans
            if span.name in numbers and begin <= span.start < end
        ]
        assert len(self._places) == len(numbers), (code.buffers, edges)
        self._blocks: Blocks = ()

    def use(self, blocks: Blocks) -> None:
        """Take the values of a clock for the next forwards."""
        self._blocks = blocks

    def fresh(self) -> list[Tensor]:
        """The buffers for one forward, as `code.buffers` names them."""
        found = list(self._constant)
        for place in self._places:
            block = self._begin(place.partition, place.table)
            flat = borrowed(block[place.start : place.start + place.span.stop - place.span.start])
            found[place.number] = torch.empty_like(found[place.number]).copy_(flat.view(place.span.shape))
        return found

    def changes(self, after: Sequence[Tensor], share: float) -> list[tuple[Array | None, ...]]:
        """The change of the buffers by a unit with this share of the clock's items: (after - before) x share, for each
        partition and table; None where no buffer of the model's changes. Raises InputError as `share_of_change`."""
        return [
            tuple(
                self._change(partition, table, after, share) if is_changed and blocks[table].size else None
                for table, is_changed in enumerate(self._changes)
            )
            for partition, blocks in enumerate(self._blocks)
        ]

    def _change(self, partition: int, table: int, after: Sequence[Tensor], share: float) -> Array:
        before = self._begin(partition, table)
        now = before.copy()
        for place in self._places:
            if (place.partition, place.table) == (partition, table):
                stop = place.start + place.span.stop - place.span.start
                now[place.start : stop] = after[place.number].detach().reshape(-1).numpy()
        return share_of_change(now, before, share, self._spans[table], self._edges[table][partition])

    def _begin(self, partition: int, table: int) -> Array:
        block = self._blocks[partition][table].reshape(-1)
        return block if self._is_fraction[table] else np.rint(block)
