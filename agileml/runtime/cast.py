"""The actors of a run: started on nodes as they appear, looked up by name, ended together."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

import ray

from agileml.application import Array
from agileml.core.commands import Finished
from agileml.core.events import ControllerEvent, NodeDown, NodeUp, Notice
from agileml.core.tier import Tier
from agileml.errors import RunError
from agileml.runtime.actors import environment, start_head, start_machine
from agileml.runtime.fleet import Appeared, Draining, FleetEvent, Vanished
from agileml.runtime.head import HeadState
from agileml.runtime.keys import KeyPair
from agileml.runtime.spec import RunSpec


@dataclass
class _Actor:
    name: str
    node_id: str
    up: NodeUp
    handle: Any
    starting: Any  # the reference to its address until that is known


class Cast:
    """Head and machines of one run in a Ray cluster that this process is connected to."""

    def __init__(self, spec: RunSpec, expected: int, head_node: str, runtime_env: dict[str, Any]) -> None:
        self._spec = spec
        self._keys = KeyPair.generate()
        self._env = environment(spec.config)
        self._env["env_vars"] |= runtime_env.pop("env_vars", {})
        self._env |= runtime_env
        self._actors: dict[str, _Actor] = {}
        self._by_node: dict[str, str] = {}
        self._head = start_head(head_node, spec, expected, self._keys, self._env)
        self._head_address = ray.get(self._head.address.remote())

    def node_of(self, machine: str) -> str:
        """The Ray node of a machine."""
        return self._actors[machine].node_id

    def happened(self, event: FleetEvent) -> None:
        """The fleet changed."""
        match event:
            case Appeared():
                name = f"m{len(self._actors)}"
                up = NodeUp(name, Tier(str(event.node.tier)), event.node.allocation, event.admitted)
                handle = start_machine(
                    name, event.node.node_id, self._spec, self._keys, self._head_address, self._env
                )
                actor = _Actor(name, event.node.node_id, up, handle, handle.address.remote())
                self._actors[name] = actor
                self._by_node[event.node.node_id] = name
            case Vanished() if event.node_id in self._by_node:
                self.tell(NodeDown(self._by_node[event.node_id], event.reason))
            case Draining() if event.node_id in self._by_node:
                self.tell(Notice(self._by_node[event.node_id], event.deadline_s))

    def introduce(self) -> None:
        """Register the machines whose processes have come up. Raises RunError for one that cannot."""
        starting = {actor.starting: actor for actor in self._actors.values() if actor.starting is not None}
        if not starting:
            return
        ready, _ = ray.wait(list(starting), num_returns=len(starting), timeout=0)
        for reference in ready:
            actor = starting[reference]
            actor.starting = None
            try:
                address = ray.get(reference)
            except ray.exceptions.ActorDiedError as error:
                if "preempted" in str(error) or getattr(error, "preempted", False):
                    continue
                raise RunError(f"machine {actor.name} cannot start: {error}") from error
            except ray.exceptions.RayError as error:
                raise RunError(f"machine {actor.name} cannot start: {error}") from error
            self._head.register.remote(address, actor.up)

    @property
    def is_starting(self) -> bool:
        """True while a machine's process comes up."""
        return any(actor.starting is not None for actor in self._actors.values())

    def tell(self, event: ControllerEvent) -> None:
        """Tell the controller."""
        self._head.tell.remote(event)

    def state(self) -> HeadState:
        """What happened since the last time."""
        state: HeadState = ray.get(self._head.state.remote())
        return state

    def result(self, finished: Finished) -> list[tuple[Array, ...]]:
        """The blocks of every partition after the last clock, from the backups."""
        references = [
            self._actors[backup].handle.final_blocks.remote(partition)
            for partition, backup in enumerate(finished.backup)
        ]
        parts = ray.get(references)
        assert all(blocks is not None for blocks in parts), "a backup lacks its part of the final cut"
        return list(parts)

    def stop(self) -> None:
        """End every process of the run, where it can still be reached."""
        waiting = [actor.handle.stop.remote() for actor in self._actors.values()]
        waiting.append(self._head.stop.remote())
        ray.wait(waiting, num_returns=len(waiting), timeout=2.0)
        for actor in self._actors.values():
            ray.kill(actor.handle)
        ray.kill(self._head)


def new_run_name() -> str:
    """A name for a run that no other run on this machine has."""
    return secrets.token_hex(6)
