"""Which nodes of a cluster that others run a job takes: those that fit, and one that stays among them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from agileml.cluster.fleet import Appeared, ExistingFleet, Leaving
from agileml.cluster.ray_cluster import TieredNode
from agileml.config.job import from_values
from agileml.events.terms import Tier
from agileml.process.spec import RunSpec


def fleet_of(machines: dict[str, Any], **more: Any) -> ExistingFleet:
    job = {"application": "mlr", "clocks": 40, "clocks_per_pass": 4, "machines": machines, **more}
    return ExistingFleet(RunSpec("run", from_values(job)), "10.0.0.5:6379")


def node(number: int, tier: Tier, cpus: float = 4, gpus: float = 0) -> TieredNode:
    return TieredNode(f"n{number}", "10.0.0.6", tier, "a", cpus, gpus=gpus)


def taken(fleet: ExistingFleet, *present: TieredNode) -> list[TieredNode]:
    return [event.node for event in fleet._changes(present, {}) if isinstance(event, Appeared)]


@pytest.mark.parametrize(
    ("machines", "cpus", "gpus"),
    [({"cpus": 2}, 1, 0), ({"gpus": 1}, 4, 0), ({"workers": 2, "threads": 2}, 3, 0)],
)
def test_a_node_that_is_too_small_is_left_alone(machines: dict[str, Any], cpus: float, gpus: float) -> None:
    """Ray places no process there: after the second such node the run ended, whatever it had computed."""
    fleet = fleet_of({"reliable": 1, "transient": 1, "max": 4, **machines}, deterministic=False)
    small = [node(number, tier, cpus, gpus) for number, tier in enumerate(Tier)]
    assert not taken(fleet, *small)
    large = node(5, Tier.RELIABLE, 4, 1)
    assert taken(fleet, *small, large) == [large]


@pytest.mark.parametrize("together", [True, False])
def test_a_place_is_kept_for_a_node_that_stays(together: bool) -> None:
    """Others took all places, if their ids were the smaller ones, and the run waited in vain for a reliable one."""
    fleet = fleet_of({"reliable": 1, "transient": 2, "max": 3})
    spot, stays = [node(number, Tier.TRANSIENT) for number in range(5)], node(9, Tier.RELIABLE)
    first = taken(fleet, *spot, stays) if together else taken(fleet, *spot)
    found = first if together else [*first, *taken(fleet, *spot, stays)]
    assert stays in found
    assert len(found) == 3


def test_what_the_start_wants_comes_before_the_rest() -> None:
    fleet = fleet_of({"reliable": 1, "transient": 2, "max": 4})
    present = [node(number, Tier.RELIABLE) for number in range(5)]
    present += [node(number, Tier.TRANSIENT) for number in range(5, 9)]
    assert Counter(each.tier for each in taken(fleet, *present)) == {Tier.RELIABLE: 2, Tier.TRANSIENT: 2}


def test_nodes_that_a_plan_waits_for_have_places() -> None:
    plan = [{"at_clock": 4, "join": 2, "tier": "transient"}]
    fleet = fleet_of({"reliable": 1, "transient": 1, "max": 4}, plan=plan)
    present = [node(number, Tier.RELIABLE) for number in range(5)]
    present += [node(number, Tier.TRANSIENT) for number in range(5, 9)]
    assert Counter(each.tier for each in taken(fleet, *present)) == {Tier.RELIABLE: 1, Tier.TRANSIENT: 3}


def test_a_node_that_is_drained_again_leaves_at_the_sooner_of_its_deadlines() -> None:
    """As one whose owner gives it an hour, and which is then preempted. Ray keeps the last deadline alone."""
    fleet, present = (
        fleet_of({"reliable": 1, "transient": 1}),
        [node(1, Tier.RELIABLE), node(2, Tier.TRANSIENT)],
    )
    fleet._changes(present, {})
    looks: list[dict[str, float | None]] = [{"n2": 4600.0}, {"n2": 4600.0}, {"n2": 1030.0}, {"n2": 1090.0}]
    found = [fleet._changes(present, look) for look in looks]
    assert found == [[Leaving("n2", 4600.0)], [], [Leaving("n2", 1030.0)], []]
    assert len(fleet._changes(present, {"n1": None})) == 1, "Ray does not say when: at once"
    assert fleet._changes(present, {"n1": None}) == []


@pytest.mark.parametrize("tier", list(Tier))
def test_another_node_takes_the_place_of_one_that_was_released(tier: Tier) -> None:
    """As one on which work has failed, and which stays in the cluster."""
    fleet = fleet_of({"reliable": 1, "transient": 1, "max": 2})
    first = {each: node(number, each) for number, each in enumerate(Tier)}
    spare = [node(number, each) for number, each in enumerate(Tier, 5)]
    present = [*first.values(), *spare]
    assert taken(fleet, *present) == list(first.values())
    fleet.release(first[tier].node_id)
    assert taken(fleet, *present) == [each for each in spare if each.tier is tier][:1]
    assert taken(fleet, *present) == []


def test_with_a_plan_a_node_of_the_start_that_is_lost_is_replaced() -> None:
    """Another one waited for the plan's clock instead, which never came without a reliable node. One that the plan has
    sent away is not replaced."""
    plan = [{"at_clock": 4, "join": 1, "tier": "transient"}]
    fleet = fleet_of({"reliable": 1, "transient": 1, "max": 4}, plan=plan)

    def admitted(*present: TieredNode) -> list[bool]:
        return [event.admitted for event in fleet._changes(present, {}) if isinstance(event, Appeared)]

    stays, leaves, later = node(1, Tier.RELIABLE), node(2, Tier.TRANSIENT), node(3, Tier.RELIABLE)
    assert admitted(stays, leaves) == [True, True]
    assert admitted(leaves) == []
    assert admitted(leaves, later) == [True]
    fleet.release(leaves.node_id)
    assert admitted(later) == []
    assert admitted(later, node(4, Tier.TRANSIENT), node(5, Tier.RELIABLE)) == [False, False]
