"""The worker of a machine with a pool: draws a bundle, pulls what it reads, computes, pushes, and draws the next.

The next bundle is drawn as soon as one is computed, and at most one that is computed waits for acknowledgements while
another is computed. After a change of view without a rollback the worker asks for what it was computing, or had
computed. It drops what another has drawn meanwhile, and what is cut otherwise now.
"""

from __future__ import annotations

from collections import deque

from agileml.core.node.piecewise import Piece, PiecewiseWorker
from agileml.core.protocol.commands import Begin, Computed
from agileml.core.protocol.exchange import NodeIo
from agileml.core.protocol.messages import Behind, Push
from agileml.core.protocol.pool_messages import BundleDrawn, DrawBundle
from agileml.core.protocol.view import View


class PoolWorker(PiecewiseWorker[Piece]):
    """Computes one bundle at a time."""

    def __init__(self, io: NodeIo) -> None:
        super().__init__(io)
        self._number = 0  # of the next draw
        self._begun: deque[Piece] = deque()  # of the view before, to be asked for

    @property
    def _wants_more(self) -> bool:
        view = self._view
        return view is not None and self.me in view.workers() and self._now is None and len(self._pushed) < 2

    def adopt(self, view: View) -> None:
        """Go on under a new view: first with what was begun, if no rollback lies between."""
        pieces = [*self._begun, *self._pushed.values(), *([self._now] if self._now is not None else [])]
        before = self._view
        is_same_timeline = before is not None and self.job.timeline_of(view) == self.job.timeline_of(before)
        self._begun.clear()
        for piece in pieces:
            if is_same_timeline and self.me in view.workers() and piece.order is not None:
                self._begun.append(piece)
            else:
                self._give_up(piece)
        self._view, self._mine = view, tuple(range(self.job.layout.partitions))
        self._number, self._now = 0, None
        self._pushed.clear()
        self.clock = view.base
        self._go_on()

    def _give_up(self, piece: Piece) -> None:
        if piece.order is not None and len(piece.contributions) < len(self._mine):
            piece.order.cursor.abort()

    def _go_on(self) -> None:
        """Draw the next bundle once there is nothing to compute."""
        if self._wants_more:
            wants = tuple(piece.key for piece in list(self._begun)[:1])
            self._send(self._server_of(0), DrawBundle(self._view_now.epoch, self._number, wants))

    def drawn(self, message: BundleDrawn) -> None:
        """Take a bundle."""
        if message.number != self._number or self._now is not None:
            return  # told again
        self._number += 1
        self.clock = message.clock
        key = message.clock, message.bundle
        begun = self._begun.popleft() if self._begun else None
        if begun is not None and begun.key == key:
            self._now = begun
            begun.acked.clear()
            for partition in begun.contributions:
                self._push_piece(begun, partition)
            self._end_if_computed()
            return
        if begun is not None:
            self._give_up(begun)
        self._take_up(Piece(Begin(self.job.timeline_of(self._view_now), message.clock, (message.bundle,))))

    def computed(self, event: Computed) -> None:
        """Push the contributions of the bundle."""
        key = event.clock, event.bundle
        now = next((each for each in (self._now, *self._begun) if each is not None and each.key == key), None)
        if now is None or now.order is None or event.timeline != now.begin.timeline:
            return
        for partition, contribution in event.contributions:
            now.contributions[partition] = contribution
            if now is self._now:
                self._push_piece(now, partition)
        if now is self._now:
            self._end_if_computed()

    def _end_if_computed(self) -> None:
        now = self._now
        if now is not None and len(now.contributions) == len(self._mine):
            self._pushed[now.key], self._now = now, None
            self._forget_if_counted(now)
            self._go_on()

    def _push_piece(self, piece: Piece, partition: int) -> None:
        clock, bundle = piece.key
        push = Push(self._view_now.epoch, partition, clock, bundle, piece.contributions[partition])
        self._send(self._server_of(partition), push)

    def behind(self, message: Behind) -> None:
        """Nothing: it answers a pull that was repeated, of a bundle that is counted."""
