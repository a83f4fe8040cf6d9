"""Which ends of processes the controller is told of, and when."""

from __future__ import annotations

import pytest

from agileml.cluster.fleet import Admitted, Vanished
from agileml.core.protocol.inputs import NodeDown, NodeFailed
from agileml.driver.process_ends import ENDED_KEPT
from agileml.events.terms import Loss, Tier
from tests.agileml.driver.ray_rig import RayRig


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> RayRig:
    return RayRig(monkeypatch)


def test_the_end_of_a_transient_machine_s_process_is_told_at_once(rig: RayRig) -> None:
    rig.appear(Tier.TRANSIENT)
    rig.start("m0")
    rig.die("m0")
    assert [each[:2] for each in rig.told()[:1]] == [("up", "m0")]
    (what, down), *_ = rig.told()[1:]
    assert what == "told"
    assert (down.node, down.loss) == ("m0", Loss.PROCESS_DIED)


def test_the_end_of_a_reliable_machine_s_process_is_told_when_a_successor_is_up(rig: RayRig) -> None:
    """Also if the first successor dies while it starts: before that nobody could hold the run's state."""
    rig.appear(Tier.RELIABLE)
    rig.start("m0")
    rig.die("m0")
    rig.die("m1")
    assert list(rig.machines) == ["m0", "m1", "m2"]
    assert rig.told() == [("up", "m0")]
    rig.start("m2")
    assert rig.told() == [("up", "m0"), ("up", "m2", "in place of", "m0")]


def test_a_controller_that_takes_over_meanwhile_is_told_when_a_successor_is_up_too(rig: RayRig) -> None:
    """By a name and a tier that it need not know yet."""
    rig.appear(Tier.RELIABLE)
    rig.start("m0")
    rig.die("m0")
    rig.replace_head()
    assert rig.told() == []
    rig.start("m1")
    assert rig.told() == [("up", "m1", "in place of", "m0")]
    rig.replace_head()
    assert rig.told() == [("up", "m1"), ("gone", "m0", Loss.GONE_BEFORE)]


def test_the_end_of_a_reliable_machine_is_told_if_no_successor_can_come_up(rig: RayRig) -> None:
    node = rig.appear(Tier.RELIABLE)
    rig.start("m0")
    rig.die("m0")
    rig.nodes.remove(node)
    rig.die("m1")
    assert rig.told() == [
        ("up", "m0"),
        ("gone", "m0", Loss.PROCESS_DIED),
        ("told", NodeDown("m1", Loss.NODE_GONE)),
    ]


def test_processes_that_die_while_they_start_count_in_a_row_alone(rig: RayRig) -> None:
    """In weeks a node loses more than three of them, each for a reason of its own."""
    rig.appear(Tier.TRANSIENT)
    for number in range(0, 30, 3):
        rig.die(f"m{number}")
        rig.die(f"m{number + 1}")
        rig.start(f"m{number + 2}")
        rig.die(f"m{number + 2}")
    assert not [each for each in rig.told() if isinstance(each[1], NodeFailed)]
    for number in range(30, 33):
        rig.die(f"m{number}")
    (failed,) = [each[1] for each in rig.told() if isinstance(each[1], NodeFailed)]
    assert rig.killed == [failed.up.node] == ["m32"] and failed.failure.problem.startswith(
        "it cannot start: "
    )


def test_a_node_may_stay_for_thousands_of_machines_after_its_process_has_ended(rig: RayRig) -> None:
    """As one that was released in a cluster that others run, whose process is forgotten by then."""

    def come_and_go(machines: int) -> None:
        for _ in range(machines):
            node = rig.appear(Tier.TRANSIENT)
            rig.nodes.remove(node)
            rig.group.happened(Vanished(node.node_id, Loss.NODE_GONE))

    left = rig.appear(Tier.TRANSIENT)
    rig.start("m0")
    rig.end("m0")
    come_and_go(ENDED_KEPT)
    told = len(rig.told())
    rig.group.happened(Admitted(left.node_id, 1.0))
    rig.group.happened(Vanished(left.node_id, Loss.NODE_GONE))
    assert len(rig.told()) == told, "the controller has heard of its end long ago"
    come_and_go(ENDED_KEPT + 1)
    assert len(rig.told()) == told + ENDED_KEPT + 1
