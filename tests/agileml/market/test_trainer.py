"""What BidBrain says about machines becomes events of a fleet, in any order and however often it is said."""

import time
from collections.abc import Mapping
from typing import Self

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from agileml.cluster.fleet import Admitted, Appeared, Leaving, Stopping, Vanished
from agileml.cluster.ray_cluster import TieredNode
from agileml.core.protocol.commands import Happened
from agileml.events.run import ClockDone
from agileml.events.terms import Loss, Tier
from agileml.market.nodes import JoinedNodes, tier_of
from agileml.market.trainer import MarketTime, RunTrainer
from bidbrain.history.prices import Market
from bidbrain.live.cloud import Alert, Instance, InstanceNotice
from bidbrain.live.estimators import Estimator
from bidbrain.setting import ON_DEMAND_ZONE
from tests.thorough import examples

SPOT, STEADY = Market("c3.8xlarge", "us-east-1a"), Market("c4.xlarge", ON_DEMAND_ZONE)


def machine(name: str, market: Market = SPOT) -> Instance:
    return Instance(name, "t", market, 0)


class There:
    """Nodes that are there as the test says; `ahead` of them before they belong to a machine."""

    def __init__(self) -> None:
        self.booted: dict[str, Instance] = {}
        self.ahead: list[TieredNode] = []
        self.dead: set[str] = set()
        self.again: dict[str, str] = {}  # the node of a machine on which Ray was started again

    @property
    def warm(self) -> tuple[TieredNode, ...]:
        return tuple(self.ahead)

    def present(self, wanted: Mapping[str, Instance], now_s: int) -> dict[str, TieredNode]:
        return {
            name: TieredNode(self.again.get(name, f"node-{name}"), "", tier_of(own), "t")
            for name, own in self.booted.items()
            if name in wanted
        }

    def missing(self, nodes: set[str]) -> set[str]:
        return nodes & self.dead


def trainer_of(
    nodes: There | JoinedNodes,
    leave_s: float = 0.0,
    now_s: int = 100,
    speed: float = 60.0,
    speeds: Mapping[str, float] | None = None,
    clock: int = 0,
) -> RunTrainer:
    """clock: of the newest report; below 0: no clock is done."""
    market_time = MarketTime(lambda: now_s, speed, leave_s)
    trainer = RunTrainer(
        nodes, market_time, Estimator({}, 1, 1.0), clocks=100, work_vcpu_s=1000.0, speeds=speeds
    )
    if clock >= 0:
        trainer.happened(Happened(ClockDone(clock, 0.5, 24, None), 0.0), str)
    return trainer


class Around:
    """Unix time before and after what a test does, however long that takes."""

    def __enter__(self) -> Self:
        self._before_s = time.time()
        return self

    def __exit__(self, *what: object) -> None:
        self._after_s = time.time()

    def has(self, deadline_s: float | None, left_s: float) -> bool:
        """Whether a deadline is so many seconds from then."""
        assert deadline_s is not None
        return self._before_s + left_s <= deadline_s <= self._after_s + left_s


def test_a_machine_appears_once_it_is_held_and_has_booted() -> None:
    nodes = There()
    trainer = trainer_of(nodes)
    trainer.hold(0, (machine("r", STEADY),), (machine("a"),))
    assert trainer.events() == []
    nodes.booted = {"r": machine("r", STEADY), "a": machine("a"), "stranger": machine("stranger")}
    found = trainer.events()
    assert [(e.node.node_id, e.node.tier, e.admitted) for e in found if isinstance(e, Appeared)] == [
        ("node-r", Tier.RELIABLE, True),
        ("node-a", Tier.TRANSIENT, True),
    ]
    assert trainer.events() == []


@pytest.mark.parametrize(("speed", "first"), [(60.0, ["node-r"]), (1.0, ["node-r", "node-a"])])
def test_on_a_market_that_is_played_faster_transient_machines_wait_for_the_first_clock(
    speed: float, first: list[str]
) -> None:
    nodes = There()
    nodes.booted = {"r": machine("r", STEADY), "a": machine("a")}
    trainer = trainer_of(nodes, speed=speed, clock=-1)
    trainer.hold(0, (machine("r", STEADY),), (machine("a"),))

    def appeared() -> list[str]:
        return [event.node.node_id for event in trainer.events() if isinstance(event, Appeared)]

    assert appeared() == first
    assert appeared() == []
    trainer.happened(Happened(ClockDone(1, 0.5, 24, None), 0.0), str)
    assert [*first, *appeared()] == ["node-r", "node-a"]


def test_a_warm_node_is_started_ahead_and_admitted_when_it_is_a_machine() -> None:
    nodes = There()
    nodes.ahead = [TieredNode("node-a", "", Tier.TRANSIENT, "t")]
    trainer = trainer_of(nodes)
    assert trainer.events() == [Appeared(nodes.ahead[0], admitted=False)]
    assert trainer.events() == []
    nodes.ahead, nodes.booted = [], {"a": machine("a")}
    trainer.hold(0, (), (machine("a"),))
    assert trainer.events() == [Admitted("node-a")]


def test_a_machine_has_the_speed_of_its_type() -> None:
    nodes = There()
    nodes.ahead = [TieredNode("node-a", "", Tier.TRANSIENT, "t")]
    trainer = trainer_of(nodes, speeds={SPOT.instance_type: 2.0})
    trainer.events()
    nodes.ahead, nodes.booted = [], {"a": machine("a"), "b": machine("b")}
    trainer.hold(0, (), (machine("a"), machine("b")))
    admitted, appeared = sorted(trainer.events(), key=lambda event: type(event).__name__)
    assert admitted == Admitted("node-a", 2.0)
    assert isinstance(appeared, Appeared) and appeared.node.speed == 2.0


def test_a_notice_is_passed_on_once_with_its_deadline_on_the_wall_clock() -> None:
    nodes = There()
    nodes.booted = {"a": machine("a")}
    trainer = trainer_of(nodes, now_s=100, speed=60.0)
    trainer.hold(0, (), (machine("a"),))
    trainer.events()
    with Around() as warned:
        for _ in range(3):
            trainer.warn(100, InstanceNotice("n", "a", Alert.TERMINATE, 220))
            trainer.warn(100, InstanceNotice("m", "a", Alert.REBALANCE, 220))
    (event,) = trainer.events()
    assert isinstance(event, Leaving)
    assert warned.has(event.deadline_s, 2.0)


def test_a_sooner_deadline_is_passed_on_and_a_later_one_is_not() -> None:
    nodes = There()
    nodes.booted = {"a": machine("a")}
    trainer = trainer_of(nodes, now_s=100, speed=60.0)
    trainer.hold(0, (), (machine("a"),))
    trainer.events()
    with Around() as warned:
        trainer.warn(100, InstanceNotice("h", "a", Alert.HOUR_END, 1900))
        for _ in range(3):
            trainer.warn(100, InstanceNotice("n", "a", Alert.TERMINATE, 220))
            trainer.warn(100, InstanceNotice("h", "a", Alert.HOUR_END, 1900))
    later, sooner = (event.deadline_s for event in trainer.events() if isinstance(event, Leaving))
    assert warned.has(later, 30.0) and warned.has(sooner, 2.0)


def test_giving_an_instance_back_at_once_beats_the_end_of_its_hour() -> None:
    nodes = There()
    nodes.booted = {"r": machine("r", STEADY), "a": machine("a")}
    trainer = trainer_of(nodes, leave_s=0.0, now_s=100, speed=60.0)
    trainer.hold(0, (machine("r", STEADY),), (machine("a"),))
    trainer.events()
    trainer.warn(100, InstanceNotice("h", "a", Alert.HOUR_END, 1900))
    trainer.leave(100, ("a",))
    hour_end, now, gone = trainer.events()
    assert isinstance(hour_end, Leaving) and isinstance(now, Leaving)
    assert now.deadline_s < hour_end.deadline_s
    assert gone == Vanished("node-a", Loss.GIVEN_BACK)


def test_a_machine_that_is_warned_while_it_boots_is_never_used() -> None:
    nodes = There()
    trainer = trainer_of(nodes)
    trainer.hold(0, (), (machine("a"),))
    trainer.warn(0, InstanceNotice("n", "a", Alert.TERMINATE, 120))
    nodes.booted = {"a": machine("a")}
    assert trainer.events() == []


def test_draining_stops_the_run_once() -> None:
    trainer = trainer_of(There(), now_s=100, speed=60.0)
    with Around() as told:
        trainer.drain(100, 220)
        trainer.drain(100, 220)
    (event,) = trainer.events()
    assert isinstance(event, Stopping)
    assert told.has(event.deadline_s, 2.0)


def test_a_node_that_ray_lost_is_told_once() -> None:
    nodes = There()
    nodes.booted = {"a": machine("a")}
    trainer = trainer_of(nodes)
    trainer.hold(0, (), (machine("a"),))
    trainer.events()
    nodes.dead = {"node-a"}
    assert trainer.events() == [Vanished("node-a", Loss.NODE_GONE)]
    assert trainer.events() == []


def test_a_machine_on_which_ray_starts_again_is_used_again() -> None:
    """systemd restarts Ray on a machine of EC2, which comes back as another node with the same label."""
    nodes = There()
    nodes.booted = {"a": machine("a")}
    trainer = trainer_of(nodes)
    trainer.hold(0, (), (machine("a"),))
    trainer.events()
    nodes.dead = {"node-a"}
    trainer.events()
    nodes.again = {"a": "node-b"}
    assert trainer.events() == [Appeared(TieredNode("node-b", "", Tier.TRANSIENT, "t"), admitted=True)]
    assert trainer.events() == []
    trainer.lost(0, ("a",))
    assert trainer.events() == [Vanished("node-b", Loss.EVICTED)]


class Calls(RuleBasedStateMachine):
    """Any calls in any order: whoever reads the events knows exactly which nodes the run may use."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes = There()
        self.trainer = trainer_of(self.nodes)
        self.held: dict[str, Instance] = {}
        self.usable: set[str] = set()  # nodes, as the events say
        self.ever: set[str] = set()
        self.warned: set[str] = set()
        self.bought = 0

    @rule(count=st.integers(1, 3))
    def buy(self, count: int) -> None:
        for _ in range(count):
            self.held[f"m{self.bought}"] = machine(f"m{self.bought}")
            self.bought += 1
        self.trainer.hold(0, (), tuple(self.held.values()))

    @rule(data=st.data())
    @precondition(lambda self: self.held)
    def boot(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.held)))
        self.nodes.booted[name] = self.held[name]

    @rule(data=st.data())
    @precondition(lambda self: self.held)
    def warn(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.held)))
        self.warned.add(name)
        self.trainer.warn(0, InstanceNotice(name, name, Alert.TERMINATE, 0))

    @rule(data=st.data())
    @precondition(lambda self: self.held)
    def lose(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.held)))
        self.nodes.booted.pop(name, None)
        del self.held[name]
        self.trainer.lost(0, (name,))
        self.trainer.hold(0, (), tuple(self.held.values()))

    @rule(data=st.data())
    @precondition(lambda self: len(self.held) > 1)
    def give_back(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.held)))
        self.trainer.leave(0, (name,))
        self.nodes.booted.pop(name, None)
        del self.held[name]
        self.trainer.hold(0, (), tuple(self.held.values()))

    @rule()
    def look(self) -> None:
        for event in self.trainer.events():
            match event:
                case Appeared(node):
                    assert node.node_id not in self.ever, "a node appears once"
                    self.ever.add(node.node_id)
                    self.usable.add(node.node_id)
                case Leaving(node_id) | Vanished(node_id):
                    assert node_id in self.ever
                    self.usable.discard(node_id)
        wanted = {
            f"node-{name}" for name in self.held if name in self.nodes.booted and name not in self.warned
        }
        assert self.usable == wanted

    @invariant()
    def all_is_work_in_progress(self) -> None:
        assert self.trainer.report(0).finished_s is None


class TestCalls(Calls.TestCase):  # type: ignore[name-defined, misc]
    settings = settings(deadline=None, derandomize=True, max_examples=25, stateful_step_count=30)


@pytest.mark.slow
class TestManyCalls(Calls.TestCase):  # type: ignore[name-defined, misc]
    settings = settings(deadline=None, max_examples=examples(300), stateful_step_count=50)


def test_nodes_of_a_cluster_are_found_by_the_label_with_their_instance_id() -> None:
    entries = [
        {"NodeID": "1", "Alive": True, "NodeManagerAddress": "10.0.0.1", "Resources": {},
         "Labels": {"tier": "transient", "machine": "i-0a"}},
        {"NodeID": "2", "Alive": True, "NodeManagerAddress": "10.0.0.2", "Resources": {},
         "Labels": {"tier": "transient", "machine": "i-0b"}},
        {"NodeID": "3", "Alive": False, "NodeManagerAddress": "10.0.0.3", "Resources": {},
         "Labels": {"tier": "transient", "machine": "i-0c"}},
        {"NodeID": "4", "Alive": True, "NodeManagerAddress": "10.0.0.4", "Resources": {},
         "Labels": {"tier": "transient"}},
    ]  # fmt: skip
    nodes = JoinedNodes(nodes=lambda: list(entries))
    wanted = {name: machine(name) for name in ("i-0a", "i-0c", "i-0d")} | {"i-0b": machine("i-0b", STEADY)}
    found = nodes.present(wanted, 0)
    assert {name: (node.node_id, node.tier) for name, node in found.items()} == {
        "i-0a": ("1", Tier.TRANSIENT),
        "i-0b": ("2", Tier.RELIABLE),  # as it was bought
    }
    assert nodes.missing({"1", "3"}) == {"3"}


def test_bytes_that_the_machines_sent_are_measured_while_several_run(monkeypatch: pytest.MonkeyPatch) -> None:
    steady = [0.0]
    monkeypatch.setattr("agileml.market.trainer.time.monotonic", lambda: steady[0])
    trainer = trainer_of(There(), speed=1.0)
    trainer._run._members = frozenset({"a", "b"})
    for total in (0, 10**9, 2 * 10**9, 0):  # the last one: another controller, which counts anew
        trainer.sent(total)
        steady[0] += 100.0
    assert trainer.report(0).measured.traffic_gb_per_h == pytest.approx(36.0)
