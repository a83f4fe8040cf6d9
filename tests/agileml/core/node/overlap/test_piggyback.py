"""Questions that ride on pushes, and answers that stand for acknowledgements: nothing is asked or owed more or less."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agileml.application import Array, Table
from agileml.core.compute.unit_computer import UnitComputer
from agileml.core.node.node import Node
from agileml.core.node.overlap.piggyback import ACK_S, SMALL_BYTES, DelayedAcks, can_piggyback, piggybacked
from agileml.core.node.retry import Timers
from agileml.core.parameters.fold import Contribution
from agileml.core.parameters.layout import Dense, Layout
from agileml.core.protocol.commands import Begin, Begun, Compute, Computed, Leave, NodeCommand, Send
from agileml.core.protocol.job import Job
from agileml.core.protocol.messages import (
    CONTROLLER,
    Ack,
    Announce,
    Cut,
    Fetch,
    Message,
    Prepare,
    Pull,
    Push,
    Role,
    Source,
    SourceKind,
)
from agileml.core.protocol.view import INITIAL, CutId, View
from straggler.consistency import consistency
from straggler.coverage import span
from tests.model.toy import Toy, toy_job
from tests.thorough import examples

SMALL = Contribution((Dense(np.zeros(4, np.float32)),))
WHOLE, SOME = (None,), (np.array([1], np.int32),)

commands = st.lists(
    st.one_of(
        st.builds(
            lambda to, p, t, bundle: Send(to, Push(7, p, t, bundle, SMALL)),
            st.sampled_from("ab"),
            st.integers(0, 1),
            st.integers(3, 4),
            st.sampled_from([1, 2]),
        ),
        st.builds(
            lambda to, p, t, rows, epoch: Send(to, Pull(epoch, p, t, rows)),
            st.sampled_from("ab"),
            st.integers(0, 1),
            st.integers(3, 5),
            st.sampled_from([WHOLE, SOME]),
            st.sampled_from([7, 7, 6]),
        ),
        st.just(Leave()),
    ),
    max_size=8,
)


def asked(found: list[NodeCommand]) -> list[tuple[str, int, int, int, bool]]:
    """Every question: to whom, epoch, partition, clock, and whether whole blocks are wanted."""
    questions = []
    for command in found:
        message = command.message if isinstance(command, Send) else None
        if isinstance(message, Pull):
            questions.append(
                (command.to, message.epoch, message.partition, message.clock, message.rows is WHOLE)
            )
        elif isinstance(message, Push) and message.pulls_next:
            questions.append((command.to, message.epoch, message.partition, message.clock + 1, True))
    return sorted(set(questions))


@settings(deadline=None, derandomize=True, max_examples=examples(500))
@given(commands)
def test_the_same_is_asked_and_pushed_in_no_more_messages(before: list[NodeCommand]) -> None:
    after = piggybacked(before)
    assert asked(after) == asked(before)
    pushed = [(c.to, c.message.partition, c.message.clock, c.message.bundle, id(c.message.contribution))
              for c in before if isinstance(c, Send) and isinstance(c.message, Push)]  # fmt: skip
    assert pushed == [(c.to, c.message.partition, c.message.clock, c.message.bundle, id(c.message.contribution))
                      for c in after if isinstance(c, Send) and isinstance(c.message, Push)]  # fmt: skip
    assert [c for c in after if not isinstance(c, Send)] == [c for c in before if not isinstance(c, Send)]


def test_a_question_rides_on_the_last_push_of_the_clock_before() -> None:
    first, last = Push(7, 0, 3, 1, SMALL), Push(7, 0, 3, 2, SMALL)
    merged = piggybacked([Send("a", first), Send("a", last), Send("a", Pull(7, 0, 4, WHOLE))])
    assert merged == [Send("a", first), Send("a", Push(7, 0, 3, 2, SMALL, pulls_next=True))]


def test_questions_of_other_clocks_partitions_machines_or_rows_go_on_their_own() -> None:
    push = Send("a", Push(7, 0, 3, 1, SMALL))
    for other in (
        Send("b", Pull(7, 0, 4, WHOLE)),
        Send("a", Pull(7, 1, 4, WHOLE)),
        Send("a", Pull(7, 0, 3, WHOLE)),
        Send("a", Pull(8, 0, 4, WHOLE)),
        Send("a", Pull(7, 0, 4, SOME)),
    ):
        assert piggybacked([push, other]) == [push, other]
    assert piggybacked([Send("a", Pull(7, 0, 4, WHOLE)), push]) == [Send("a", Pull(7, 0, 4, WHOLE)), push]


def test_an_acknowledgement_is_sent_once_and_only_when_the_answer_takes_long() -> None:
    owed = DelayedAcks()
    owed.owe("w", Ack(7, 0, 3, 1), 10.0)
    owed.owe("w", Ack(7, 0, 3, 2), 10.01)
    owed.owe("v", Ack(7, 0, 3, 4), 10.0)
    assert list(owed.due(10.0 + ACK_S / 2)) == []
    owed.answered("v", 0, 4, 4)
    assert list(owed.due(10.0 + ACK_S)) == [("w", Ack(7, 0, 3, 1)), ("w", Ack(7, 0, 3, 2))]
    assert list(owed.due(99.0)) == []


def test_an_answer_about_an_older_clock_acknowledges_nothing() -> None:
    owed = DelayedAcks()
    owed.owe("w", Ack(7, 0, 3, 1), 10.0)
    owed.answered("w", 0, 3, 3)  # a repeated question for the clock itself
    owed.answered("w", 1, 4, 4)
    owed.answered("v", 0, 4, 4)
    assert owed.take("w", 0) == [Ack(7, 0, 3, 1)]
    owed.answered("w", 0, 4, 4)
    assert owed.take("w", 0) == []


class Initial:
    """Where a new run begins."""

    def __init__(self, toy: Toy, job: Job) -> None:
        self._job = job
        self._values = {table.name: toy.initial(table) for table in toy.tables()}

    def initial(self, partition: int) -> tuple[Array, ...]:
        return self._job.layout.blocks(self._values, partition)

    def saved(self, name: CutId, partition: int) -> Cut:
        raise AssertionError("no checkpoint here")

    def release(self) -> None:
        pass


def messages_of(clocks: int, mode: str, partitions: int = 1) -> Counter[str]:
    """What a server and the one worker on another machine say to each other, in a job of so many clocks."""
    toy, job = toy_job(mode, "momentum", 2, 1, partitions, clocks)
    stores = Initial(toy, job)
    nodes = {name: Node(name, job, Timers(status_s=1e9, retry_s=1e9), stores) for name in "ab"}
    work = UnitComputer(toy, job.layout, job.parts, deterministic=job.deterministic)
    work.load(range(2))
    everything = span(0, 2)
    owners = ("a",) * partitions
    view = View(1, 2, ("a", "b"), owners, owners, (("b", everything),), ("", ""), 0, (), 1, INITIAL)
    said: Counter[str] = Counter()
    todo: deque[tuple[str, NodeCommand]] = deque()

    def tell(to: str, message: Message, sender: str = CONTROLLER) -> None:
        todo.extend((to, command) for command in nodes[to].handle(sender, message, 1.0))

    for name in nodes:
        tell(name, Prepare(1, 0, INITIAL))
    for partition in range(partitions):
        tell("a", Fetch(1, partition, Role.OWNER, INITIAL, Source(SourceKind.INITIAL, "a")))
    for name in nodes:
        tell(name, Announce(view, clocks))
    while todo:
        name, command = todo.popleft()
        match command:
            case Send() if command.to != CONTROLLER:
                said[type(command.message).__name__] += 1
                tell(command.to, command.message, name)
            case Begin():
                rows = work.reads(command.clock, command.bundles).by_partition
                todo.extend((name, c) for c in nodes[name].happened(Begun(command, rows), 1.0))
            case Compute():
                inputs = work.assemble(work.reads(command.clock, command.bundles), command.parts)
                for bundle in command.bundles:
                    done = tuple(enumerate(work.compute(inputs, bundle)))
                    event = Computed(command.timeline, command.clock, bundle, done)
                    todo.extend((name, c) for c in nodes[name].happened(event, 1.0))
    assert dict(nodes["a"].server.versions(1)) == dict.fromkeys(range(partitions), clocks)
    return said


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_clock_of_a_small_dense_model_takes_two_messages_a_partition(partitions: int) -> None:
    """The first question comes alone, and the last push asks for nothing."""
    found = messages_of(10, "dense", partitions)
    assert found == {
        "Pull": partitions,
        "Push": 10 * partitions,
        "Params": 10 * partitions,
        "Ack": partitions,
    }


def test_a_clock_whose_reads_are_chosen_takes_four() -> None:
    assert messages_of(10, "bsp") == {"Pull": 10, "Push": 10, "Params": 10, "Ack": 10}


def test_it_is_for_small_jobs_in_bsp_whose_workers_read_everything() -> None:
    def job(mode: str, columns: int = 1) -> Job:
        made = toy_job(mode, "sgd", 2, 1, 64, 10)[1]
        if mode != "dense":
            return made
        return replace(made, layout=Layout((Table("p", 1, columns),), 64))

    assert can_piggyback(job("dense"))
    assert can_piggyback(job("dense", SMALL_BYTES // 4))
    assert not can_piggyback(job("dense", SMALL_BYTES // 4 + 1))  # however many parts it is cut into
    assert not can_piggyback(job("bsp"))
    assert not can_piggyback(job("allreduce"))
    assert not can_piggyback(replace(job("dense"), consistency=consistency("ssp", 2)))
    assert not can_piggyback(replace(job("dense"), consistency=consistency("asp")))
