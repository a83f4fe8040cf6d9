"""The Ray actors of a run: one for the controller, one for each machine, started as Ray nodes appear."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import ray

from agileml.application import Array
from agileml.cluster.fleet import Admitted, Appeared, FleetEvent, Leaving, Stopping, Vanished
from agileml.cluster.ray_cluster import HEAD_RESOURCE, TieredNode
from agileml.config.hardware import Hardware, capacity_of, split_of
from agileml.core.compute.spans import Spans
from agileml.core.protocol.commands import Finished
from agileml.core.protocol.inputs import Admit, ControllerInput, NodeDown, NodeFailed, NodeUp, Notice, Stop
from agileml.core.protocol.messages import CONTROLLER, Failure
from agileml.core.protocol.plan import Strike
from agileml.driver.backups import begin_read, read_last
from agileml.driver.failures import Death, Failures, begin_error, cause_of, last_line, said_by
from agileml.driver.process_ends import ProcessEnds
from agileml.driver.ray_answers import RayAnswers
from agileml.driver.started_actor import StartedActor
from agileml.driver.startup import Startup
from agileml.errors import ControllerLostError, RunError
from agileml.events.terms import Loss, Task, Tier
from agileml.net.events import Address
from agileml.net.keys import KeyPair
from agileml.net.outbox import OutboxReader
from agileml.net.sealed_keys import seal
from agileml.process.actors import start_head, start_machine
from agileml.process.head import ForDriver, HeadState
from agileml.process.spec import RunSpec

RESTART_S = 120.0  # to wait for another controller: a starved host takes a minute to start a process
STARTS = 3  # tries to start a process that dies each time


class ActorGroup:
    """The actors of the controller and the machines of one run, in the Ray cluster that this process uses."""

    def __init__(
        self,
        spec: RunSpec,
        expected: int,
        runtime_env: dict[str, Any],
        startup: Startup,
        watch_head: Callable[[], None],
    ) -> None:
        """Start the controller's process. watch_head: see `fleet.Fleet`. Raises RunError."""
        self._spec = spec
        self._answers = RayAnswers(watch_head)
        self._keys = KeyPair.generate()
        self._env = runtime_env
        self._actors: dict[str, StartedActor] = {}
        self._by_node: dict[str, str] = {}
        self._ended = ProcessEnds()
        self._numbers = itertools.count()
        self.failures = Failures(spec.config.max_failures)
        self._stop: Stop | None = None
        self._reader = OutboxReader[ForDriver]()
        self._head = start_head(HEAD_RESOURCE, spec, expected, self._env)
        what = "the controller's process"
        public = startup.result(self._head.public_key.remote(), what, watch_head)
        address = startup.result(self._begin_head(public), what, watch_head)
        if address is None:
            raise RunError(f"{what} died while it started")
        self._head_address: Address = address

    def node_of(self, machine: str) -> str:
        return self._actors[machine].node.node_id

    @property
    def starting(self) -> list[str]:
        """The machines whose processes have been asked for and are not up yet."""
        actors = (actor for name, actor in self._actors.items() if name not in self._ended)
        return [actor.name for actor in actors if actor.address is None]

    @property
    def up(self) -> int:
        """How many machines have had a process that was up."""
        return sum(actor.address is not None for actor in self._actors.values())

    def happened(self, event: FleetEvent) -> None:
        """Start, admit or end actors after changes of the fleet, and tell the controller."""
        match event:
            case Appeared():
                self._start(event.node, admitted=event.admitted)
            case Admitted() if self._by_node.get(event.node_id) in self._actors:
                self._admit(self._by_node[event.node_id], event.speed)
            case Vanished() if event.node_id in self._by_node:
                self.failures.machine_lost(event.node_id)
                self._end(self._by_node.pop(event.node_id), event.loss)
            case Leaving() if self._by_node.get(event.node_id) in self._actors:
                self.tell(Notice(self._by_node[event.node_id], event.deadline_s))
            case Stopping():
                self.tell(Stop(event.deadline_s))

    def _admit(self, name: str, speed: float) -> None:
        """Let a machine that waits become a member, as a machine of this speed."""
        self.admitted(name)
        actor = self._actors[name]
        actor.node = replace(actor.node, speed=speed)
        hardware = self._hardware(name, actor.node)
        capacity = capacity_of(self._spec.config, hardware.cores, speed)
        actor.up = replace(actor.up, capacity=capacity)
        if speed != 1.0:
            actor.stand_for(speed)
        self.tell(Admit(name, actor.up.capacity))

    def _start(self, node: TieredNode, *, admitted: bool, deadline_s: float | None = None) -> None:
        name = self._spec.machine_name(next(self._numbers))
        hardware = self._hardware(name, node)
        capacity = capacity_of(self._spec.config, hardware.cores, node.speed)
        up = NodeUp(name, Tier(str(node.tier)), admitted, capacity, deadline_s)
        handle = start_machine(name, node.node_id, self._spec, hardware, self._env)
        self._actors[name] = StartedActor(name, node, up, handle, handle.public_key.remote())
        self._by_node[node.node_id] = name

    def _hardware(self, name: str, node: TieredNode) -> Hardware:
        """The hardware of a machine on this node. Raises ConfigError where the config asks for more."""
        cores = max(1, int(node.cpus))
        split_of(self._spec.config, cores)
        return Hardware(cores, self._spec.speed_of(name, node.tier) * node.speed)

    def _end(self, name: str, loss: Loss, detail: str = "") -> None:
        if name not in self._actors:
            return  # its process ended so long ago that it is forgotten, and now its node goes too
        self._report_replaced(name)
        if name not in self._ended:
            self._note_end(name)
            self.tell(NodeDown(name, loss, detail))

    def _note_end(self, name: str) -> None:
        """Remember the end of a process, and forget one that ended long ago."""
        if (oldest := self._ended.add(name)) is not None:
            self._actors.pop(oldest, None)

    def introduce(self) -> list[str]:
        """Register the machines whose processes are up with the controller, and return their Ray nodes."""
        nodes = []
        for actor in self._ready(lambda actor: actor.starting):
            reference, actor.starting = actor.starting, None
            try:
                answer = ray.get(reference)
            except ray.exceptions.ActorUnavailableError:  # a connection broke: the process may well live
                is_begun = actor.address is not None
                actor.starting = (actor.handle.address if is_begun else actor.handle.public_key).remote()
                continue
            except ray.exceptions.RayError as error:
                self._did_not_start(actor, error)
                continue
            if actor.name in self._ended:
                continue
            if isinstance(answer, bytes):
                sealed = seal(self._keys, answer, self._spec.run, actor.name)
                actor.head = self._head_address
                actor.starting = actor.handle.begin.remote(sealed, actor.head)
                continue
            actor.has_begun(answer)
            if actor.head != self._head_address:  # the controller was replaced meanwhile
                actor.handle.meet.remote(self._head_address)
            if actor.watch is None:
                actor.watch = actor.handle.until_gone.remote()
            # In one call: two could reach the controller in either order.
            self._head.register.remote(actor.address, actor.up, self._ended.settled(actor.name))
            self.failures.machine_lives(actor.node.node_id)
            nodes.append(actor.node.node_id)
        return nodes

    def _did_not_start(self, actor: StartedActor, error: ray.exceptions.RayError) -> None:
        """End or replace a process that died while it started; the controller judges one that cannot start at all."""
        gone = (
            ray.exceptions.RayActorError,
            ray.exceptions.ActorUnschedulableError,
            ray.exceptions.OutOfMemoryError,  # Ray's own watch over a node's memory killed it
        )
        died = isinstance(error, gone) and not getattr(error, "actor_init_failed", False)
        if died and not self._is_alive(actor.node):
            self._end(actor.name, Loss.NODE_GONE)
            return
        in_a_row = self.failures.start_failed(actor.node.node_id)
        if not died or in_a_row >= STARTS:
            said = said_by(error)
            failure = Failure(f"it cannot start: {last_line(said)}", said, Task.START)
            self._report_replaced(actor.name)
            self._note_end(actor.name)
            self.tell(NodeFailed(actor.up, failure))
            ray.kill(actor.handle)  # one that failed in `begin` still has its CPUs
            return
        self._replace(actor, f"while it started: {cause_of(said_by(error))}")

    def replace_dead(self) -> None:
        """Start processes that died on living Ray nodes again, as machines of other names."""
        for actor in self._ready(lambda actor: actor.watch):
            reference, actor.watch = actor.watch, None
            try:
                ray.get(reference)
            except ray.exceptions.ActorUnavailableError:  # a connection broke: the process may well live
                actor.watch = actor.handle.until_gone.remote()
            except (ray.exceptions.RayActorError, ray.exceptions.OutOfMemoryError) as error:
                self._replace(actor, cause_of(said_by(error)))
            else:
                self._end(actor.name, Loss.PROCESS_ENDED)  # normally because it was released

    def _replace(self, actor: StartedActor, cause: str) -> None:
        """Report a process that died; on a living Ray node start another, under another name."""
        if actor.name in self._ended:
            return
        node_id = actor.node.node_id
        if self._by_node.get(node_id) != actor.name or not self._is_alive(actor.node):
            self._end(actor.name, Loss.PROCESS_DIED, cause)
            return
        self.failures.died(node_id, Death(actor.name, cause))
        if actor.up.tier is Tier.RELIABLE:
            self._note_end(actor.name)
        else:
            self._end(actor.name, Loss.PROCESS_DIED, cause)
        # Under a notice a reliable one may still be all that is left: it must not be released at once.
        deadline_s = actor.up.deadline_s if actor.up.tier is Tier.TRANSIENT else None
        self._start(actor.node, admitted=actor.up.admitted, deadline_s=deadline_s)
        if actor.up.tier is Tier.RELIABLE:
            was_up = actor.address is not None
            self._ended.replaced(actor.up, self._by_node[node_id], was_up=was_up)

    def _report_replaced(self, successor: str) -> None:
        """Tell the controller that the process which `successor` replaces has died, if it was not told yet."""
        if (dead := self._ended.settled(successor)) is not None:
            # A controller that took over meanwhile has not heard of that machine, but its view may name it.
            self._head.register_gone.remote(dead, Loss.PROCESS_DIED)

    def _is_alive(self, node: TieredNode) -> bool:
        return node.node_id in self._answers.live_nodes()

    def _ready(self, reference_of: Callable[[StartedActor], Any]) -> list[StartedActor]:
        waiting = {
            reference: actor
            for actor in self._actors.values()
            if (reference := reference_of(actor)) is not None
        }
        if not waiting:
            return []
        ready, _ = ray.wait(list(waiting), num_returns=len(waiting), timeout=0, fetch_local=False)
        return [waiting[reference] for reference in ready]

    def tell(self, event: ControllerInput) -> None:
        """Tell the controller, and remember stops and notices for a new controller. A notice is repeated with its
        machine's registration, because a controller does not know a machine whose process is still starting."""
        if isinstance(event, Notice):
            self.noticed(event.node, event.deadline_s)
        elif isinstance(event, Stop):
            self._stop = event if self._stop is None else self._stop.sooner(event)
        self._head.tell.remote(event)

    def suffer(self, machine: str, strike: Strike) -> None:
        """Have a machine's process apply a planned fault to itself."""
        actor = self._actors[machine]
        actor.handle.suffer.remote(strike)

    def kill_controller(self) -> None:
        """Kill the controller's process, as planned. Ray starts another."""
        ray.kill(self._head, no_restart=False)

    def heal(self, machine: str) -> None:
        """Register the new address of a machine that was cut off, once it is known."""
        actor = self._actors[machine]
        if machine not in self._ended:
            actor.starting = actor.handle.address.remote()

    def state(self) -> HeadState:
        """Get what is new, and confirm all of the last call. If the controller has died, ask the next one.

        Raises ControllerLostError where no controller comes back, RunError where one cannot begin.
        """
        for _ in range(STARTS):
            try:
                state: HeadState | None = self._answers.get(self._head.state.remote(self._reader.done))
            except (ray.exceptions.ActorUnavailableError, ray.exceptions.ActorDiedError):
                self._meet_new_head()  # which may die in its turn
            else:
                if state is None or state.address != self._head_address:
                    self._meet_new_head()  # the one before died unobserved
                if state is not None:
                    return replace(
                        state, pending=self._reader.take(state.address, state.first, state.pending)
                    )
        raise ControllerLostError(f"the controller's process died {STARTS} times in a row")

    def _begin_head(self, public: bytes) -> Any:
        """The reference to the controller's address; to None, if its process is another than that of this key."""
        return self._head.begin.remote(public, seal(self._keys, public, self._spec.run, CONTROLLER))

    def _meet_new_head(self) -> None:
        until_s = time.monotonic() + RESTART_S
        while True:
            try:
                public = self._answers.get(self._head.public_key.remote())
                address = self._answers.get(self._begin_head(public))
                if address is not None:
                    break
            except ray.exceptions.ActorUnavailableError as error:
                if time.monotonic() > until_s:
                    raise ControllerLostError(f"the controller does not come back: {error}") from error
                time.sleep(0.05)
                asked_s = time.monotonic()
                self._answers.live_nodes()  # answered once Ray's head is there: the controller cannot come back before
                until_s += time.monotonic() - asked_s
            except ray.exceptions.ActorDiedError as error:
                raise ControllerLostError(f"Ray starts no other controller: {error}") from error
            except ray.exceptions.RayTaskError as error:
                raise begin_error("the controller cannot start again", error) from error
        self._head_address = address
        were_up = [actor for actor in self._actors.values() if actor.address is not None]
        for actor in were_up:
            if actor.name not in self._ended:
                self._head.register.remote(actor.address, actor.up)
                actor.handle.meet.remote(self._head_address)
        for actor in were_up:
            if self._ended.is_reported(actor.name):
                self._head.register_gone.remote(actor.up, Loss.GONE_BEFORE)
        if self._stop is not None:
            self._head.tell.remote(self._stop)

    def noticed(self, machine: str, deadline_s: float) -> None:
        """Remember a notice for the controller that the machine is registered with later."""
        if (actor := self._actors.get(machine)) is not None:
            known_s = actor.up.deadline_s
            soonest_s = deadline_s if known_s is None else min(known_s, deadline_s)
            actor.up = replace(actor.up, deadline_s=soonest_s)

    def admitted(self, machine: str) -> None:
        """Remember that a waiting machine was admitted, for controllers that take over."""
        actor = self._actors[machine]
        actor.up = replace(actor.up, admitted=True)

    def result(self, finished: Finished) -> list[tuple[Array, ...]]:
        """The blocks of every partition in the last cut, from the backups. Raises RunError where one of them died."""
        return read_last(self._backups(finished), "final_blocks", finished.clock, self._answers)

    def slots(self, finished: Finished) -> list[tuple[tuple[Array, ...], ...]]:
        """The optimizer state of every partition in the last cut, by slot and table. Raises RunError as `result`."""
        return read_last(self._backups(finished), "final_slots", finished.clock, self._answers)

    def begin_read(self, held: Finished) -> Callable[[], list[tuple[Array, ...]] | None]:
        """See `backups.begin_read`."""
        return begin_read(self._backups(held), held.clock, self._answers)

    def _backups(self, finished: Finished) -> list[Any]:
        return [self._actors[backup].handle for backup in finished.backup]

    def last_spans(self, timeout_s: float) -> dict[str, Spans | None]:
        """The last spans of every running machine's profile; None for a machine that does not answer in time."""
        live = [a for a in self._actors.values() if a.name not in self._ended and a.address is not None]
        asked = {actor.name: actor.handle.last_spans.remote() for actor in live}
        ready, _ = ray.wait(list(asked.values()), num_returns=len(asked), timeout=timeout_s)
        found: dict[str, Spans | None] = dict.fromkeys(asked)
        for name, reference in asked.items():
            with suppress(ray.exceptions.RayError):
                found[name] = ray.get(reference) if reference in ready else None
        return found

    def stop(self, timeout_s: float = 2.0) -> None:
        """End every process of the run that can still be reached, within `timeout_s`."""
        live = [actor for actor in self._actors.values() if actor.name not in self._ended]
        waiting = [*(actor.handle.stop.remote() for actor in live), self._head.stop.remote()]
        ray.wait(waiting, num_returns=len(waiting), timeout=timeout_s, fetch_local=False)
        for actor in live:
            ray.kill(actor.handle)
        ray.kill(self._head)
