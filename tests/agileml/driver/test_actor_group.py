"""Which ends of processes and which notices the controller is told of, and when."""

from __future__ import annotations

import pytest

from agileml.cluster.fleet import Admitted, Leaving, Stopping, Vanished
from agileml.core.protocol.inputs import NodeDown, NodeFailed, Stop
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


def deadlines_of(rig: RayRig) -> dict[str, float | None]:
    """By machine that the present controller was told of: the deadline that came with it."""
    ups = [arguments[1] for method, *arguments in rig.head.calls if method == "register"]
    return {up.node: up.deadline_s for up in ups}


def test_a_notice_that_comes_while_a_process_starts_comes_with_the_machine(rig: RayRig) -> None:
    """The controller does not know the machine before that."""
    node, other = rig.appear(Tier.TRANSIENT), rig.appear(Tier.TRANSIENT)
    rig.group.happened(Leaving(node.node_id, 900.0))
    rig.group.happened(Leaving(node.node_id, 800.0))
    rig.start("m0")
    rig.start("m1")
    assert deadlines_of(rig) == {"m0": 800.0, "m1": None}
    rig.group.happened(Leaving(other.node_id, 700.0))
    rig.group.noticed("m1", 750.0)
    rig.replace_head()
    assert deadlines_of(rig) == {"m0": 800.0, "m1": 700.0}


def test_a_process_that_is_started_again_has_the_notice_of_its_node(rig: RayRig) -> None:
    """But for a reliable one: it may be all that is left, and is to stay for as long as it can."""
    for tier in (Tier.TRANSIENT, Tier.RELIABLE):
        rig.group.happened(Leaving(rig.appear(tier).node_id, 900.0))
    for name in ("m0", "m1"):
        rig.start(name)
        rig.die(name)
    for name in ("m2", "m3"):
        rig.start(name)
    assert deadlines_of(rig) == {"m0": 900.0, "m1": 900.0, "m2": 900.0, "m3": None}


def test_a_controller_that_takes_over_is_told_the_soonest_end_of_the_run(rig: RayRig) -> None:
    """The market's machines are gone at its deadline, whatever a signal that comes later says."""
    rig.group.happened(Stopping(700.0))
    rig.group.tell(Stop(900.0))
    rig.replace_head()
    assert rig.told() == [("told", Stop(700.0))]
    rig.group.tell(Stop(600.0))
    rig.group.tell(Stop())
    rig.replace_head()
    assert rig.told() == [("told", Stop(600.0))]
