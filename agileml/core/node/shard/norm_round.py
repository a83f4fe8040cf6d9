"""The norms that a partition must know before it takes its step: of a clock's gradient, of layers with LAMB.

A shard that has all contributions of a clock adds up the squares of its own part. Owners tell each other these sums; an
owner that has those of all partitions knows the norm, scales the gradient and applies the clock. With LAMB there is a
second round, of the directions that the scaled gradient leads to, in which a partition waits for those that have parts
of its layers. An owner that still lacks a sum when its timer is due sends its own once more and asks for the other's.
A shard keeps its sums while another partition may be waiting for them, and they move with it; after a rollback owners
compute them again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from agileml.core.node.shard.shard import Shard
from agileml.core.protocol.exchange import Exchange
from agileml.core.protocol.messages import Message, Squares
from agileml.core.protocol.view import View


class NormRound:
    """The sums that the shards of one server send and receive."""

    def __init__(self, me: str, exchange: Exchange, send: Callable[[str, Message], None]) -> None:
        self._me = me
        self._exchange = exchange
        self._send = send

    def send_new(self, view: View | None, epoch: int, partition: int, shard: Shard) -> Iterator[Squares]:
        """Send the other owners the sums that a shard has added up since the last call, and yield them for the shards
        of this machine."""
        for of, kept in shard.sums.items():
            for clock, sums in kept.take_new():
                message = Squares(epoch, partition, clock, of, sums)
                # An owner whose view is on its way tells everything when it has the view.
                for owner in self._others(view) if view is not None and view.epoch == epoch else ():
                    self._send(owner, message)
                yield message

    def send_all(self, view: View, shards: Mapping[int, Shard]) -> list[Squares]:
        """Send the other owners of a new view all sums that are kept here, and return them for the shards of this
        machine."""
        found = [
            Squares(view.epoch, partition, clock, of, sums)
            for partition, shard in shards.items()
            for of, kept in shard.sums.items()
            for clock, sums in kept.kept
        ]
        for owner in self._others(view):
            for message in found:
                self._send(owner, message)
        return found

    def answer(self, asker: str, message: Squares, shards: Mapping[int, Shard]) -> None:
        """Tell an owner that asks the sums of the clock that it waits for."""
        for partition, shard in shards.items() if message.asks else ():
            kept = shard.sums.get(message.of)
            if kept is not None and (sums := kept.own(message.clock)) is not None:
                self._send(asker, Squares(message.epoch, partition, message.clock, message.of, sums))

    def ask(self, view: View, shards: Mapping[int, Shard]) -> None:
        """Ask the owners of partitions whose sums a shard here still waits for."""
        for partition, shard in shards.items():
            if (found := shard.waits_for()) is None:
                continue
            of, clock, own, missing = found
            owners = {self._exchange.server_of(view, p, self._me) for p in missing} - {self._me}
            for owner in sorted(owners):
                self._send(owner, Squares(view.epoch, partition, clock, of, own, asks=True))

    def _others(self, view: View) -> list[str]:
        partitions = range(len(view.owner))
        return sorted({self._exchange.server_of(view, p, self._me) for p in partitions} - {self._me})
