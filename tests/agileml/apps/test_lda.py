"""LDA: the sampler against the formula, counts that are those of the assignments, perplexity, formats of files."""

import gzip
import math
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agileml.application import Array, InputError, Settings
from agileml.apps.data import Draw
from agileml.apps.documents import Documents, from_counts
from agileml.apps.gibbs import dense, moves, sparse
from agileml.apps.gibbs.choice import faster_sampler
from agileml.apps.gibbs.dense import DenseSampler, _drawn
from agileml.apps.gibbs.draws import Prior
from agileml.apps.gibbs.running_sums import LANES, add_up
from agileml.apps.gibbs.sparse import SparseSampler
from agileml.apps.lda import Lda, perplexity, topic_shares
from agileml.config.job import from_values
from agileml.config.text import ConfigError
from agileml.core.parameters.optimizer import optimizer
from agileml.core.sequential import run_sequential
from agileml.process.spec import RunSpec
from tests.thorough import examples

SUM = optimizer("sgd", learning_rate=1.0)  # tables of steps have no use for one
CHOICE = "agileml.apps.gibbs.units.faster_sampler"
SAMPLERS = pytest.mark.parametrize("sampler", [SparseSampler, DenseSampler])
MADE = {"kind": "made", "documents": 300, "words": 200, "topics": 5, "length": 40, "test_fraction": 0.2}


@numba.njit
def added_up(row, coefficient, beta, sums):  # type: ignore[no-untyped-def]
    add_up(row, coefficient, beta, sums)


def always(sampler: Any) -> Any:
    """In place of `faster_sampler`."""
    return lambda some, rows, tokens: sampler


def train(app: Lda, clocks: int, **more: Any) -> dict[str, Array]:
    return run_sequential(app, optimizer=SUM, clocks=clocks, **more)


def counts_of(tokens: Array, z: Array, words: int, topics: int) -> Array:
    found = np.zeros((words, topics), np.float32)
    np.add.at(found, (tokens, z), 1)
    return found


@SAMPLERS
@settings(deadline=None, derandomize=True, max_examples=25)
@given(
    documents=st.integers(1, 6),
    words=st.integers(1, 9),
    topics=st.integers(2, 70),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_sweep_keeps_all_counts(sampler: Any, documents: int, words: int, topics: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 20, documents)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    tokens = rng.integers(0, words, starts[-1]).astype(np.int32)
    z = rng.integers(0, topics, starts[-1]).astype(np.int32)
    counts = counts_of(tokens, z, words, topics)
    counts.flags.writeable = False
    known, totals = sampler(counts, Prior(0.3, 0.1, words)), counts.sum(axis=0, dtype="f8")
    for state in range(3):
        loss = known.sweep(tokens, starts, z, totals, np.uint64(state))
        now = counts_of(tokens, z, words, topics)
        assert np.array_equal(totals, now.sum(axis=0))
        assert -1e-6 * len(tokens) < loss < len(tokens) * 20  # one word alone has the probability 1
        if sampler is SparseSampler:
            assert_descending(known, now)
    assert np.array_equal(counts + known.changes(), now)


@SAMPLERS
@settings(deadline=None, derandomize=True, max_examples=25)
@given(words=st.integers(1, 9), topics=st.integers(2, 70), seed=st.integers(0, 2**32 - 1))
def test_sweeps_apart_begin_with_the_same_counts(sampler: Any, words: int, topics: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, words, 40).astype(np.int32)
    before = rng.integers(0, topics, 40).astype(np.int32)
    counts, prior = counts_of(tokens, before, words, topics), Prior(0.3, 0.1, words)
    known, sums = sampler(counts, prior), counts.sum(axis=0, dtype="f8")
    changes = np.zeros_like(counts)
    for number, (first, stop) in enumerate([(0, 25), (25, 40), (0, 25), (10, 11)]):
        starts, some, state = np.array([0, stop - first]), tokens[first:stop], np.uint64(number)
        one, other = before[first:stop].copy(), before[first:stop].copy()
        sums_one, sums_other = sums.copy(), sums.copy()
        alone = sampler(counts, prior)
        loss = alone.sweep(some, starts, one, sums_one, state)
        assert known.sweep_apart(some, starts, other, sums_other, state) == loss
        assert np.array_equal(one, other) and np.array_equal(sums_one, sums_other)
        changes += alone.changes()
    assert np.array_equal(known.changes(), changes)


def assert_descending(known: SparseSampler, now: Array) -> None:
    for word, row in enumerate(now):
        entries = known.entries[known.begin[word] :][: known.length[word]]
        assert np.array_equal(entries, np.sort(entries)[::-1])
        found = {int(e) & 0xFFFFF: int(e) >> 20 for e in entries}
        assert found == {k: int(row[k]) for k in np.flatnonzero(row)}


@pytest.mark.parametrize("kind", [np.uint16, np.float32])
def test_sums_of_lanes_are_rounded_one_by_one(kind: type) -> None:
    rng = np.random.default_rng(0)
    for vectors in (0, 1, 2, 7):
        row: Array = rng.integers(0, 65_536, LANES * vectors).astype(kind)
        coefficient = rng.gamma(0.2, size=row.size).astype(np.float32)
        sums = np.empty(row.size, np.float32)
        added_up(row, coefficient, np.float32(0.1), sums)
        weights = coefficient * (row.astype(np.float32) + np.float32(0.1))
        expected = np.cumsum(weights.reshape(vectors, LANES), axis=0, dtype=np.float32)
        assert np.array_equal(sums.reshape(vectors, LANES), expected)


@pytest.mark.slow
def test_a_word_with_more_tokens_than_16_bits_hold_draws_the_same_topics() -> None:
    # The other tokens of word 1 are elsewhere: they make its counts wide, and change no weight of word 0.
    words, starts = np.zeros(30, np.int32), np.array([0, 10, 30])
    found = []
    for most in (60_000, 70_000):
        counts = np.array([[30, 0, 0], [0, 0, most]], np.float32)
        z, totals = np.zeros(30, np.int32), np.array([30.0, 0, 60_000])
        sampler = DenseSampler(counts, Prior(0.3, 0.1, 2))
        losses = [sampler.sweep(words, starts, z, totals, np.uint64(state)) for state in range(3)]
        found.append((losses, z.tolist()))
        assert np.array_equal((counts + sampler.changes())[0], np.bincount(z, minlength=3))
    assert found[0] == found[1]


@settings(deadline=None, derandomize=True, max_examples=examples(200))
@given(topics=st.integers(2, 100), u=st.floats(0, 1 - 2**-24, width=32), seed=st.integers(0, 2**32 - 1))
def test_the_topic_drawn_is_where_the_partial_sums_pass(topics: int, u: float, seed: int) -> None:
    lanes = -(-topics // LANES) * LANES
    weights, partial = np.zeros(lanes, np.float32), np.empty(lanes, np.float32)
    weights[:topics] = np.random.default_rng(seed).gamma(0.2, size=topics) + 1e-6
    added_up(np.zeros(lanes, np.uint16), weights, np.float32(1), partial)
    topic, total = _drawn(np.float32(u), partial, topics)
    assert total == pytest.approx(weights.sum(dtype="f8"), rel=1e-5)
    order = np.arange(lanes).reshape(-1, LANES).T.reshape(-1)  # lane by lane
    ends = np.concatenate([[0], np.cumsum(weights[order], dtype="f8")])
    place = int(np.flatnonzero(order == topic)[0])
    assert 0 <= topic < topics
    assert ends[place] - 1e-5 * total <= u * total <= ends[place + 1] + 1e-5 * total


@SAMPLERS
@pytest.mark.parametrize("alpha", [0.05, pytest.param(1.0, marks=pytest.mark.slow)])
def test_a_token_is_drawn_as_the_formula_says(sampler: Any, alpha: float) -> None:
    # A document of one token; the other counts are those of other documents.
    topics, words, beta, draws = 4, 3, 0.5, 40_000
    others = np.array([[5.0, 0, 2, 0], [0, 7, 0, 0], [1, 1, 1, 1]], np.float32)
    found = np.zeros(topics)
    for state in range(draws):
        z = np.array([2], np.int32)
        counts = others.copy()
        counts[0, 2] += 1
        known, totals = sampler(counts, Prior(alpha, beta, words)), counts.sum(axis=0, dtype="f8")
        token, starts = np.zeros(1, np.int32), np.array([0, 1])
        loss = known.sweep(token, starts, z, totals, np.uint64(state * 7919))
        found[z[0]] += 1
    mass = alpha * (others[0] + beta) / (others.sum(axis=0) + words * beta)
    assert loss == pytest.approx(-math.log(mass.sum() / (topics * alpha)))
    expected = mass / mass.sum()
    assert (np.abs(found / draws - expected) < 4 * np.sqrt(expected * (1 - expected) / draws)).all()


@SAMPLERS
def test_long_runs_visit_joint_states_as_often_as_the_posterior_says(sampler: Any) -> None:
    """Two documents, two words, two topics: all 32 assignments enumerated."""
    tokens, starts = np.array([0, 0, 1, 0, 1], np.int32), np.array([0, 3, 5])
    alpha, beta, topics, words = 0.4, 0.3, 2, 2

    def weight(z: Array) -> float:
        log = 0.0
        for d in range(2):
            n = np.bincount(z[starts[d] : starts[d + 1]], minlength=topics)
            log += sum(math.lgamma(k + alpha) for k in n)
        c = counts_of(tokens, z, words, topics)
        log += sum(math.lgamma(k + beta) for k in c.reshape(-1)) - sum(
            math.lgamma(k + words * beta) for k in c.sum(axis=0)
        )
        return math.exp(log)

    states = [np.array([i >> b & 1 for b in range(5)]) for i in range(32)]
    expected = np.array([weight(z) for z in states])
    expected /= expected.sum()
    z = np.zeros(5, np.int32)
    counts = counts_of(tokens, z, words, topics)
    known, totals = sampler(counts, Prior(alpha, beta, words)), counts.sum(axis=0, dtype="f8")
    found, sweeps = np.zeros(32), 60_000
    for state in range(sweeps):
        known.sweep(tokens, starts, z, totals, np.uint64(state * 104_729))
        found[int((z << np.arange(5)).sum())] += 1
    assert np.abs(found / sweeps - expected).max() < 0.01


def test_the_sampler_is_chosen_by_what_the_words_have() -> None:
    def chosen(topics: int, had: int, tokens: int) -> type:
        counts = np.zeros((100, topics), np.float32)
        counts[:, :had] = 3
        return faster_sampler(counts, len(counts), tokens)

    assert chosen(100, 5, 1_000_000) is DenseSampler
    assert chosen(1000, 20, 100_000) is SparseSampler
    assert chosen(1000, 20, 500) is DenseSampler, "to list the topics of all words would take longer"
    assert chosen(1000, 600, 100_000) is DenseSampler
    assert chosen(5000, 100, 3_000) is SparseSampler


@pytest.mark.parametrize("deterministic", [True, False])
@SAMPLERS
def test_tables_are_always_the_counts_of_the_assignments(
    deterministic: bool, sampler: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CHOICE, always(sampler))
    app = Lda(Settings(MADE, {"topics": 7}, 3, 8, 3))
    tables = train(app, 8, parts=2, deterministic=deterministic)
    tokens = app.data[0].tokens
    z = tables["assignments"].reshape(-1)
    assert not z[len(tokens) :].any()
    counts = counts_of(tokens, z[: len(tokens)].astype(int), 200, 7)
    assert np.array_equal(tables["topics"], counts)
    assert np.array_equal(tables["totals"][0], counts.sum(axis=0))
    assert (z[: len(tokens)] != app.initial(app.tables()[2]).reshape(-1)[: len(tokens)]).any()


@pytest.mark.parametrize("deterministic", [True, False])
def test_how_units_are_dealt_does_not_change_a_bit(deterministic: bool) -> None:
    # Also where the job may: a unit that is computed again, in other company, must draw the same topics.
    app = Lda(Settings(MADE, {"topics": 6}, slices=8, clocks_per_pass=2))
    one = train(app, 6, deterministic=deterministic)
    deal = [0b1111, 0b110000, 0b01000000, 0b10000000]
    many = train(app, 6, bundles=deal, partitions=3, deterministic=deterministic)
    for name in one:
        assert one[name].tobytes() == many[name].tobytes()


def test_units_computed_at_once_give_the_bits_of_each_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def in_turn(some: Array, rows: int, tokens: int) -> type:
        return SparseSampler if tokens % 2 else DenseSampler

    monkeypatch.setattr(CHOICE, in_turn)
    app = Lda(Settings({**MADE, "documents": 30}, {"topics": 20}, slices=16, clocks_per_pass=3))
    seen: list[list[float]] = [[], []]
    found = []
    for losses, sums_are_exact in zip(seen, (True, False), strict=True):
        monkeypatch.setattr(Lda, "sums_are_exact", sums_are_exact)
        found.append(train(app, 6, on_clock=lambda _, loss, examples, to=losses: to.append(loss)))
    assert seen[0] == seen[1]
    for name, table in found[0].items():
        assert table.tobytes() == found[1][name].tobytes()


def test_it_learns_what_the_documents_were_drawn_from() -> None:
    data = {**MADE, "documents": 500, "length": 60}
    app = Lda(Settings(data, {"topics": 5, "alpha": 0.1, "beta": 0.05}, 0, 4, 2))
    seen: list[float] = []
    tables = train(app, 60, on_clock=lambda _, loss, examples: seen.append(math.exp(loss / examples)))
    assert seen[-1] < 0.7 * seen[0]
    drawn_from = app.settings.rng(Draw.MADE).dirichlet(np.full(200, 0.05), 5).T  # the first that is drawn
    best = perplexity(np.maximum(drawn_from, 1e-12), app.data[1], 0.1)
    assert best * 0.9 < app.evaluate(tables)["test_perplexity"] < best * 1.1


def test_perplexity_of_known_shares() -> None:
    documents = from_counts("", np.array([0, 1]), np.array([0, 1]), np.array([4, 6]), 2)
    assert perplexity(np.array([[1.0, 1e-9], [1e-9, 1.0]]), documents, 1e-3) == pytest.approx(1, rel=1e-2)
    assert perplexity(np.full((2, 3), 0.5), documents, 0.1) == pytest.approx(2)
    single = from_counts("", np.array([0]), np.array([0]), np.array([1]), 2)
    assert math.isnan(perplexity(np.full((2, 3), 0.5), single, 0.1))
    counts = np.array([[3, 0], [1, 2]], np.float32)
    np.testing.assert_allclose(topic_shares(counts, 0.5), [[3.5 / 5, 0.5 / 3], [1.5 / 5, 2.5 / 3]])


def read(tmp_path: Path, content: bytes, **data: Any) -> Documents:
    file = tmp_path / "data.txt"
    file.write_bytes(content)
    train, test = Lda(Settings({"path": str(file), "test_fraction": 0, **data})).data
    assert test.count == 0
    return train


def triples(documents: Documents) -> set[tuple[int, ...]]:
    """Each document as its tokens; the order is drawn by the seed."""
    pieces = np.split(documents.tokens, documents.starts[1:-1])
    return {tuple(piece.tolist()) for piece in pieces}


def test_files_of_word_counts(tmp_path: Path) -> None:
    uci = b"3\n4\n4\n1 2 2\n1 4 1\n3 1 1\n3 4 3\n"
    expected = {(1, 1, 3), (0, 3, 3, 3)}  # document 2 has no words
    for content in (uci, gzip.compress(uci), b"2 1:2 3:1\n\n2 3:3 0:1\n", b"0\n2 1:2 3:1\n2 3:3 0:1\n"):
        found = read(tmp_path, content)
        assert (triples(found), found.word_count) == (expected, 4)


def test_text(tmp_path: Path) -> None:
    lines = b"The cat sat, the cat ran\na dog ran\nthe dog and the cat\nnothing else\n"
    found = read(tmp_path, lines, kind="text", most_share=1.0)
    assert found.words == ("cat", "dog", "ran")
    assert triples(found) == {(0, 0, 2), (1, 2), (0, 1)}


WRONG: dict[str, tuple[bytes, str]] = {
    "text": (b"hello world\n", "begins with 'hello world', expected UCI's docword format"),
    "head": (b"3\nwords\n4\n", "lines 1 to 3 are not three whole numbers"),
    "short": (b"3\n4\n4\n1 2 2\n", "has 1 lines `document word count`, expected 4 as line 3 says"),
    "columns": (b"1\n1\n1\n1 1\n", "line 4 is '1 1', expected a document from 1 to 1"),
    "broken": (
        b"3\n4\n3\n1 2 2\n\n2 x 1\n3 1 1\n",
        "line 6 is '2 x 1', expected a document from 1 to 3, a word",
    ),
    "half": (b"3\n4\n2\n1 2 2\n2 1\n", "line 5 is '2 1', expected a document"),
    "large": (
        b"3\n4\n2\n1 2 2\n2 1 99999999999999999999\n",
        "line 5 is '2 1 99999999999999999999', expected",
    ),
    "nothing": (b"3\n4\n0\n", "has no words"),
    "ldac word": (b"1 1:2\n1 4000000000:1\n", "line 2 is '1 4000000000:1', expected the number of entries"),
    "ldac count": (
        b"1 1:99999999999999999999\n",
        "line 1 is '1 1:99999999999999999999', expected the number",
    ),
    "word": (
        b"3\n4\n2\n1 2 2\n1 5 1\n",
        "line 5 is '1 5 1', expected a document from 1 to 3, a word from 1 to 4",
    ),
    "count": (b"3\n4\n1\n1 2 0\n", "line 4 is '1 2 0'"),
    "ldac": (b"1 1:2\n2 1:2\n", "line 2 is '2 1:2', expected the number of entries"),
    "damaged": (gzip.compress(b"3\n4\n4\n1 2 2\n")[:-9], "cannot be read"),
    "packed badly": (gzip.compress(b"3\n4\n4\n1 2 2\n")[:10] + b"\xff" * 20, "cannot be read"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_bag_of_words_is_one_sentence(name: str, tmp_path: Path) -> None:
    content, sentence = WRONG[name]
    with pytest.raises(InputError) as found:
        read(tmp_path, content)
    assert sentence in str(found.value)
    assert "\n" not in str(found.value)


def test_text_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    packed = gzip.compress(b"a dog ran\n" * 100)
    for content, sentence in (
        (b"the and of\n", "has no words to use"),
        (b"\xff\xfe\n", "is no UTF-8 text"),
        (packed[:-9], "cannot be read"),
        (packed[:10] + b"\xff" * 20, "cannot be read"),
    ):
        with pytest.raises(InputError, match=sentence):
            read(tmp_path, content, kind="text")


def test_a_consistency_whose_counts_may_leave_the_assignments_is_refused() -> None:
    values = {"application": "lda", "clocks": 4, "clocks_per_pass": 4, "slices": 8}
    for consistency in ({"kind": "ssp", "slack": 1}, {"kind": "asp"}):
        spec = RunSpec("stale", from_values({**values, "consistency": consistency}))
        with pytest.raises(ConfigError, match="expected bsp: lda replaces what it read before"):
            spec.job(spec.build())


@pytest.mark.parametrize("is_wide", [False, True])
def test_nothing_is_compiled_in_a_clock(is_wide: bool, tmp_path: Path) -> None:
    (tmp_path / "many.txt").write_text(
        "9\n3\n9\n" + "".join(f"{d} {d % 3 + 1} 30000\n" for d in range(1, 10))
    )
    wide = {"path": str(tmp_path / "many.txt"), "test_fraction": 0}
    app = Lda(Settings(wide if is_wide else MADE, {"topics": 7}, 3, 8))
    app.warm_up()
    kernels = [
        each for module in (dense, sparse, moves) for each in vars(module).values() if _is_kernel(each)
    ]
    compiled = [len(kernel.signatures) for kernel in kernels]
    for sampler in (DenseSampler, SparseSampler):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(CHOICE, always(sampler))
            train(app, 2)
    assert [len(kernel.signatures) for kernel in kernels] == compiled


def _is_kernel(found: Any) -> bool:
    return hasattr(found, "signatures")
