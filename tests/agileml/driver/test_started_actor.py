"""A machine's process between the request for it and its begin."""

from __future__ import annotations

from agileml.cluster.ray_cluster import TieredNode
from agileml.core.protocol.inputs import NodeUp
from agileml.driver.started_actor import StartedActor
from agileml.events.terms import Tier
from agileml.net.events import Address


class Told:
    """Stands for Ray's handle of an actor: records the speeds that its process is told."""

    def __init__(self) -> None:
        self.speeds: list[float] = []
        self.stand_for = self

    def remote(self, speed: float) -> None:
        self.speeds.append(speed)


def started() -> tuple[StartedActor, list[float]]:
    told = Told()
    node = TieredNode("n1", "192.0.2.2", Tier.TRANSIENT, "spot-1")
    return StartedActor("m1", node, NodeUp("m1", Tier.TRANSIENT, False), told, None), told.speeds


ADDRESS = Address("m1", "192.0.2.2", "tcp://192.0.2.2:1", "", 1)


def test_a_speed_that_comes_before_its_process_has_begun_is_told_then():
    actor, told = started()
    actor.stand_for(0.5)
    actor.stand_for(0.25)
    assert told == [], "it would fail: there is no machine yet"
    actor.has_begun(ADDRESS)
    assert told == [0.25]


def test_a_process_that_has_begun_is_told_at_once():
    actor, told = started()
    actor.has_begun(ADDRESS)
    assert told == []
    actor.stand_for(0.5)
    assert told == [0.5]
