"""K-means: centres and inertia of scikit-learn from the same start, clusters that lose their items, what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans as Peer
from sklearn.cluster import MiniBatchKMeans

from agileml.application import Array, InputError, Settings
from agileml.apps.kmeans import KMeans, centres_of, nearest, squared_lengths
from agileml.config.job import from_values
from agileml.config.text import ConfigError
from agileml.core.parameters.optimizer import optimizer
from agileml.core.sequential import run_sequential
from agileml.process.spec import RunSpec
from tests.thorough import examples

SUM = optimizer("sgd", learning_rate=1.0)  # tables of steps have no use for one
BLOBS = {"kind": "blobs", "examples": 1500, "features": 6, "classes": 5, "spread": 3.0, "test_fraction": 0.2}


def train(app: KMeans, clocks: int, **more: Any) -> dict[str, Array]:
    return run_sequential(app, optimizer=SUM, clocks=clocks, **more)


def start_of(app: KMeans) -> Array:
    return centres_of(app.initial(app.tables()[0])).astype(np.float32)


@settings(deadline=None, derandomize=True, max_examples=examples(40))
@given(st.integers(0, 600), st.integers(1, 40), st.integers(1, 9), st.integers(0, 2**32 - 1))
def test_each_item_goes_to_its_nearest_centre(n: int, clusters: int, features: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    items = rng.normal(size=(n, features)).astype(np.float32)
    centres = rng.normal(size=(clusters, features)).astype(np.float32)
    found = nearest(centres, items, squared_lengths(items))
    exact = ((items[:, None].astype("f8") - centres) ** 2).sum(axis=2)
    np.testing.assert_allclose(
        exact[np.arange(n), found.cluster], exact.min(axis=1, initial=np.inf), atol=1e-4
    )
    np.testing.assert_allclose(found.distances, exact.min(axis=1, initial=np.inf), atol=1e-4)
    assert np.array_equal(found.members, np.bincount(found.cluster, minlength=clusters))
    for cluster in range(clusters):
        mine = items[found.cluster == cluster].astype("f8")
        np.testing.assert_allclose(found.sums[cluster], mine.sum(axis=0), atol=1e-9)


def test_full_passes_end_where_scikit_learn_ends() -> None:
    app = KMeans(Settings(BLOBS, {"clusters": 10}, seed=2, slices=8))
    peer = Peer(10, init=start_of(app), n_init=1, max_iter=300, tol=0).fit(app.data.scaled(app.data.train))
    tables = train(app, peer.n_iter_)
    np.testing.assert_allclose(centres_of(tables["clusters"]), peer.cluster_centers_, atol=1e-4)
    metrics = app.evaluate(tables)
    assert metrics["train_inertia"] == pytest.approx(peer.inertia_, rel=1e-5)
    test = app.data.scaled(app.data.test)
    assert metrics["test_inertia"] == pytest.approx(-peer.score(test), rel=1e-4)
    assert metrics["empty_clusters"] == 0


def test_every_clock_is_a_pass_of_lloyds_algorithm() -> None:
    # Not digits: they have few values, and so ties, which are broken by how a processor rounds.
    app = KMeans(Settings(BLOBS, {"clusters": 10}, seed=2, slices=8))
    items, centres = app.data.scaled(app.data.train).astype("f8"), start_of(app).astype("f8")
    for clocks in range(1, 6):
        cluster = ((items[:, None] - centres) ** 2).sum(axis=2).argmin(axis=1)
        centres = np.stack([items[cluster == k].mean(axis=0) for k in range(10)])
        np.testing.assert_allclose(centres_of(train(app, clocks)["clusters"]), centres, atol=1e-6)


@pytest.mark.slow
def test_minibatches_are_as_good_as_scikit_learns() -> None:
    ours, theirs = [], []
    for seed in range(5):
        app = KMeans(
            Settings({"kind": "digits"}, {"mode": "minibatch", "clusters": 10}, seed, 8, clocks_per_pass=4)
        )
        ours.append(app.evaluate(train(app, 40))["train_inertia"])
        items = app.data.scaled(app.data.train)
        peer = MiniBatchKMeans(
            10, init=start_of(app), n_init=1, batch_size=len(items) // 4, max_iter=10, random_state=seed
        )
        theirs.append(peer.fit(items).inertia_)
    assert np.mean(ours) <= 1.01 * np.mean(theirs)


@pytest.mark.parametrize("mode", ["full", "minibatch"])
def test_the_loss_of_a_clock_is_the_inertia_of_its_items(mode: str) -> None:
    app = KMeans(Settings(BLOBS, {"mode": mode, "clusters": 5}, 1, 4, 1 if mode == "full" else 3))
    seen: list[tuple[float, int]] = []
    train(app, 3, on_clock=lambda _, loss, examples: seen.append((loss, examples)))
    assert sum(examples for _, examples in seen[: app.settings.clocks_per_pass]) == len(app.data.train)
    if mode == "full":
        before = app.evaluate(train(app, 2))["train_inertia"]
        assert seen[2][0] == pytest.approx(before, rel=1e-5)


@pytest.mark.parametrize("far", [1e4, 1e9])  # float32 has one of 64 numbers at the second
def test_large_offsets_do_not_drown_distances(far: float, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    items = np.repeat([[0.0, 0.0], [3.0, 0.0], [0.0, 3.0]], 100, axis=0) + rng.normal(0, 0.3, (300, 2))
    np.savez(tmp_path / "far.npz", x=items + far)
    app = KMeans(
        Settings({"kind": "npz", "path": str(tmp_path / "far.npz"), "test_fraction": 0}, {"clusters": 3})
    )
    centres = centres_of(train(app, 20)["clusters"]) - far
    np.testing.assert_allclose(sorted(centres.round().tolist()), [[0, 0], [0, 3], [3, 0]], atol=1e-6)


class FarStart(KMeans):
    """Two of the three centres lie where no item ever goes."""

    def initial(self, table: Any) -> Array:
        values = super().initial(table)
        values[1:, :-1] = 1e6
        return values


@pytest.mark.parametrize("slices", [1, 4])
def test_a_cluster_without_items_gets_one(slices: int) -> None:
    app = FarStart(Settings({**BLOBS, "classes": 3}, {"clusters": 3}, slices=slices))
    assert app.evaluate({"clusters": app.initial(app.tables()[0])})["empty_clusters"] == 2
    tables = train(app, 30)
    metrics = app.evaluate(tables)
    assert metrics["empty_clusters"] == 0
    peer = Peer(3, n_init=10, random_state=0).fit(app.data.scaled(app.data.train))
    assert metrics["train_inertia"] <= 1.6 * peer.inertia_
    assert round(tables["clusters"][:, -1].sum()) == len(app.data.train)


def test_how_units_are_dealt_does_not_change_a_bit() -> None:
    app = KMeans(Settings(BLOBS, {"clusters": 7}, slices=8))
    one = train(app, 12)["clusters"]
    many = train(app, 12, bundles=[0b1111, 0b110000, 0b01000000, 0b10000000], partitions=3)["clusters"]
    assert one.tobytes() == many.tobytes()


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "passes": ({"clocks_per_pass": 4}, "clocks_per_pass: found 4, expected 1 with model.mode full"),
    "too many clusters": (
        {"model": {"clusters": 2000}},
        r"has 1200 training items, expected at least one for",
    ),
    "no cluster": ({"model": {"clusters": 0}}, "model.clusters: found 0, expected at least 1"),
    "ssp": (
        {"consistency": {"kind": "ssp", "slack": 1}},
        "consistency: found ssp with slack 1, expected bsp: kmeans replaces what it read before",
    ),
    "asp": ({"consistency": {"kind": "asp"}}, "consistency: found asp, expected bsp"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_one_sentence(name: str) -> None:
    more, sentence = WRONG[name]
    values = {"application": "kmeans", "data": BLOBS, "clocks": 4, "clocks_per_pass": 1, **more}
    spec = RunSpec("wrong", from_values(values))
    with pytest.raises((ConfigError, InputError), match=sentence):
        spec.job(spec.build())


def test_minibatches_take_any_consistency() -> None:
    values = {"application": "kmeans", "model": {"mode": "minibatch"}, "clocks": 4}
    spec = RunSpec("any", from_values({**values, "consistency": {"kind": "asp"}}))
    assert spec.job(spec.build()).consistency.slack is None


def test_files_of_items(tmp_path: Path) -> None:
    def app(**arrays: Array) -> KMeans:
        np.savez(tmp_path / "items.npz", **arrays)  # type: ignore[arg-type]
        return KMeans(Settings({"path": str(tmp_path / "items.npz")}, {"clusters": 2}))

    pixels = np.arange(2 * 3 * 40, dtype=np.uint8).reshape(40, 2, 3)
    found = app(images=pixels, x_test=pixels[:4]).describe()
    assert (found["features"], found["train_items"], found["test_items"]) == (6, 40, 4)
    assert found["split"] == "the file's own"
    for arrays, sentence in (
        ({"weights": pixels}, "has the arrays weights, expected one of x_train, X_train"),
        ({"x": pixels[:, 0, 0]}, r"x has shape \(40,\) and dtype uint8, expected numbers of shape"),
        ({"x": np.full((9, 2), np.nan)}, "item 0 of x has NaN or infinity"),
        ({"x": pixels, "x_test": pixels[:, :1]}, "x has 6 features an item and x_test 3, expected the same"),
    ):
        with pytest.raises(InputError, match=sentence):
            app(**arrays).tables()
