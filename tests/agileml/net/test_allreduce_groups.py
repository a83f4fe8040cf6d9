"""Groups over gloo in one process: they meet by messages, add up in place, and are left behind when somebody hangs."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from agileml.core.protocol.commands import Abandon, Broken, Form, Introduce, Met, Reduce, Reduced
from agileml.net.allreduce import AllReduce
from agileml.net.collectives import Gloo, PendingSum

LIMIT_S = 120.0  # far below a group's timeout


class Machines:
    """Machines that hand each other what they must know; what they report else waits in a queue each."""

    def __init__(
        self, *names: str, timeout_s: float = 600.0, collectives: Mapping[str, Gloo] | None = None
    ) -> None:
        self._turn = threading.Lock()  # a machine's commands come from one thread
        self.reports: dict[str, queue.SimpleQueue[Any]] = {name: queue.SimpleQueue() for name in names}
        self.ends = {
            name: AllReduce(
                name,
                lambda event, me=name: self._reported(me, event),
                collectives[name] if collectives else Gloo(),
                timeout_s,
            )
            for name in names
        }

    def _reported(self, me: str, event: Met | Reduced | Broken) -> None:
        if not isinstance(event, Met):
            self.reports[me].put(event)
            return
        for name, end in self.ends.items():
            if name != me:
                with self._turn:
                    end.ask(Introduce(event.epoch, event.key, event.value))

    def form(self, epoch: int, *names: str) -> None:
        for name in names:
            with self._turn:
                self.ends[name].form(Form(epoch, names), "127.0.0.1")

    def give(self, name: str, epoch: int, value: float, *, partition: int = 0, pause: bool = False) -> None:
        blocks = (np.full(1000, value, np.float32), np.empty(0, np.float64))
        self.ends[name].ask(Reduce(epoch, 3, partition, blocks, value, 2, pause))

    def give_seconds(self, name: str, epoch: int, compute_s: float, expected: float) -> None:
        blocks = (np.ones(10, np.float32),)
        self.ends[name].ask(Reduce(epoch, 3, 0, blocks, 1.0, 2, False, compute_s, expected, (7.0, 1.0)))

    def next(self, name: str) -> Any:
        return self.reports[name].get(timeout=LIMIT_S)


@pytest.fixture
def machines() -> Iterator[Machines]:
    made = Machines("a", "b", "c")
    yield made
    for end in made.ends.values():
        end.stop()


def test_everybody_hears_what_each_machine_has_spent_and_expects_to_the_bit(machines: Machines) -> None:
    machines.form(1, "a", "b", "c")
    spent_s = {"a": 0.1, "b": 1e-9, "c": 3.0000000000000004}
    expected = {"a": 0.3, "b": 0.0, "c": 1e9 / 3}
    for name, compute_s in spent_s.items():
        machines.give_seconds(name, 1, compute_s, expected[name])
    for found in [machines.next(name) for name in "abc"]:
        assert found.compute_s == tuple(spent_s.values())
        assert found.expected == tuple(expected.values())
        assert found.metrics == (21.0, 3.0)


def test_what_everybody_gives_is_added_up_in_order(machines: Machines) -> None:
    machines.form(1, "a", "b", "c")
    for name, value in (("c", 4.0), ("a", 1.0), ("b", 2.0)):
        machines.give(name, 1, value, partition=1)
        machines.give(name, 1, 10 * value, pause=name == "b")
    for name in "abc":
        first, second = machines.next(name), machines.next(name)
        assert (first.partition, second.partition) == (1, 0)
        assert (first.blocks[0] == 7).all() and (second.blocks[0] == 70).all()
        assert (second.loss, second.examples, second.pause) == (70.0, 6, True)
        assert first.compute_s == second.compute_s == ()


def test_a_group_of_one_needs_nobody(machines: Machines) -> None:
    machines.form(1, "b")
    machines.give("b", 1, 5.0)
    found = machines.next("b")
    assert (found.blocks[0] == 5).all() and (found.loss, found.pause) == (5.0, False)


def test_the_next_group_does_not_wait_for_one_that_hangs(machines: Machines) -> None:
    machines.form(1, "a", "b", "c")
    for name in "abc":
        machines.give(name, 1, 1.0, partition=1)
    for name in "abc":
        assert (machines.next(name).blocks[0] == 3).all()
    machines.give("a", 1, 1.0)
    machines.give("b", 1, 1.0)  # c is frozen: it never gives this one
    for name in "ab":
        machines.ends[name].ask(Abandon())
    machines.form(2, "a", "b")
    for name in "ab":
        machines.give(name, 1, 9.0)  # of the old group: nobody is interested
        machines.give(name, 2, 2.0)
    for name in "ab":
        found = machines.next(name)
        assert found.epoch == 2 and (found.blocks[0] == 4).all()
    machines.ends["c"].stop()  # its end frees what was left behind
    assert all(machines.reports[name].empty() for name in "abc")


def test_a_member_that_goes_away_is_said_once(machines: Machines) -> None:
    machines.form(1, "a", "b")
    for name in "ab":
        machines.give(name, 1, 1.0)
    for name in "ab":
        assert isinstance(machines.next(name), Reduced)
    machines.ends["b"].stop()
    machines.give("a", 1, 1.0, partition=1)
    machines.give("a", 1, 1.0)
    broken = machines.next("a")
    assert isinstance(broken, Broken) and broken.epoch == 1
    machines.ends["a"].stop()
    assert machines.reports["a"].empty()


def test_who_never_comes_is_said_after_the_timeout() -> None:
    machines = Machines("a", "b", timeout_s=0.3)
    machines.ends["a"].form(Form(1, ("a", "b")), "127.0.0.1")
    broken = machines.next("a")
    assert isinstance(broken, Broken)
    assert "nothing came from" in broken.reason
    for end in machines.ends.values():
        end.stop()


class Watched(Gloo):
    """Gloo that says when a group is given up, and whose sums cannot begin from a partition on."""

    def __init__(self, fails: bool) -> None:
        self.given_up: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._fails = fails

    def begin(self, group: Any, tensors: Sequence[torch.Tensor]) -> list[PendingSum]:
        if self._fails:
            raise RuntimeError("the peer is gone")
        return super().begin(group, tensors)

    def give_up(self, group: Any) -> None:
        self.given_up.put(group)


@pytest.mark.parametrize("fails", [False, True])
def test_a_group_is_given_up_once_whether_it_is_abandoned_or_a_sum_cannot_begin(fails: bool) -> None:
    collectives = {name: Watched(fails) for name in "ab"}
    machines = Machines("a", "b", collectives=collectives)
    machines.form(1, "a", "b")
    for name in "ab":
        machines.give(name, 1, 1.0)
    for name in "ab":
        found = machines.next(name)
        assert isinstance(found, Broken if fails else Reduced), found
        assert not fails or "the peer is gone" in found.reason
    for name, end in machines.ends.items():
        if not fails:
            assert collectives[name].given_up.empty()
        end.ask(Abandon())
        assert collectives[name].given_up.get(timeout=LIMIT_S) is not None
        end.stop()
        assert collectives[name].given_up.empty()


def test_a_machine_may_stop_just_when_it_gives_its_group_up(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that gives it up has not started then, and nobody can wait for it."""
    machines.form(1, "a")
    end, start = machines.ends["a"], threading.Thread.start
    late: list[threading.Thread] = []

    def stop_first(thread: threading.Thread) -> None:
        if not late:
            late.append(thread)
            end.stop()
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", stop_first)
    end.ask(Abandon())
    assert late
