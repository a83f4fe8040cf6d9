"""How many bytes a change copies, against those of real shards; and what links are seen to carry."""

from __future__ import annotations

import numpy as np
import pytest

from agileml.core.change.change_plan import plan_change
from agileml.core.change.transfers import Transfer, shard_size, transfers
from agileml.core.compute.contract import initial_values
from agileml.core.node.shard.shard import Shard, initial_cut
from agileml.core.parameters.fold import Contribution
from agileml.core.parameters.layout import Dense
from agileml.core.protocol.inputs import Measured
from agileml.core.protocol.messages import Cut, Promise, ShardCopy, ShardState
from agileml.core.protocol.view import CutId
from agileml.core.stage.link_rate import KEPT, LinkRate, LinkRule
from agileml.core.stage.placement import Machines, StageRule
from straggler.coverage import span
from tests.model.toy import toy_job

RULE = StageRule(thresholds=(0.5, 15.0))


def bytes_of(copy: ShardCopy) -> int:
    """All arrays of a copy."""
    size = copy.cut.size_bytes
    if copy.previous is not None:
        size += sum(block.nbytes for block in copy.previous.blocks if block is not None)
    for _, fold in copy.pending:
        for total in fold.totals:
            size += sum(block.values.nbytes for block in total.blocks if isinstance(block, Dense))
    return size


@pytest.mark.parametrize("mode", ["bsp", "asp", "dense"])
@pytest.mark.parametrize("algorithm", ["sgd", "momentum", "adam"])
def test_the_size_of_a_partition_is_that_of_its_cut(mode: str, algorithm: str) -> None:
    toy, job = toy_job(mode, algorithm, 8, 2, 3, 5)
    initial = initial_values(toy, job.layout.tables)
    for partition in range(3):
        cut = initial_cut(job, job.layout.blocks(initial, partition))
        assert shard_size(job, partition).cut == cut.size_bytes


def test_a_shard_goes_with_the_version_before_and_the_sums_that_wait() -> None:
    toy, job = toy_job("dense", "momentum", 8, 1, 1, 5)
    shard = Shard(job, initial_cut(job, job.layout.blocks(initial_values(toy, job.layout.tables), 0)))
    blocks = tuple(Dense(np.ones(t.rows * t.columns, t.dtype)) for t in job.layout.tables)
    shard.push(0, span(0, 8), Contribution(blocks), 0.0)
    assert shard.version == 1
    view = plan_change(job, RULE, 1, None, CutId(0, 0), {}, Machines(("r",), ("t", "u"))).view
    leaver = view.owner[0]
    stays = ({"t", "u"} - {leaver}).pop()
    for bundle in [None, span(4, 6), span(0, 4)]:  # none waits; then sums of 2 and 4 units
        if bundle is not None:
            shard.push(1, bundle, Contribution(blocks), 0.0)
        promises = {
            leaver: Promise(2, ((0, shard.describe()),), (), ()),
            "r": Promise(2, (), (), ()),
        }
        move = plan_change(job, RULE, 2, view, CutId(0, 1), promises, Machines(("r",), (stays,)))
        (moved,) = transfers(job, move, promises, {})
        assert moved == Transfer(leaver, stays, bytes_of(shard.copy()))


def test_a_backup_that_becomes_the_owner_gets_what_changed() -> None:
    _, job = toy_job("bsp", "sgd", 8, 1, 2, 5)
    view = plan_change(job, RULE, 1, None, CutId(0, 0), {}, Machines(("r",), ("t",))).view
    cut, frozen = ShardState(3, ()), ShardState(5, ())
    promises = {
        "t": Promise(2, ((0, frozen), (1, frozen)), ((0, cut), (1, cut)), ()),
        "r": Promise(2, (), (), ((0, cut), (1, cut))),
    }
    move = plan_change(job, RULE, 2, view, CutId(3, 1), promises, Machines(("r",), ()))
    sizes = [shard_size(job, p) for p in (0, 1)]
    found = transfers(job, move, promises, {0: 7})
    expected = [sizes[0].dense + 7 + sizes[0].dense_sum, sizes[1].cut + sizes[1].dense_sum]
    assert found == [Transfer("t", "r", size) for size in expected]
    # Going back to the cut takes nothing from anywhere: it is there.
    rest = {"r": promises["r"]}
    back = plan_change(job, RULE, 2, view, CutId(3, 1), rest, Machines(("r",), ()))
    assert back.rolled_back and back.view.base == 3
    assert transfers(job, back, rest, {}) == []


def test_a_cut_counts_its_bytes() -> None:
    assert Cut(3, (np.zeros(4), np.zeros((2, 3), np.float32)), ((np.zeros(4), np.zeros(0)),)).size_bytes == 88


# -- links --------------------------------------------------------------------------------------------------

MB = 1_000_000


def test_small_transfers_say_nothing_and_short_ones_that_links_hold_nothing_up() -> None:
    links = LinkRate(LinkRule(MB, 0.3))
    assert links.bytes_per_s is None
    links.arrived({}, 0.0, 9.0)
    links.arrived({"a": MB - 1}, 0.0, 9.0)
    assert links.bytes_per_s is None
    links.arrived({"a": 20 * MB, "b": 10 * MB}, 1.0, 5.3)
    assert links.bytes_per_s == pytest.approx(5 * MB)
    links.arrived({"a": MB}, 6.0, 6.2)
    assert links.bytes_per_s == float("inf")


def test_the_fastest_of_the_last_few_counts() -> None:
    links = LinkRate(LinkRule(MB, 0.0))
    links.arrived({"a": 8 * MB}, 0.0, 1.0)
    for _ in range(KEPT - 1):
        links.arrived({"a": 2 * MB}, 0.0, 1.0)
    assert links.bytes_per_s == 8 * MB
    links.arrived({"a": 3 * MB}, 0.0, 1.0)
    assert links.bytes_per_s == 3 * MB


def test_what_clocks_took_beside_a_transfer_counts() -> None:
    links = LinkRate(LinkRule(MB, 0.0))
    for at_s in (9.0, 10.5, 11.5, 12.5):  # before the transfer, and three while it is on its way
        links.measured(Measured("a", 100 + at_s, int(at_s * 4 * MB), int(at_s * MB), 0, 0.0, 0.0), at_s)
    links.arrived({"a": 3 * MB, "b": 5 * MB}, 10.0, 13.0)
    assert links.bytes_per_s == pytest.approx(MB + 5 * MB)
