"""The driver's actors without Ray: calls to them are recorded, and the test says which start and which die."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import ray

from agileml.cluster import ray_cluster
from agileml.cluster.fleet import Appeared
from agileml.cluster.ray_cluster import TieredNode
from agileml.config.job import from_values
from agileml.core.protocol.messages import CONTROLLER
from agileml.driver import actor_group
from agileml.driver.actor_group import ActorGroup
from agileml.driver.startup import Startup
from agileml.driver.stop_signal import StopSignal
from agileml.events.terms import Tier
from agileml.net.events import Address
from agileml.net.sealed_keys import KeyRecipient
from agileml.process.head import HeadState
from agileml.process.spec import RunSpec

SPEC = RunSpec("run", from_values({"application": "mlr", "data": {"kind": "digits"}, "clocks": 8}))
PORTS = itertools.count(1)


class Actor:
    """Stands for Ray's handle of an actor, and for its process."""

    def __init__(self, name: str) -> None:
        self.name, self.has_started, self.has_left, self.is_dead = name, False, False, False
        self.calls: list[tuple[Any, ...]] = []
        self.key = KeyRecipient(SPEC.run, name).public
        self.address = _address(name)
        self.news: dict[str, Any] = {}  # fields of the controller's state

    def __getattr__(self, method: str) -> Method:
        return Method(self, method)


@dataclass(frozen=True)
class Method:
    """Stands for a method of Ray's handle."""

    actor: Actor
    name: str

    def remote(self, *arguments: Any) -> Reference:
        self.actor.calls.append((self.name, *arguments))
        return Reference(self.actor, self.name)


@dataclass(eq=False)
class Reference:
    """Stands for Ray's reference to the answer of a call."""

    actor: Actor
    method: str

    @property
    def is_ready(self) -> bool:
        if self.method == "until_gone":
            return self.actor.is_dead or self.actor.has_left
        return self.actor.is_dead or self.actor.has_started

    def get(self, timeout: float | None = None) -> Any:
        if self.actor.is_dead:
            raise ray.exceptions.ActorDiedError
        match self.method:
            case "public_key":
                return self.actor.key
            case "begin":
                return self.actor.address
            case "state":
                return replace(_state(self.actor.address), **self.actor.news)


def _address(name: str) -> Address:
    port = next(PORTS)
    return Address(name, "192.0.2.2", f"tcp://192.0.2.2:{port}", "", port)


def _state(address: Address) -> HeadState:
    """That of a controller that has just begun."""
    return HeadState(
        address=address,
        first=0,
        pending=(),
        clock=0,
        reported=0,
        stage=0,
        reliable=0,
        transient=0,
        bytes_sent={},
        spent_s={},
        worked=(),
        spans=(),
        refused_handshakes=0,
        finished=None,
        held=None,
        halted=None,
    )


class RayRig:
    """A group of actors, and the Ray nodes that live."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.nodes: list[TieredNode] = []
        self.machines: dict[str, Actor] = {}
        self.killed: list[str] = []  # by the driver
        self.head = Actor(CONTROLLER)
        self.head.has_started = True

        def start_machine(name: str, *about: Any) -> Actor:
            self.machines[name] = Actor(name)
            return self.machines[name]

        def wait(references: Sequence[Reference], **options: Any) -> tuple[list[Reference], list[Reference]]:
            ready = [each for each in references if each.is_ready]
            return ready, [each for each in references if not each.is_ready]

        monkeypatch.setattr(ray, "wait", wait)
        monkeypatch.setattr(ray, "get", Reference.get)
        monkeypatch.setattr(ray, "kill", lambda actor: self.killed.append(actor.name))
        monkeypatch.setattr(actor_group, "start_head", lambda *about: self.head)
        monkeypatch.setattr(actor_group, "start_machine", start_machine)
        monkeypatch.setattr(
            ray_cluster, "live_nodes", lambda timeout_s: {node.node_id for node in self.nodes}
        )
        self.group = ActorGroup(SPEC, 1, {}, Startup(60.0, StopSignal(), print), lambda: None)

    def appear(self, tier: Tier) -> TieredNode:
        """A Ray node is there; the driver asks for a process on it."""
        node = TieredNode(f"n{next(PORTS)}", "192.0.2.2", tier, "a")
        self.nodes.append(node)
        self.group.happened(Appeared(node, admitted=True))
        return node

    def start(self, name: str) -> None:
        """A machine's process comes up."""
        self.machines[name].has_started = True
        self.look()

    def end(self, name: str) -> None:
        """A machine's process ends in order, and the driver looks."""
        self.machines[name].has_left = True
        self.look()

    def die(self, name: str) -> None:
        """A machine's process ends by itself, and the driver looks."""
        self.machines[name].is_dead = True
        self.look()

    def replace_head(self) -> None:
        """The controller's process dies, and Ray starts another."""
        self.head.address = _address(CONTROLLER)
        self.head.calls.clear()
        self.group.state()

    def look(self) -> None:
        """What the driver's loop does, twice: a process tells its key first, then it begins."""
        for _ in range(2):
            self.group.replace_dead()
            self.group.introduce()

    def told(self) -> list[tuple[Any, ...]]:
        """What the controller was told of machines: (what, name, ...)."""
        found: list[tuple[Any, ...]] = []
        for method, *arguments in self.head.calls:
            match method:
                case "register" if len(arguments) > 2 and arguments[2] is not None:
                    found.append(("up", arguments[1].node, "in place of", arguments[2].node))
                case "register":
                    found.append(("up", arguments[1].node))
                case "register_gone":
                    found.append(("gone", arguments[0].node, arguments[1]))
                case "tell":
                    found.append(("told", arguments[0]))
        return found
