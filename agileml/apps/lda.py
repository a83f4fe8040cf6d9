"""Latent Dirichlet allocation by collapsed Gibbs sampling, distributed (Newman et al. 2009, AD-LDA; thesis 2.2).

A clock samples a new topic for each token of some documents. Units start from the counts at the beginning of the
clock, see their own changes at once and those of others with the next clock. All state is in tables:
    topics       n_wk: how often word w has topic k             words x topics, read by row
    totals       n_k, the sums of its columns                   1 x topics
    assignments  the topic of each token of the training set    TOKENS_A_ROW tokens a row, read by row
Updates are differences of whole numbers, so sums are exact, and the counts are those of the assignments at every clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import product
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from agileml.application import Application, Array, InputError, Settings, Table, Unit, Update, Updates
from agileml.apps.data import Draw, share_of
from agileml.apps.documents import Documents, load_documents
from agileml.apps.gibbs.choice import Sampler
from agileml.apps.gibbs.dense import DenseSampler
from agileml.apps.gibbs.draws import Prior
from agileml.apps.gibbs.mixture import mixture_of
from agileml.apps.gibbs.sparse import MOST_TOPICS, SparseSampler
from agileml.apps.gibbs.units import TOKENS_A_ROW, DocumentSlice, Sweeps, UnitTokens
from agileml.config.section import Positive, Section, validate

FOLD_IN_ROUNDS = 50
MOST_EXACT = 1 << 24  # whole numbers up to here are exact in float32


class LdaConfig(Section):
    """Settings of the model: `alpha` and `beta` are the Dirichlet priors of a document's and of a topic's shares."""

    topics: Annotated[int, Field(ge=2, lt=MOST_TOPICS)] = 100
    alpha: Positive = 0.1
    beta: Positive = 0.01


class Lda(Application):
    """`lda`: a file of word counts, a text file, or documents drawn from the model."""

    sums_are_exact = True  # of whole numbers

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.model = validate(LdaConfig, settings.model, ("model",))

    @cached_property
    def data(self) -> tuple[Documents, Documents]:
        """Training and test documents. Raises InputError."""
        train, test = load_documents(self.settings)
        most = _most_of_a_word(train)
        if most >= MOST_EXACT:
            raise InputError(
                f"data: {train.name} has a word {most} times, expected less than {MOST_EXACT} times: counts are float32"
            )
        return train, test

    def tables(self) -> Sequence[Table]:
        train, topics = self.data[0], self.model.topics
        token_rows = -(-len(train.tokens) // TOKENS_A_ROW)
        return [
            Table("topics", train.word_count, topics, sparse=True, update=Update.STEP),
            Table("totals", 1, topics, "float64", update=Update.STEP),
            Table("assignments", token_rows, TOKENS_A_ROW, sparse=True, update=Update.STEP),
        ]

    def most_slack(self) -> int | None:
        # With slack, a unit that is computed again reads another version and draws other topics. Each partition keeps
        # what it counted first, so the counts would not be those of the assignments any more.
        return 0

    def initial(self, table: Table) -> Array:
        """A topic for each token at random, and the counts of these."""
        train, topics = self.data[0], self.model.topics
        z = self.settings.rng(Draw.INITIAL).integers(0, topics, len(train.tokens), dtype=np.int32)
        if table.name == "assignments":
            values = np.zeros(table.rows * TOKENS_A_ROW, np.float32)
            values[: len(z)] = z
            return values.reshape(table.rows, TOKENS_A_ROW)
        if table.name == "totals":
            return np.bincount(z, minlength=topics).astype(np.float64)[None]
        places = train.tokens.astype(np.int64) * topics + z
        counts = np.bincount(places, minlength=table.rows * topics)
        return counts.astype(np.float32).reshape(table.rows, topics)

    def warm_up(self) -> None:
        words, starts = np.zeros(2, np.int32), np.array([0, 2])
        tokens = {2, _most_of_a_word(self.data[0])}  # with many, the dense sampler has wider counts
        samplers: tuple[type[Sampler], ...] = (DenseSampler, SparseSampler)
        for sampler, most in product(samplers, tokens):
            z, counts, totals = np.zeros(2, np.int32), np.full((1, 2), most, np.float32), np.full(2, 2.0)
            fresh = sampler(counts, Prior(0.1, 0.1, 1))
            fresh.sweep_apart(words, starts, z, totals, np.uint64(0))

    def load(self, slice_index: int) -> DocumentSlice:
        train = self.data[0]
        mine = share_of(train.count, slice_index, self.settings)
        first, last = int(train.starts[mine.start]), int(train.starts[mine.stop])
        return DocumentSlice(
            train.tokens[first:last], train.starts[mine.start : mine.stop + 1] - first, first
        )

    def _piece(self, unit: Unit, items: DocumentSlice) -> UnitTokens:
        return items.piece(*unit.range_of(items.count, self.settings.clocks_per_pass))

    def reads(self, unit: Unit, items: DocumentSlice) -> Mapping[str, Array]:
        piece = self._piece(unit, items)
        return {"topics": piece.word_rows, "assignments": piece.token_rows}

    def process(self, unit: Unit, items: DocumentSlice, parameters: Mapping[str, Array]) -> Updates:
        return self.process_each([unit], [items], self.reads(unit, items), parameters)[0]

    def process_each(
        self,
        units: Sequence[Unit],
        items: Sequence[Any],
        rows: Mapping[str, Array],
        parameters: Mapping[str, Array],
    ) -> list[Updates]:
        # Apart, also where the order of adding does not count, for the reason of `most_slack`: units that are computed
        # again may come in other company.
        prior = Prior(self.model.alpha, self.model.beta, self.data[0].word_count)
        return Sweeps(parameters, rows, prior).updates(*self._pieces(units, items))

    def _pieces(
        self, units: Sequence[Unit], items: Sequence[DocumentSlice]
    ) -> tuple[list[UnitTokens], list[np.uint64]]:
        """The tokens of each unit, and the state of its random numbers."""
        pieces = [self._piece(unit, share) for unit, share in zip(units, items, strict=True)]
        streams = (self.settings.rng(Draw.SAMPLE, unit.clock, unit.slice, unit.part) for unit in units)
        return pieces, [stream.integers(2**64, dtype=np.uint64) for stream in streams]

    def evaluate(self, parameters: Mapping[str, Array]) -> dict[str, float]:
        test = self.data[1]
        if not test.count:
            return {}
        shares = topic_shares(parameters["topics"], self.model.beta)
        return {"test_perplexity": perplexity(shares, test, self.model.alpha)}

    def describe(self) -> dict[str, Any]:
        train, test = self.data
        return {
            "data": train.name,
            "words": train.word_count,
            "train_documents": train.count,
            "train_tokens": len(train.tokens),
            "test_documents": test.count,
            "test_tokens": len(test.tokens),
            "split_seed": self.settings.seed,
        }


def _most_of_a_word(documents: Documents) -> int:
    return int(np.bincount(documents.tokens).max())


def topic_shares(counts: Array, beta: float) -> Array:
    """phi_kw = (n_wk + beta) / (n_k + V beta), shape (words, topics), from the table `topics`."""
    counts = counts.astype(np.float64)
    shares: Array = (counts + beta) / (counts.sum(axis=0) + len(counts) * beta)
    return shares


def perplexity(shares: Array, documents: Documents, alpha: float) -> float:
    """exp(-mean log p(w)) over one half of each document's tokens, with its mixture fitted to the other half.

    (Document completion, Wallach et al. 2009, section 5.1.) The halves are the same on every call. nan if no document
    has two tokens.
    """
    rng = np.random.Generator(np.random.Philox(documents.count))
    mixture = np.empty(shares.shape[1])
    total, count = 0.0, 0
    for document in range(documents.count):
        tokens = rng.permutation(
            documents.tokens[documents.starts[document] : documents.starts[document + 1]]
        )
        seen, held = tokens[::2], tokens[1::2]
        if len(held):
            mixture_of(seen, shares, alpha, mixture, FOLD_IN_ROUNDS)
            total -= float(np.log(shares[held] @ mixture).sum())
            count += len(held)
    return math.exp(total / count) if count else math.nan
