"""Cuts of changed rows against whole copies, through any order of clocks, cuts, commits, aborts and moves."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from agileml.core.node.backup import Backup
from agileml.core.node.shard.dirty_rows import RowLog, completed
from agileml.core.node.shard.shard import Shard, initial_cut
from agileml.core.parameters.fold import Contribution
from agileml.core.parameters.layout import Dense, Sparse
from agileml.core.protocol.messages import CONTROLLER, Cut, Part, PartRefused, Rows
from agileml.core.protocol.view import INITIAL, CutId
from tests.model.toy import toy_job
from tests.thorough import examples

EPOCH = 3
EXAMPLES = settings(deadline=None, derandomize=True, max_examples=examples(300))


def bits(cut: Cut) -> tuple[object, ...]:
    return cut.clock, [a.tobytes() for a in cut.blocks], [[a.tobytes() for a in slot] for slot in cut.state]


def as_it_comes(cut: Cut) -> Cut:
    """Over a network: arrays of the receiver's own, which cannot be written to."""

    def received(arrays: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
        copies = tuple(array.copy() for array in arrays)
        for copy in copies:
            copy.flags.writeable = False
        return copies

    return replace(cut, blocks=received(cut.blocks), state=tuple(map(received, cut.state)))


class Machines:
    """An owner and a backup of one partition, and whole copies of everything that was cut."""

    def __init__(self, algorithm: str) -> None:
        toy, self.job = toy_job("bsp", algorithm, 4, 1, 1, 1000)
        blocks = tuple(
            toy.initial(t) if t.sparse else toy.initial(t).reshape(-1) for t in self.job.layout.tables
        )
        self.shard = Shard(self.job, initial_cut(self.job, blocks))
        self.sent: list[object] = []
        self.backup = Backup(lambda to, message: self.sent.append(message) if to != CONTROLLER else None)
        self.committed, self.open = INITIAL, None
        self.whole: dict[CutId, tuple[object, ...]] = {}
        self.relative = 0

    def clock(self, rows: list[int]) -> None:
        """A clock that changes all that is dense and these rows."""
        at = np.array(sorted(set(rows)), np.int32)
        rng = np.random.default_rng(self.shard.version)
        blocks = []
        for table, block in zip(self.job.layout.tables, self.shard.blocks, strict=True):
            here = at[at < len(block)]
            shape = (len(here), block.shape[1]) if table.sparse else block.shape
            values = rng.normal(size=shape).astype(table.dtype)
            blocks.append(Sparse(here, values) if table.sparse else Dense(values))
        self.shard.push(self.shard.version, self.job.all_units, Contribution(tuple(blocks)), 0.0)

    def cut(self) -> None:
        """Take the next cut; the backup gets its part, whole where it has not what rows would be relative to."""
        if self.open is not None or self.shard.version == self.committed.clock:
            return
        name = self.open = CutId(self.shard.version, EPOCH)
        self.shard.take_cut(name)
        self.whole[name] = bits(self.shard.copy().cut)
        cut, only = self.shard.cuts.part(name)
        self.send(cut, only)
        if any(isinstance(message, PartRefused) for message in self.sent):
            self.send(self.shard.own_cut(name), None)
        self.relative += only is not None
        assert bits(self.backup.arrived(0)) == self.whole[name]

    def send(self, cut: Cut, only: Rows | None) -> None:
        self.sent.clear()
        self.backup.part("owner", Part(EPOCH, 0, self.committed, as_it_comes(cut), only))

    def commit(self) -> None:
        if self.open is not None:
            self.committed, self.open = self.open, None
            self.shard.cuts.forget(self.committed)
            self.backup.commit(self.committed)

    def abort(self) -> None:
        self.open = None
        self.shard.cuts.forget(self.committed)

    def move(self) -> None:
        """To another server: it may have the committed cut as a backup."""
        self.abort()
        copy = self.backup.completed(0, self.shard.copy(self.backup.name(0)))
        assert copy is not None
        before = bits(self.shard.copy().cut)
        self.shard = Shard.restored(self.job, copy)
        assert bits(self.shard.copy().cut) == before

    def lose_backup(self) -> None:
        """The backup is another machine, which has nothing yet."""
        self.abort()
        self.backup = Backup(self.backup.send, self.committed)

    def go_back(self) -> None:
        """A rollback to the committed cut, from the owner's own copy."""
        self.abort()
        if (cut := self.shard.own_cut(self.committed)) is not None:
            self.shard = Shard(self.job, cut)
            self.shard.begin_from(self.committed)

    def check(self) -> None:
        for name in self.shard.cuts.known:
            assert bits(self.shard.own_cut(name)) == self.whole[name]
        for _, name, cut in self.backup.parts():
            assert bits(cut) == self.whole[name]


STEPS = st.one_of(
    st.lists(st.integers(0, 12), max_size=6),
    st.just(list(range(13))),
    st.sampled_from(["cut", "cut", "commit", "commit", "abort", "move", "lose_backup", "go_back"]),
)


@EXAMPLES
@given(st.sampled_from(["sgd", "momentum", "adam"]), st.lists(STEPS, max_size=40))
def test_cuts_are_what_whole_copies_would_be(algorithm: str, steps: list[list[int] | str]) -> None:
    machines = Machines(algorithm)
    given_away = []
    for step in steps:
        if isinstance(step, str):
            getattr(machines, step)()
        else:
            machines.clock(step)
        machines.check()
        if (cut := machines.backup.cut(0)) is not None and len(given_away) < 3:
            given_away.append((cut, bits(cut)))  # a checkpoint in the making
    assert all(bits(cut) == then for cut, then in given_away)


def test_only_what_changed_since_the_committed_cut_is_sent() -> None:
    machines = Machines("adam")
    machines.clock([1, 2, 3])
    machines.cut()
    machines.commit()
    machines.clock([4, 7])
    machines.clock([7, 9])
    machines.cut()
    cut, only = machines.shard.cuts.part(machines.open)
    table = [t.name for t in machines.job.layout.tables].index("sparse")
    assert only.base == machines.committed
    assert only.by_table[table].tolist() == [4, 7, 9]
    assert [len(slot[table]) for slot in cut.state] == [3, 3]
    assert only.by_table[[t.name for t in machines.job.layout.tables].index("dense")] is None
    machines.abort()
    machines.clock([0])
    machines.cut()
    assert machines.shard.cuts.part(machines.open)[1].by_table[table].tolist() == [0, 4, 7, 9]
    machines.commit()
    machines.clock([5])
    assert machines.shard.copy(machines.committed).only.by_table[table].tolist() == [5]
    assert machines.shard.copy(None).only is None


def test_a_commit_writes_rows_into_the_committed_cut_once_it_is_nobody_elses() -> None:
    machines = Machines("sgd")
    table = [t.name for t in machines.job.layout.tables].index("sparse")
    places = []
    for clock in range(4):
        machines.clock([clock])
        machines.cut()
        machines.commit()
        places.append(machines.backup._cuts[0][1].blocks[table].ctypes.data)
    assert places[1] != places[0], "the first came in a message"
    assert places[1] == places[2] == places[3]
    before = bits(machines.backup.cut(0))
    kept = machines.backup.cut(0)
    machines.clock([2])
    machines.cut()
    machines.commit()
    assert bits(kept) == before


@EXAMPLES
@given(st.lists(st.lists(st.integers(0, 9), max_size=6), max_size=8), st.integers(0, 8))
def test_a_log_puts_back_what_was(writes: list[list[int]], split: int) -> None:
    """Two logs, one after the other, absorbed into one."""
    block = np.arange(20.0).reshape(10, 2)
    start = block.copy()
    logs = [RowLog(10), RowLog(10)]
    for number, rows in enumerate(writes):
        at = np.unique(np.array(rows, np.int32))
        logs[number >= split].note(at, (block[at],))
        block[at] += number + 1
    logs[0].absorb(logs[1])
    assert set(np.flatnonzero(logs[0].is_changed)) == {row for rows in writes for row in rows}
    logs[0].put_back([block])
    assert (block == start).all()


def test_rows_are_added_to_the_base_alone() -> None:
    base = Cut(1, (np.zeros((4, 2)), np.ones(3)), ())
    part = Cut(2, (np.full((1, 2), 5.0), np.full(3, 7.0)), ())
    whole = completed(part, Rows(INITIAL, (np.array([2], np.int32), None)), base)
    assert whole.blocks[0].tolist() == [[0, 0], [0, 0], [5, 5], [0, 0]]
    assert whole.blocks[1].tolist() == [7, 7, 7] and whole.clock == 2
    assert not base.blocks[0].any() and (base.blocks[1] == 1).all()
