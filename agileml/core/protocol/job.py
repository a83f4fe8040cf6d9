"""The facts of a run that never change: how parameters and work are cut, and which rules they follow."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from agileml.application import LossScaleRule
from agileml.core.parameters.apply import partition_optimizers
from agileml.core.parameters.gradient_norm import SquareTree
from agileml.core.parameters.layer_norms import LayerTrees
from agileml.core.parameters.layout import Layout
from agileml.core.parameters.minibatch_steps import per_minibatch
from agileml.core.parameters.optimizer import Optimizer
from agileml.core.protocol.exchange import Exchange
from agileml.core.protocol.view import View
from straggler.consistency import Consistency, Elastic
from straggler.coverage import Units, span
from straggler.flexrr.protocol import FlexRrParameters
from straggler.lbbsp.messages import SumsOf
from straggler.lbbsp.policy import Balancer

# From the units of a clock, those of each worker in the view's share, and how many sums each sends with other units
# (None: one).
MakeBalancer = Callable[[int, Mapping[str, int], SumsOf | None], Balancer[str]]


class Overlap(Enum):
    """ON: a worker pulls a partition right after its last push to it, and computes while others arrive."""

    OFF = "off"
    ON = "on"
    AUTO = "auto"  # every machine measures and chooses
    BATCHES = "batches"  # workers compute while others arrive, but pull batches, after the last push (iBatch)


class PipelineMode(Enum):
    """The weights on which the stages of a pipeline compute a clock (PipeDream, thesis 5.3)."""

    FLUSH = "flush"  # those of the clock: the pipeline runs empty between two clocks
    STASH = "stash"  # the stage's newest at the forward, and the same at the backward
    NONE = "none"  # the stage's newest at the forward, and its newest at the backward
    VERTICAL_SYNC = "vertical_sync"  # at all stages those that the first stage has at the forward
    DOUBLE_BUFFERED = "double_buffered"  # those of the clock before: a stage keeps two versions


@dataclass(frozen=True)
class PipelineRules:
    """A job whose partitions are layers: the machines of a stage compute with some of them alone.

    weights: of each partition, the seconds of its layers. most: stages (None: as many as there are machines).
    puts_off: gradients of weights fill the bubble (zero-bubble). replicas: the most machines of any stage, or one
    number for each stage, which also sets how many stages there are, given enough machines; None: the planner chooses
    both. The planner needs sent_bytes, which a unit sends on behind each partition, and partition_bytes of parameters.
    follows_speeds: stages of one machine each are cut by the measured speeds of the machines.
    """

    weights: tuple[float, ...]
    most: int | None = None
    puts_off: bool = False
    mode: PipelineMode = PipelineMode.FLUSH
    replicas: int | tuple[int, ...] | None = 1
    sent_bytes: tuple[int, ...] = ()
    partition_bytes: tuple[int, ...] = ()
    follows_speeds: bool = False

    @property
    def flushes(self) -> bool:
        """True where no stage begins a clock before it has applied the one before."""
        return self.mode is PipelineMode.FLUSH


@dataclass(frozen=True)
class Job:
    """`slices` of `parts` units each make a clock (both powers of two); the run ends after `clocks` clocks.

    `balancer` makes the policy that plans the units of each worker clock by clock, in a job with BSP; None: the view's
    share holds for every clock. `alike`: at a change machines count as equally fast unless one is at least so many
    times as fast as another; 1: they never do. `helping`: machines that are ahead take over units of those that are
    behind (parameter servers, BSP or SSP; with a balancer only in clocks whose plan says so); None: never. `pipeline`:
    every worker computes all units with the partitions that it owns; None: its share of the units with all partitions.
    `holds_every`: the cut at each clock that is a multiple of it is held until it was judged (`CutJudged`); None: no
    cut is. `loss_scale`: how losses are scaled, in a job with BSP or SSP; None: they are not. `draw_units`: workers
    draw bundles of at most so many units from one pool, in a job with SSP or ASP that is not deterministic; None: each
    worker has its share.
    """

    layout: Layout
    optimizer: Optimizer
    consistency: Consistency
    slices: int
    parts: int
    clocks: int
    deterministic: bool
    exchange: Exchange
    balancer: MakeBalancer | None = None
    alike: float = 1.0
    overlap: Overlap = Overlap.OFF
    helping: FlexRrParameters | None = None
    metrics: tuple[str, ...] = ()
    pipeline: PipelineRules | None = None
    holds_every: int | None = None
    loss_scale: LossScaleRule | None = None
    draw_units: int | None = None

    @property
    def elastic(self) -> Elastic | None:
        """The rule of supersteps, where every minibatch is a step of its own."""
        return self.consistency if isinstance(self.consistency, Elastic) else None

    @property
    def may_overlap(self) -> bool:
        """True if some clock may be computed while its parameters are on their way."""
        return self.overlap is not Overlap.OFF

    @property
    def sends_whole_sums(self) -> bool:
        """True where a worker sends a sum as large as the parameters for each aligned subtree of its units. Of a sparse
        table sums have rows of their own, however many they are."""
        return self.deterministic and not any(table.sparse for table in self.layout.tables)

    def timeline_of(self, view: View) -> int:
        """The number by which a view accepts a computation: its timeline. In a pipeline its epoch: a change ends the
        clock at all stages, because a stage that had done its part would not send it again. With supersteps its epoch,
        too: a change ends the superstep, and with it the bound on the age of a read."""
        is_of_epoch = self.pipeline is not None or self.elastic is not None
        return view.epoch if is_of_epoch else view.timeline

    def rate_after(self, clocks: int) -> float:
        """The learning rate after so many clocks. Where a user's schedule ends there (it raises, or returns no number
        of at least 0), that of the last clock."""
        try:
            rate = self.optimizer.rate_at(clocks)
        except Exception:  # of the user's function
            rate = math.nan
        return rate if 0 <= rate < math.inf else self.optimizer.rate_at(max(0, clocks - 1))

    def optimizers(self, partition: int) -> tuple[Optimizer, ...]:
        """The optimizer of each table's block in a partition."""
        rule = self.optimizer if self.elastic is None else per_minibatch(self.optimizer, self.units)
        return partition_optimizers(rule, self.layout, partition)

    @cached_property
    def square_tree(self) -> SquareTree | None:
        """Adds up the squares of a gradient where servers must know its norm: to limit it, or to see an overflow."""
        if self.optimizer.clip_norm is None and (self.loss_scale is None or self.is_resident):
            return None
        return SquareTree(self.layout)

    @cached_property
    def layer_trees(self) -> LayerTrees | None:
        """Add up the norms of layers where an optimizer needs them."""
        return LayerTrees(self.layout) if self.optimizer.is_layerwise else None

    @property
    def needs_sums(self) -> bool:
        """True when a partition's step needs norms over more than that partition."""
        return self.square_tree is not None or self.layer_trees is not None

    @cached_property
    def is_resident(self) -> bool:
        """True when tables stay where the machines compute."""
        return any(table.resident for table in self.layout.tables)

    @property
    def units(self) -> int:
        """Units of one clock."""
        return self.slices * self.parts

    @cached_property
    def all_units(self) -> Units:
        """The set of all units of one clock."""
        return span(0, self.units)

    @property
    def lead(self) -> int:
        """How many clocks before it begins a clock's plan must be known: 1 with sparse tables, because the rows to pull
        depend on the units."""
        return 0 if self.layout.whole_reads is not None else 1

    def units_of_slice(self, index: int) -> Units:
        return span(index * self.parts, (index + 1) * self.parts)
