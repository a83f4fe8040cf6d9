"""Ray actors around `Machine` and `Head`: the border between Ray and the engine. No logic here."""

from __future__ import annotations

import faulthandler
import functools
import os
import sys
import threading
import time
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from agileml.application import Array
from agileml.config.hardware import Hardware
from agileml.core.compute.spans import Spans
from agileml.core.protocol.commands import HaltKind
from agileml.core.protocol.inputs import ControllerInput, NodeUp
from agileml.core.protocol.messages import CONTROLLER
from agileml.core.protocol.plan import Strike
from agileml.events.terms import Loss
from agileml.net.events import Address
from agileml.net.outbox import Done
from agileml.net.sealed_keys import KeyRecipient
from agileml.process.head import Head, HeadState
from agileml.process.machine import Machine
from agileml.process.record_store import GcsStore
from agileml.process.spec import RunSpec

HEAD_SHARE = 0.001  # of the head's resource, as little as Ray's own actors there take


class MachineActor:
    """One machine of a run: one actor per Ray node. It begins when the driver gives it the run's keys."""

    def __init__(self, name: str, spec: RunSpec, hardware: Hardware) -> None:
        faulthandler.enable()
        self._recipient = KeyRecipient(spec.run, name)
        self._what = (name, spec, spec.build(), hardware)
        self._begun: Machine | None = None
        self._beginning = threading.Lock()
        self._asked = 0  # calls of `until_gone`
        end_with_parent()

    def public_key(self) -> bytes:
        """The key to seal the run's keys for."""
        return self._recipient.public

    def begin(self, sealed_keys: bytes, head: Address) -> Address:
        """Open the run's keys, and begin; returns the address of its transport. A second call begins nothing."""
        with self._beginning:
            if self._begun is None:
                name, spec, application, hardware = self._what
                keys = self._recipient.open(sealed_keys)
                node_ip = ray.util.get_node_ip_address()
                machine = Machine(name, spec, application, node_ip, keys, head, hardware, end_process)
                machine.start()
                self._begun = machine
        return self._begun.address

    @property
    def _machine(self) -> Machine:
        assert self._begun is not None, "the driver calls this after `begin`"
        return self._begun

    def address(self) -> Address:
        """The address of its transport."""
        return self._machine.address

    def final_blocks(self, partition: int, clock: int) -> tuple[Array, ...] | None:
        """Its copy of a partition in the last cut of the run."""
        return self._machine.final_blocks(partition, clock)

    def final_slots(self, partition: int, clock: int) -> tuple[tuple[Array, ...], ...] | None:
        """The optimizer state beside it."""
        return self._machine.final_slots(partition, clock)

    def last_spans(self) -> Spans | None:
        """The spans that its profile recorded since the last report."""
        return self._machine.last_spans()

    def until_gone(self) -> None:
        """Return when the machine has left; the call fails when its process dies.

        A later call ends an earlier one, whose caller lost the connection, since each call holds a thread of the actor.
        """
        self._asked += 1
        asked = self._asked
        while self._machine.is_running and self._asked == asked:
            self._machine.join(1.0)

    def suffer(self, strike: Strike) -> None:
        """Carry out a planned fault."""
        self._machine.suffer(strike)

    def stand_for(self, speed: float) -> None:
        """Stand for a machine of this speed, as a multiple of its own, from the next computation on."""
        self._machine.compute.change_speed(speed)

    def meet(self, address: Address) -> None:
        """Connect to the new address of a process of the run."""
        self._machine.meet(address)

    def stop(self) -> None:
        """End the machine, if it has begun."""
        if self._begun is not None:
            self._begun.stop()


class HeadActor:
    """The controller of a run, on the head node. It begins when the driver gives it the run's keys.

    If its process dies, Ray starts another one, without keys: calls do nothing until the driver has sealed the keys for
    the new process. The driver then repeats everything.
    """

    def __init__(self, spec: RunSpec, expected: int) -> None:
        self._spec, self._expected = spec, expected
        self._recipient = KeyRecipient(spec.run, CONTROLLER)
        self._head: Head | None = None
        self._beginning = threading.Lock()
        end_with_parent()

    def public_key(self) -> bytes:
        """The key to seal the run's keys for."""
        return self._recipient.public

    def begin(self, public_key: bytes, sealed_keys: bytes) -> Address | None:
        """Open the run's keys, and begin; returns the address of its transport. A second call begins nothing.

        None: the keys are sealed for `public_key` of an earlier process.
        """
        if public_key != self._recipient.public:
            return None
        with self._beginning:
            if self._head is None:
                keys = self._recipient.open(sealed_keys)
                node_ip, store = ray.util.get_node_ip_address(), GcsStore(self._spec.run)
                head = Head(self._spec, self._expected, node_ip, keys, store)
                head.start()
                self._head = head
        return self._head.address

    def register(self, address: Address, up: NodeUp, replaced: NodeUp | None = None) -> None:
        """Connect the controller to a machine that is up at this address, perhaps in the place of one that died."""
        if self._head is not None:
            self._head.register(address, up, replaced)

    def register_gone(self, up: NodeUp, loss: Loss) -> None:
        """Tell the controller of a machine that is gone, perhaps since before this controller began."""
        if self._head is not None:
            self._head.register_gone(up, loss)

    def tell(self, event: ControllerInput) -> None:
        """Hand an event to the controller."""
        if self._head is not None:
            self._head.tell(event)

    def state(self, written: Done | None) -> HeadState | None:
        """The events that are not written, and the state of the run; None: it has not begun.

        written: the events that the driver has written; None: none yet.

        A replaced controller ends its process, and Ray restarts it in case no other controller is left.
        """
        if self._head is None:
            return None
        state = self._head.state(written or Done(self._head.address, 0))
        if state.halted is not None and state.halted.kind is HaltKind.REPLACED:
            os._exit(1)
        return state

    def stop(self) -> None:
        """End it and delete the run's records."""
        if self._head is not None:
            self._head.stop()
        GcsStore(self._spec.run).clear()


def end_with_parent(poll_s: float = 0.2) -> None:
    """End this process when its raylet dies: otherwise a worker outlives its raylet by more than a minute."""
    raylet = os.getppid()

    def watch() -> None:
        while os.getppid() == raylet:
            time.sleep(poll_s)
        os._exit(1)

    threading.Thread(target=watch, name="raylet-watch", daemon=True).start()


def end_process(reason: str) -> None:
    """End this process: a machine's processes live and die together."""
    print(f"proteus: {reason}", file=sys.stderr, flush=True)
    os._exit(1)


@functools.cache
def _remote(kind: type) -> Any:
    """The actor class, made once in a process: the GCS keeps each one that is made for as long as it lives."""
    return ray.remote(kind)


def start_machine(
    name: str,
    ray_node: str,
    spec: RunSpec,
    hardware: Hardware,
    runtime_env: dict[str, Any],
) -> Any:
    """Start the actor of a machine on its Ray node; it reserves the CPUs and GPUs of the config."""
    machines = spec.config.machines
    options = {
        "num_cpus": machines.cpus,
        "num_gpus": machines.gpus,
        "max_concurrency": 6,
        "enable_task_events": False,
        "scheduling_strategy": NodeAffinitySchedulingStrategy(ray_node, soft=False),
        "runtime_env": runtime_env,
    }
    return _remote(MachineActor).options(**options).remote(name, spec, hardware)


def start_head(resource: str, spec: RunSpec, expected: int, runtime_env: dict[str, Any]) -> Any:
    """Start the controller's actor on the head, the node with this resource, of which it reserves a trace.

    A resource finds the next head, too, where Ray's state outlives the head; a node's id would not.

    Task events are off: Ray's GCS would keep a record of some 2 KB in memory for each of the newest 100,000 calls, and
    the driver asks for the state so often that the head's memory would grow for hours.
    """
    options = {
        "num_cpus": 0,
        "resources": {resource: HEAD_SHARE},
        "max_concurrency": 8,
        "max_restarts": -1,  # clocks go on meanwhile
        "enable_task_events": False,
        "runtime_env": runtime_env,
    }
    return _remote(HeadActor).options(**options).remote(spec, expected)
