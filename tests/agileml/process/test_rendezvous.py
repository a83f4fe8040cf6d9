"""Parameters that come right to their place: what is read there is what was sent, whatever else comes meanwhile."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import zmq

from agileml.application import Application, Array, Settings, Table, Unit, Updates
from agileml.core.compute.cursor import Cursor
from agileml.core.compute.unit_computer import UnitComputer
from agileml.core.parameters.layout import Layout
from agileml.core.parameters.optimizer import optimizer
from agileml.core.protocol.commands import Compute
from agileml.core.protocol.messages import Params, Push
from agileml.core.sequential import run_sequential
from agileml.net import wire
from agileml.net.events import Event, MessageReceived
from agileml.net.inbox import Inbox
from agileml.net.tally import Tally
from agileml.process.rendezvous import RendezvousBuffers
from agileml.process.run_transport import run_codec
from agileml.runs.model_file import params_sha256
from tests.agileml.process.engine_rig import Rig

SELF = 7  # the incarnation of the process that receives


class Wide(Application):
    """One dense table beyond a frame's size per partition, and a small sparse one."""

    def with_settings(self, settings: Settings) -> "Wide":
        return Wide(settings)

    def tables(self) -> list[Table]:
        return [Table("wide", 3, 800_000), Table("few", 4, 2, sparse=True)]

    def load(self, slice_index: int) -> int:
        return slice_index

    def reads(self, unit: Unit, items: int) -> dict[str, Array]:
        return {"few": np.array([unit.slice % 4])}

    def process(self, unit: Unit, items: int, parameters: dict[str, Array]) -> Updates:
        change = parameters["wide"] * np.float32(0.5)
        change += np.float32(items + unit.clock)
        return Updates({"wide": change, "few": parameters["few"] + 1})


class Feed:
    """An inbox, and a socket that fills it frame by frame."""

    def __init__(self, context: zmq.Context) -> None:
        self.push, self.pull = context.socket(zmq.PUSH), context.socket(zmq.PULL)
        self.pull.bind("inproc://inbox")
        self.push.connect("inproc://inbox")
        self.inbox = Inbox(SELF, Tally())
        self.events: list[Event] = []

    def messages(self, number: int, array: np.ndarray, link: int = 9) -> list[list[object]]:
        origin = wire.Origin(b"peer", SELF, link)
        return list(wire.cut(origin, number, b"header", [array], 1000))

    def give(self, frames: list[list[object]]) -> None:
        for message in frames:
            self.push.send_multipart([bytes(frame) for frame in message])
        self.inbox.drain(self.pull, self.events, 100)

    @property
    def arrays(self) -> list[np.ndarray]:
        return [event.arrays[0] for event in self.events if isinstance(event, MessageReceived)]


@pytest.fixture
def feed() -> Iterator[Feed]:
    with zmq.Context() as context:
        made = Feed(context)
        yield made
        made.push.close(0)
        made.pull.close(0)


def bytes_of(seed: int, size: int = 40_000) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


def test_an_array_arrives_where_it_shall_lie(feed: Feed) -> None:
    place = np.zeros(40_000, np.uint8)
    feed.inbox.room = lambda header, number, size: (
        place if (header, number, size) == (b"header", 0, 40_000) else None
    )
    feed.give(feed.messages(1, bytes_of(1)))
    feed.give(feed.messages(2, bytes_of(2, 39_000)))
    assert (place == bytes_of(1)).all()
    assert feed.arrays[0].ctypes.data == place.ctypes.data
    assert (feed.arrays[1] == bytes_of(2, 39_000)).all()


@pytest.mark.parametrize("parts_before", [0, 1, 20, 39])
def test_after_keep_off_nothing_is_written_and_the_message_is_whole(feed: Feed, parts_before: int) -> None:
    place = np.zeros(40_000, np.uint8)
    feed.inbox.room = lambda header, number, size: place
    head, *parts = feed.messages(1, bytes_of(1))
    feed.give([head, *parts[:parts_before]])
    assert (place[: 1000 * parts_before] == bytes_of(1)[: 1000 * parts_before]).all()
    feed.inbox.keep_off()
    place[:] = 5
    feed.give(parts[parts_before:])
    assert (place == 5).all()
    assert (feed.arrays[0] == bytes_of(1)).all()


def test_a_message_that_was_torn_is_no_more_written(feed: Feed) -> None:
    place = np.zeros(40_000, np.uint8)
    feed.inbox.room = lambda header, number, size: place
    head, *parts = feed.messages(1, bytes_of(1))
    feed.give([head, *parts[:10]])
    feed.give(feed.messages(1, bytes_of(2), link=10))  # the sender came back on another connection
    feed.give(parts[10:])
    assert (place == bytes_of(2)).all() and len(feed.events) == 1


class BuffersRig:
    """Rendezvous buffers whose worker computes or not, as the test says."""

    def __init__(self) -> None:
        self.work = UnitComputer(Wide(Settings(slices=4)), Layout(tuple(Wide(Settings()).tables()), 2))
        self.codec = run_codec()
        self.is_at_work = False
        self.kept_off = 0
        self.buffers = RendezvousBuffers(self.work, self.codec, lambda clock: self.is_at_work, self.keep_off)

    def keep_off(self) -> None:
        self.kept_off += 1

    def room(
        self, epoch: int, clock: int, partition: int, table: int = 0, size: int | None = None
    ) -> Array | None:
        blocks = (np.zeros(1_200_000, np.float32), np.zeros((0, 2), np.float32))
        header, _ = self.codec.encode(Params(epoch, partition, clock, clock, blocks))
        return self.buffers.room(header, table, blocks[0].nbytes if size is None else size)

    def is_place(self, found: Array | None, partition: int) -> bool:
        place = self.work.room(0, partition, 0)
        return found is not None and place is not None and found.ctypes.data == place.ctypes.data


def test_each_partition_of_a_clock_has_its_place_once() -> None:
    rig = BuffersRig()
    assert rig.is_place(rig.room(1, 3, 0), 0)
    assert rig.is_place(rig.room(1, 3, 1), 1)
    assert rig.room(1, 3, 1) is None, "it may be written to already"
    assert rig.kept_off == 1
    assert rig.is_place(rig.room(1, 4, 1), 1)
    assert rig.kept_off == 2, "what comes late of the clock before must not be written any more"
    assert rig.room(1, 3, 0) is None
    assert rig.is_place(rig.room(2, 0, 1), 1), "another epoch, after a rollback"
    assert rig.room(1, 9, 0) is None


def test_what_has_no_place() -> None:
    rig = BuffersRig()
    assert rig.room(1, 0, 0, table=1) is None, "sparse: the rows that are asked for differ"
    assert rig.room(1, 0, 0, table=2) is None
    assert rig.room(1, 0, 7) is None
    assert rig.room(1, 0, 0, size=4) is None
    push, _ = rig.codec.encode(Push(1, 0, 0, 1, None))  # type: ignore[arg-type]
    assert rig.buffers.room(push, 0, 4_800_000) is None
    assert rig.buffers.room(b"nonsense", 0, 4_800_000) is None
    rig.is_at_work = True
    assert rig.room(1, 0, 0) is None, "the tables are being read"


def test_the_tables_are_closed_when_a_computation_starts() -> None:
    rig = BuffersRig()
    place = rig.room(1, 3, 0)
    assert place is not None
    before = rig.kept_off
    here = (place.view(np.float32), np.zeros((0, 2), np.float32))
    rig.buffers.close(Compute(0, 3, (1,), (here, here), Cursor(1)), 1)
    assert rig.kept_off == before + 1
    with pytest.raises(AssertionError):  # of a clock that the tables do not hold any more
        rig.buffers.close(Compute(0, 2, (1,), (here, here), Cursor(1)), 1)
    rig.buffers.close(Compute(0, 2, (1,), ((here[0].copy(), here[1]),) * 2, Cursor(1)), 1)


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_run_of_large_partitions_ends_as_the_sequential_one(tmp_path: Path, deterministic: bool) -> None:
    values = {
        "application": "mlr",
        "optimizer": {"kind": "momentum", "learning_rate": 0.01},
        "clocks": 10,
        "deterministic": deterministic,
        "machines": {"reliable": 1, "transient": 2, "max": 4},
        "partitions": 3,
        "plan": [{"at_clock": 4, "notice": 1, "warning_s": 30}],
    }
    rig = Rig(values, tmp_path, Wide(Settings()))
    ran = rig.finish()
    assert ran.tables is not None, ran.halted
    assert all(machine.rendezvous.lent > 0 for machine in rig.machines.values()), (
        "no array arrived in its place"
    )
    algorithm = optimizer("momentum", learning_rate=0.01)
    alone = run_sequential(Wide(Settings(slices=4)), optimizer=algorithm, clocks=10)
    if deterministic:
        assert ran.sha256 == params_sha256(alone)
    else:
        np.testing.assert_allclose(ran.tables["wide"], alone["wide"], rtol=1e-4)
