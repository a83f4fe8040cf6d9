"""K-means: Lloyd's algorithm over all items in every clock, or by minibatches (Sculley 2010, algorithm 1).

The table `clusters` has for each cluster the sum of its members, and their number in the last column; a centre is
sum / number. Sums are float64, so a centre has the precision of the items.
`full`: the sums of a clock replace those before it. An update can only be added, so one unit of the clock also takes
away the table that all units read.
`minibatch`: the members of all minibatches so far add up, as in scikit-learn's MiniBatchKMeans.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal

import numba
import numpy as np
from pydantic import Field

from agileml.application import Application, Array, InputError, Settings, Table, Unit, Update, Updates
from agileml.apps.data import Draw, share_of
from agileml.apps.few_classes import logits_of
from agileml.apps.points import Points, load_points
from agileml.config.section import Section, validate
from agileml.config.text import ConfigError
from agileml.core.compute.threads import single_threaded
from agileml.core.parameters.layout import read_only

ITEMS_AT_ONCE = 256  # their features stay in the cache between the distances and the sums

# A centre counts as so many members of itself, so that a cluster without items has one. In float64 exact beside 2^32
# items. Where Lloyd's algorithm stops does not depend on it: c = (S + w c) / (N + w) if c = S / N.
OWN_WEIGHT = 2.0**-20


class KMeansConfig(Section):
    """Settings of the model. `initial_items`: how many items k-means++ chooses the first centres from."""

    mode: Literal["full", "minibatch"] = "full"
    clusters: Annotated[int, Field(ge=1)] = 10
    initial_items: Annotated[int, Field(ge=1)] = 10_000


@dataclass(frozen=True)
class PointSlice:
    """The items of a slice in a fixed shuffled order: float32 features less the mean of all items, and their squared
    lengths."""

    features: Array
    squares: Array


class KMeans(Application):
    """`kmeans`: digits, the items of an .npz file or made blobs."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.model = validate(KMeansConfig, settings.model, ("model",))
        if self.model.mode == "full" and settings.clocks_per_pass != 1:
            raise ConfigError(
                f"found {settings.clocks_per_pass}, expected 1 with model.mode full: a clock is a pass over all items",
                key=("clocks_per_pass",),
            )

    @cached_property
    def data(self) -> Points:
        """All items and their split. Raises InputError."""
        found = load_points(self.settings)
        if len(found.train) < self.model.clusters:
            raise InputError(
                f"data: {found.name} has {len(found.train)} training items, expected at least one for each of the "
                f"{self.model.clusters} clusters (model.clusters)"
            )
        return found

    @cached_property
    def mean(self) -> Array:
        """The mean of the training items, float64. Distances are taken from it, or large offsets would drown them."""
        return self.data.unrounded(self.data.train).mean(axis=0, dtype=np.float64)

    def tables(self) -> Sequence[Table]:
        columns = self.data.train.shape[1] + 1
        return [Table("clusters", self.model.clusters, columns, "float64", update=Update.STEP)]

    def most_slack(self) -> int | None:
        return 0 if self.model.mode == "full" else None

    def initial(self, table: Table) -> Array:
        """One member for each cluster: the items that k-means++ chooses (Arthur and Vassilvitskii 2007)."""
        from sklearn.cluster import kmeans_plusplus  # takes a second, which only the first machines spend

        data, rng = self.data, self.settings.rng(Draw.INITIAL)
        most = max(self.model.initial_items, self.model.clusters)
        some = rng.permutation(len(data.train))[:most]
        seed = int(rng.integers(2**31))
        items = data.unrounded(data.train[some])
        near = items if items.dtype == np.float32 else items - self.mean  # scikit-learn takes them from zero
        with single_threaded():
            _, chosen = kmeans_plusplus(near, table.rows, random_state=seed)
        return np.concatenate([items[chosen], np.ones((table.rows, 1))], axis=1, dtype=np.float64)

    def load(self, slice_index: int) -> PointSlice:
        data = self.data
        order = self.settings.rng(Draw.SHUFFLE).permutation(len(data.train))
        mine = order[share_of(len(order), slice_index, self.settings)]
        features = (data.unrounded(data.train[mine]) - self.mean).astype(np.float32)
        return PointSlice(features, squared_lengths(features))

    def warm_up(self) -> None:
        nothing = np.zeros((2, 2), np.float32)
        nearest(nothing, nothing, squared_lengths(nothing))

    def process(self, unit: Unit, items: PointSlice, parameters: Mapping[str, Array]) -> Updates:
        start, stop = unit.range_of(len(items.squares), self.settings.clocks_per_pass)
        x, squares = items.features[start:stop], items.squares[start:stop]
        clusters = parameters["clusters"]
        centres = centres_of(clusters)
        found = nearest((centres - self.mean).astype(np.float32), x, squares)
        if self.model.mode == "full" and (empty := self._empty_ones(unit, clusters)):
            found.move_to_empty(empty, x)
        update = np.empty_like(clusters)
        update[:, :-1] = found.sums + found.members[:, None] * self.mean
        update[:, -1] = found.members
        if self.model.mode == "full" and unit.slice == 0 and unit.part == 0:
            update -= clusters
            update[:, :-1] += OWN_WEIGHT * centres
            update[:, -1] += OWN_WEIGHT
        return Updates({"clusters": update}, float(found.distances.sum(dtype=np.float64)), len(x))

    def _empty_ones(self, unit: Unit, clusters: Array) -> list[int]:
        """The clusters without items to which this unit gives one of its own: each clock another unit."""
        units = self.settings.slices * unit.parts
        own = unit.slice * unit.parts + unit.part
        empty = np.flatnonzero(clusters[:, -1] <= OWN_WEIGHT)
        return [int(cluster) for cluster in empty if (unit.clock + cluster) % units == own]

    def evaluate(self, parameters: Mapping[str, Array]) -> dict[str, float]:
        data, clusters = self.data, parameters["clusters"]
        centres = (centres_of(clusters) - self.mean).astype(np.float32)
        metrics = {}
        for name, items in (("train", data.train), ("test", data.test)):
            if len(items):
                features = (data.unrounded(items) - self.mean).astype(np.float32)
                found = nearest(centres, features, squared_lengths(features))
                metrics[f"{name}_inertia"] = float(found.distances.sum(dtype=np.float64))
                if name == "train":
                    metrics["empty_clusters"] = float((found.members == 0).sum())
        return metrics

    def describe(self) -> dict[str, Any]:
        data = self.data
        return {
            "data": data.name,
            "features": data.train.shape[1],
            "train_items": len(data.train),
            "test_items": len(data.test),
            "split": data.split,
        }


def centres_of(clusters: Array) -> Array:
    """The centres (clusters, features) of the table `clusters`, float64."""
    return clusters[:, :-1] / clusters[:, -1:]


@dataclass
class Members:
    """Items dealt to the nearest of some centres: `sums` (clusters, features) and `members` (clusters,), float64, of
    each cluster; for each item its cluster and its squared distance from the centre, float32."""

    sums: Array
    members: Array
    cluster: Array
    distances: Array

    def move_to_empty(self, empty: Sequence[int], items: Array) -> None:
        """Give each of these clusters one item: those farthest from their centres, as scikit-learn does."""
        farthest = np.argsort(-self.distances, kind="stable")
        for cluster, item in zip(empty, farthest, strict=False):
            for other, sign in ((self.cluster[item], -1), (cluster, 1)):
                self.sums[other] += sign * items[item].astype(np.float64)
                self.members[other] += sign


def nearest(centres: Array, items: Array, squares: Array) -> Members:
    """Deal items (n, features), float32, of squared lengths `squares` to the nearest centres; the first of equals.

    |x - c|^2 = |x|^2 - 2 (x . c - |c|^2 / 2), so the nearest centre has the largest x . c - |c|^2 / 2.
    """
    sums = np.zeros(centres.shape, np.float64)
    members = np.zeros(len(centres), np.float64)
    cluster = np.empty(len(items), np.int32)
    distances = np.empty(len(items), np.float32)
    halves = squared_lengths(centres) / np.float32(2)
    for start in range(0, len(items), ITEMS_AT_ONCE):
        at = slice(start, start + ITEMS_AT_ONCE)
        products = logits_of(centres, items[at])
        _deal(
            products,
            halves,
            read_only(items[at]),
            read_only(squares[at]),
            cluster[at],
            distances[at],
            sums,
            members,
        )
    return Members(sums, members, cluster, distances)


def squared_lengths(items: Array) -> Array:
    """|x|^2 of each item (n, features), float32, taken in float64."""
    return np.square(items, dtype=np.float64).sum(axis=1).astype(np.float32)


@numba.njit(cache=True, nogil=True)
def _deal(products, halves, items, squares, cluster, distances, sums, members):  # type: ignore[no-untyped-def]
    """`products` (clusters, n): x . c. Writes `cluster` and `distances`, adds to `sums` and `members`."""
    clusters, n = products.shape
    best = products[0] - halves[0]
    cluster[:] = 0
    for k in range(1, clusters):  # through memory in order, in vector lanes
        half, row = halves[k], products[k]
        for i in range(n):
            value = row[i] - half
            better = value > best[i]
            best[i] = value if better else best[i]
            cluster[i] = k if better else cluster[i]
    for i in range(n):
        k = cluster[i]
        distances[i] = max(np.float32(0), squares[i] - np.float32(2) * best[i])
        members[k] += 1
        into, item = sums[k], items[i]
        for f in range(item.size):
            into[f] += item[f]
