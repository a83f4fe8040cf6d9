"""A worker that computes one piece of work at a time: a minibatch of a superstep, or a bundle of a pool."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from agileml.core.compute.cursor import Cursor
from agileml.core.node.reading import Blocks, Rows
from agileml.core.node.time_spent import Doing
from agileml.core.node.worker import Worker
from agileml.core.parameters.fold import Contribution
from agileml.core.protocol.commands import Begin, Begun, Compute
from agileml.core.protocol.exchange import NodeIo
from agileml.core.protocol.messages import Ack, MinibatchParams, MinibatchPull, Params
from straggler.coverage import Units


@dataclass
class Piece:
    """A bundle of one clock, from its beginning until all partitions have counted it."""

    begin: Begin
    rows: Rows | None = None
    parts: dict[int, Blocks] = field(default_factory=dict)
    order: Compute | None = None
    contributions: dict[int, Contribution] = field(default_factory=dict)
    acked: set[int] = field(default_factory=set)

    @property
    def key(self) -> tuple[int, Units]:
        return self.begin.clock, self.begin.bundles[0]

    @property
    def unit(self) -> int:
        """The first unit, which names the bundle in its epoch and clock."""
        bundle = self.begin.bundles[0]
        return (bundle & -bundle).bit_length() - 1


AnyPiece = TypeVar("AnyPiece", bound=Piece)


class PiecewiseWorker(Worker, Generic[AnyPiece]):
    """Learns what the present piece reads, pulls it, has it computed, and pushes it until all partitions counted it.

    Its clock is that of the piece. Subclasses choose the next piece and what a push carries.
    """

    def __init__(self, io: NodeIo) -> None:
        super().__init__(io)
        self._now: AnyPiece | None = None  # pulled or computed
        self._pushed: dict[tuple[int, Units], AnyPiece] = {}  # computed, and not counted by all partitions

    @property
    def doing(self) -> Doing:
        if self._now is not None:
            return Doing.PULL if self._now.order is None else Doing.COMPUTE
        if self._pushed:
            return Doing.PUSH
        return Doing.PULL if self._wants_more else Doing.IDLE

    @property
    @abstractmethod
    def _wants_more(self) -> bool:
        """True while this worker asks for its next piece."""

    def _take_up(self, piece: AnyPiece) -> None:
        self._now = piece
        if self._reads_all is not None:
            self._read_rows(piece, self._reads_all)
        else:
            self._ask(piece.begin)

    def begun(self, event: Begun) -> None:
        """Pull the rows that the piece reads, which are known now."""
        now = self._now
        if now is not None and now.rows is None and now.begin == event.begin:
            self._read_rows(now, event.rows)

    def _read_rows(self, now: AnyPiece, rows: Rows) -> None:
        now.rows = rows
        self._pull_missing(now)

    def _pull_missing(self, now: AnyPiece) -> None:
        if now.rows is None or now.order is not None:
            return
        clock, _ = now.key
        for partition in self._mine:
            if partition not in now.parts:
                asked = self._view_now.epoch, partition, clock, now.rows[partition], now.unit
                self._send(self._server_of(partition), MinibatchPull(*asked))

    def params(self, message: Params) -> None:
        """Take the blocks of one partition. Computing starts when the last partition is here."""
        assert isinstance(message, MinibatchParams), message
        now = self._now
        if now is None or now.rows is None or now.order is not None:
            return
        if (now.begin.clock, now.unit) != (message.clock, message.unit) or message.partition in now.parts:
            return
        self._note_version(now, message)
        now.parts[message.partition] = message.blocks
        if len(now.parts) == len(self._mine):
            parts = tuple(now.parts[partition] for partition in self._mine)
            cursor = Cursor(now.begin.bundles[0].bit_count())
            now.order = Compute(now.begin.timeline, now.begin.clock, now.begin.bundles, parts, cursor)
            now.parts.clear()
            self._ask(now.order)

    def _note_version(self, now: AnyPiece, message: MinibatchParams) -> None:
        """Note which version of a partition the piece reads."""

    def ack(self, message: Ack) -> None:
        """Record that a partition has counted a piece."""
        key = message.clock, message.bundle
        now = self._now
        made = now if now is not None and now.key == key else self._pushed.get(key)
        if made is not None:
            made.acked.add(message.partition)
            if self._forget_if_counted(made) and self._now is None:
                self._go_on()

    def _forget_if_counted(self, piece: AnyPiece) -> bool:
        is_counted = piece.key in self._pushed and len(piece.acked) == len(self._mine)
        if is_counted:
            del self._pushed[piece.key]
        return is_counted

    def resend(self) -> None:
        """Send unanswered messages again."""
        now = self._now
        if self._view is None:
            return
        if now is None:
            self._go_on()
        else:
            self._pull_missing(now)
        for made in (*self._pushed.values(), *([now] if now is not None else [])):
            for partition in made.contributions:
                if partition not in made.acked:
                    self._push_piece(made, partition)

    @abstractmethod
    def _go_on(self) -> None:
        """Begin the next piece, or ask for it."""

    @abstractmethod
    def _push_piece(self, piece: AnyPiece, partition: int) -> None:
        """Push the contribution to a partition."""
