"""The log of steps: it keeps up with fast owners, and no controller takes steps along when it dies."""

from __future__ import annotations

from agileml.core.controller.step_log import StepLog
from agileml.core.protocol.superstep_messages import StepsTaken, StepTaken
from agileml.core.supersteps.kept_steps import KeptSteps
from agileml.core.supersteps.server import MOST_TOLD
from agileml.events.run import StepsLogged
from agileml.net.events import Address
from agileml.net.outbox import Outbox, OutboxReader

HEARTBEAT_S = 0.1


class Run:
    """An owner of one partition, controllers one after the other, and the driver, which writes the log."""

    def __init__(self) -> None:
        self.made = 0
        self.owner = KeptSteps(0)
        self.reader: OutboxReader[StepsLogged] = OutboxReader()
        self.file: list[StepsLogged] = []
        self.sent = 0
        self._count = 0
        self.begin_controller()

    def begin_controller(self) -> None:
        self._count += 1
        self.address = Address(f"c{self._count}", "", "", "", self._count)
        self.log, self.outbox = StepLog(), Outbox[StepsLogged]()

    def make(self, steps: int) -> None:
        for _ in range(steps):
            self.owner.add(StepTaken(self.made, (self.made,)))
            self.made += 1

    def heartbeat(self, *, is_answered: bool = True) -> None:
        message = StepsTaken(1, 0, *self.owner.unsent(MOST_TOLD), kept=self.owner.first)
        self.sent += len(message.taken)
        if (event := self.log.add(message, timeline=1)) is not None:
            self.outbox.append(event)
        if is_answered:
            answer = self.log.acknowledgement(message)
            self.owner.acknowledged(answer.received, answer.written)

    def poll(self) -> None:
        """The driver asks for events, and says which ones it has written."""
        done = self.reader.done
        count = done.count if done is not None and done.sender == self.address else 0
        for event in self.outbox.drop(count):
            self.log.written(0, event.first + len(event.positions))
        self.file += self.reader.take(self.address, *self.outbox.pending())

    def go_on(self, seconds: float, steps_per_s: float, turn_s: float) -> None:
        heartbeat_s = poll_s = now_s = 0.0
        before = self.made
        while (now_s := min(heartbeat_s, poll_s)) < seconds:
            self.make(before + int(steps_per_s * now_s) - self.made)
            if now_s == heartbeat_s:
                heartbeat_s += HEARTBEAT_S
                self.heartbeat()
            else:
                poll_s += turn_s
                self.poll()

    def written(self) -> list[int]:
        """The steps in the file; what comes again replaces what was there."""
        found: dict[int, int] = {}
        for event in self.file:
            found.update(enumerate(event.positions, event.first))
        return [found[number] for number in range(len(found))]


def test_the_log_keeps_up_with_thousands_of_steps_per_second():
    run = Run()
    run.go_on(60.0, steps_per_s=3000.0, turn_s=0.055)
    unreported = len(run.owner.unsent(10**9)[1])
    assert unreported <= 3000.0 * 2 * HEARTBEAT_S, unreported
    assert len(run.owner.taken) <= 3000.0 * 6 * HEARTBEAT_S, "what is written is not kept"
    assert run.sent == run.log._received[0], "each step travels once"


def test_a_slow_driver_does_not_hold_the_owner_up():
    run = Run()
    run.go_on(60.0, steps_per_s=1200.0, turn_s=0.5)
    assert len(run.owner.unsent(10**9)[1]) <= 1200.0 * 2 * HEARTBEAT_S


def test_a_new_controller_is_told_from_the_first_kept_step_again():
    run = Run()
    run.make(700)
    run.heartbeat()
    run.heartbeat()
    assert run.owner.unsent(9) == (700, ())
    run.begin_controller()  # the driver fetched nothing
    run.heartbeat()
    assert run.owner.unsent(1)[0] == 0 and not run.log.has_all([0], 1)
    for _ in range(3):
        run.heartbeat()
    run.poll()
    run.poll()
    run.heartbeat()
    assert run.written() == list(range(700)) and run.log.has_all([0], 700)
    run.make(1)
    run.heartbeat()
    assert run.owner.first == 700


def test_lost_answers_cost_only_repeats():
    run = Run()
    run.make(20)
    run.heartbeat(is_answered=False)
    run.make(20)
    run.heartbeat(is_answered=False)
    run.poll()
    run.poll()
    run.heartbeat()
    run.poll()
    assert run.written() == list(range(40))


def test_a_moved_partition_is_told_again_and_logged_once():
    run = Run()
    run.make(30)
    run.heartbeat()
    run.owner = KeptSteps(run.owner.first, run.owner.taken)
    run.make(10)
    run.heartbeat()
    run.poll()
    assert run.written() == list(range(40))
    assert sum(len(event.positions) for event in run.file) == 40
