"""Machines that are given back leave first; the run ends with the last of them only where the job ends."""

from __future__ import annotations

import threading
import time

from agileml.cluster.fleet import Leaving, Stopping, Vanished
from agileml.events.terms import Loss
from tests.agileml.market.test_trainer import STEADY, There, machine, trainer_of


def test_leaving_waits_until_the_run_has_let_go() -> None:
    nodes = There()
    nodes.booted = {"r": machine("r", STEADY), "a": machine("a")}
    trainer = trainer_of(nodes, leave_s=600.0)
    trainer.hold(0, (machine("r", STEADY),), (machine("a"),))
    trainer.events()
    left = threading.Event()

    def leave() -> None:
        trainer.leave(0, ("a",))
        left.set()

    threading.Thread(target=leave, daemon=True).start()
    while not (found := trainer.events()):
        time.sleep(0.001)
    assert isinstance(found[0], Leaving)
    assert not left.is_set()
    trainer.released("node-a")
    assert left.wait(120)
    assert trainer.events() == [Vanished("node-a", Loss.GIVEN_BACK)]


def test_the_end_waits_until_the_run_has_parted() -> None:
    nodes = There()
    nodes.booted = {"r": machine("r", STEADY)}
    trainer = trainer_of(nodes)
    trainer.hold(0, (machine("r", STEADY),), ())
    trainer.events()
    ended = threading.Event()

    def leave() -> None:
        trainer.drain(0, 120)
        trainer.leave(0, ("r",))
        ended.set()

    threading.Thread(target=leave, daemon=True).start()
    while not (found := trainer.events()):
        time.sleep(0.001)
    assert isinstance(found[0], Stopping)
    assert not trainer.report(0).drained
    assert not ended.is_set()
    trainer.part()
    assert ended.wait(120)
    assert trainer.report(0).drained


def test_all_that_is_left_may_be_given_back_while_lost_reliable_machines_are_bought_anew() -> None:
    """The job goes on: a policy may give its last spot machine back in the step in which they are lost."""
    nodes = There()
    nodes.booted = {"r": machine("r", STEADY), "a": machine("a")}
    trainer = trainer_of(nodes)
    trainer.hold(0, (machine("r", STEADY),), (machine("a"),))
    trainer.events()
    trainer.lost(0, ("r",))
    leaving = threading.Thread(target=lambda: trainer.leave(0, ("a",)), daemon=True)
    leaving.start()
    leaving.join(120)
    assert not leaving.is_alive()
    told = trainer.events()
    assert not any(isinstance(event, Stopping) for event in told)
    assert told[0] == Vanished("node-r", Loss.EVICTED) and told[-1] == Vanished("node-a", Loss.GIVEN_BACK)
