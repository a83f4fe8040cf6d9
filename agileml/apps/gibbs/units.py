"""The tokens of units, and sweeps over them from the tables of a clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from agileml.application import Array, Updates
from agileml.apps.gibbs.choice import ROWS_APART, Sampler, faster_sampler
from agileml.apps.gibbs.draws import Prior

TOKENS_A_ROW = 64


@dataclass(frozen=True)
class UnitTokens:
    """The tokens of a unit. `word_rows`: the words that it reads; `words` count within these. Its tokens are those at
    `offset` in the rows `token_rows` of the assignments; a first or last row may have tokens of other units too."""

    word_rows: Array
    words: Array
    starts: Array
    token_rows: Array
    offset: int


@dataclass(frozen=True)
class DocumentSlice:
    """The documents of a slice, whose first token is number `first` of the training set, and the pieces cut from
    them."""

    tokens: Array
    starts: Array
    first: int
    _pieces: dict[tuple[int, int], UnitTokens] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Documents."""
        return len(self.starts) - 1

    def piece(self, start: int, stop: int) -> UnitTokens:
        """Documents start .. stop - 1. Every pass asks for the same ones, so they are kept."""
        if (start, stop) not in self._pieces:
            begin, end = int(self.starts[start]), int(self.starts[stop])
            rows, words = np.unique(self.tokens[begin:end], return_inverse=True)
            first, last = self.first + begin, self.first + end
            token_rows = np.arange(first // TOKENS_A_ROW, -(-last // TOKENS_A_ROW))
            self._pieces[start, stop] = UnitTokens(
                rows,
                words.astype(np.int32),
                self.starts[start : stop + 1] - begin,
                token_rows if last > first else token_rows[:0],
                first % TOKENS_A_ROW,
            )
        return self._pieces[start, stop]


@dataclass(frozen=True)
class _Placed:
    """A unit's tokens in the rows of several units: `word_rows` and `words` are places in the rows of the counts, its
    tokens begin at `offset` of the assignments."""

    word_rows: Array
    words: Array
    starts: Array
    offset: int


class Sweeps:
    """Sweeps over some units, from tables that hold the rows of them all."""

    def __init__(self, parameters: Mapping[str, Array], rows: Mapping[str, Array], prior: Prior) -> None:
        """rows: of `topics` and `assignments` that the parameters hold."""
        self._counts, self._before = parameters["topics"], parameters["totals"][0]
        self._assigned = parameters["assignments"].reshape(-1)
        self._moved = np.zeros_like(self._assigned)
        self._rows, self._prior = rows, prior

    def updates(self, pieces: Sequence[UnitTokens], states: Sequence[np.uint64]) -> list[Updates]:
        """Of each unit, which sees its own changes and none of another. Those of all are in the first one's updates, as
        one sum."""
        samplers: dict[type[Sampler], Sampler] = {}
        change = np.zeros_like(self._before)
        losses = []
        for unit, state in zip(pieces, states, strict=True):
            piece = self._placed(unit)
            some = self._counts[piece.word_rows[::ROWS_APART]]
            kind = faster_sampler(some, len(piece.word_rows), len(piece.words))
            if kind not in samplers:
                samplers[kind] = kind(self._counts, self._prior)
            sampler, totals = samplers[kind], self._before.copy()
            sweep = sampler.sweep if len(pieces) == 1 else sampler.sweep_apart
            losses.append(self._swept(sweep, piece, totals, state))
            change += totals - self._before
        first = Updates(self._tables(list(samplers.values()), change), losses[0], len(pieces[0].words))
        others = zip(losses[1:], pieces[1:], strict=True)
        return [first, *(Updates({}, loss, len(piece.words)) for loss, piece in others)]

    def _placed(self, piece: UnitTokens) -> _Placed:
        if not len(piece.words):
            return _Placed(piece.word_rows, piece.words, piece.starts, piece.offset)
        word_rows = np.searchsorted(self._rows["topics"], piece.word_rows).astype(np.int32)
        first_row = int(np.searchsorted(self._rows["assignments"], piece.token_rows[0]))
        return _Placed(
            word_rows, word_rows[piece.words], piece.starts, piece.offset + first_row * TOKENS_A_ROW
        )

    def _swept(self, sweep: Callable[..., float], piece: _Placed, totals: Array, state: np.uint64) -> float:
        """Sweep over a unit; its loss."""
        if not len(piece.words):
            return 0.0
        at = slice(piece.offset, piece.offset + len(piece.words))
        z = self._assigned[at].astype(np.int32)
        loss = sweep(piece.words, piece.starts, z, totals, state)
        self._moved[at] = z - self._assigned[at]
        return loss

    def _tables(self, samplers: Sequence[Sampler], totals: Array) -> dict[str, Array]:
        changes = samplers[0].changes()
        for sampler in samplers[1:]:
            changes += sampler.changes()
        return {
            "topics": changes,
            "totals": totals[None],
            "assignments": self._moved.reshape(-1, TOKENS_A_ROW),
        }
