"""The computation of a range that was given away, across views."""

from __future__ import annotations

import weakref
from dataclasses import replace

import numpy as np

from agileml.core.node.help.given_range import GivenRanges
from agileml.core.parameters.fold import Contribution
from agileml.core.protocol.commands import Compute, Computed
from agileml.core.protocol.exchange import NodeIo
from agileml.core.protocol.help_messages import HelpParams
from agileml.core.protocol.view import INITIAL, View
from straggler.flexrr.protocol import Bundle, FlexRrParameters
from straggler.flexrr.tasks import Task, TaskKind
from tests.agileml.core.fixtures import make_job

JOB = replace(make_job("dense", partitions=1), helping=FlexRrParameters())
TASK = Task(TaskKind.HELP, Bundle(3, 1, 2, 3))
VIEW = View(
    epoch=1,
    stage=1,
    members=("a", "b"),
    owner=("a",),
    backup=("a",),
    share=(("a", 0x0F), ("b", 0xF0)),
    previous=("",) * 8,
    base=0,
    open=(),
    timeline=1,
    committed=INITIAL,
)


def test_a_bundle_that_was_computed_before_a_rollback_is_none_of_the_same_range_after_it():
    orders: list[Compute] = []
    ranges = GivenRanges(NodeIo("a", JOB, lambda to, message: None, orders.append))

    def begin(view: View) -> Computed:
        ranges.adopt(view)
        ranges.begin(TASK, (0x40,))
        ranges.params(HelpParams(view.epoch, 0, 3, ranges.now.number, ()))
        return Computed(orders[-1].timeline, 3, 0x40, ((0, Contribution(())),), 0.1)

    before = begin(VIEW)
    assert ranges.has(before)
    after = begin(replace(VIEW, epoch=2, timeline=2))
    assert not ranges.has(before)
    assert ranges.has(after) and ranges.computed(after) is not None


def test_parameters_of_a_clock_are_kept_until_it_ends_and_no_longer():
    """They are a model's worth of memory."""
    orders: list[Compute] = []
    ranges = GivenRanges(NodeIo("a", JOB, lambda to, message: None, orders.append))
    ranges.adopt(VIEW)
    for task, bundle in ((TASK, 0x40), (Task(TaskKind.HELP, Bundle(3, 1, 1, 2)), 0x20)):
        ranges.begin(task, (bundle,))
        if not orders:
            block = np.zeros(4, np.float32)
            kept = weakref.ref(block)
            ranges.params(HelpParams(1, 0, 3, 1, (block,)))
            del block
        assert ranges.computed(Computed(1, 3, bundle, ((0, Contribution(())),), 0.1)) is not None
    assert len(orders) == 2, "the second range of the clock needs no pull"
    orders.clear()
    ranges.over(2)
    assert kept() is not None
    ranges.over(3)
    assert kept() is None
