"""A RayCluster of KubeRay as a market: an order raises a worker group's replicas, a release names the pods that go.

A pool is a worker group on spot nodes; the reliable machines are a group on nodes that stay. Prices are the config's.
A pod counts from when KubeRay made it, scheduled or not; one that does not run within `pending_s` (there is no node for
it, or no image) is given back, and its pool left alone for a while; so is one whose containers end again and again.
KubeRay makes a new pod in place of one that was lost: the next order of its group takes it, and if none comes within
`IDLE_S` it is given back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bidbrain.billing import Ending
from bidbrain.history.prices import Market
from bidbrain.kubernetes.api import Api, ConflictError, NotFoundError, path_of
from bidbrain.kubernetes.book import Book, Booking, filled, free, patch, scale, staying
from bidbrain.kubernetes.mirror import Mirror
from bidbrain.kubernetes.notices import TAINTS, TaintTimes, notices_of
from bidbrain.kubernetes.objects import (
    CLUSTER_LABEL,
    Group,
    Pod,
    RayCluster,
    cluster_of,
    node_of,
    workers_of,
)
from bidbrain.live.cloud import (
    CapacityError,
    CloudError,
    EndedInstance,
    Instance,
    InstanceNotice,
    NoticeSource,
    Order,
    QuotaError,
    Quotes,
    RefusedError,
    UnknownOutcomeError,
)
from bidbrain.policy.base import Offer
from bidbrain.setting import ON_DEMAND_ZONE, Setting

MADE_S = 5.0  # for KubeRay to make the pods that were asked for; they need not run
GIVE_UP_S = 60  # without pods for so long, the order is answered with those that there are
IDLE_S = 30  # a pod of no order waits so long for one
FULL_S = 600  # how long a pool is left alone in which a pod found no node
ATTEMPTS = 8  # at a patch, when others write too


@dataclass(frozen=True)
class PodPlace:
    """Where a job's pods are. groups: market -> worker group. prices: micro-dollars per pod hour.

    seconds: from a taint to the end of its node, by the taint's key.
    """

    namespace: str
    cluster: str
    groups: Mapping[Market, str]
    prices: Mapping[Market, int]
    pending_s: int = 600
    seconds: Mapping[str, int] = field(default_factory=lambda: dict(TAINTS))

    @property
    def path(self) -> str:
        """Of the RayCluster."""
        return path_of("apis", "ray.io", "v1", "namespaces", self.namespace, "rayclusters", self.cluster)

    @property
    def pods_path(self) -> str:
        """Of its pods."""
        selector = f"{CLUSTER_LABEL}={self.cluster}"
        return path_of("api", "v1", "namespaces", self.namespace, "pods", labelSelector=selector)

    def market(self, group: str) -> Market:
        """The market whose instances are the pods of a group."""
        return next(market for market, name in self.groups.items() if name == group)


NODES = path_of("api", "v1", "nodes")


class KubeRay:
    """The market of one job. `now_s`: Unix time. Raises CloudError when made, if it could not work."""

    together = False

    def __init__(
        self,
        api: Api,
        place: PodPlace,
        job: str,
        setting: Setting,
        now_s: Callable[[], int],
        others: NoticeSource | None = None,
    ) -> None:
        """others: notices of our pods from elsewhere."""
        self._others = others
        self._api, self._place, self._job = api, place, job
        self._setting, self._now_s = setting, now_s
        self._ours = frozenset(place.groups.values())
        cluster = self._look()
        _check(cluster, place)
        self._book = Book.of(cluster, job)
        self._nodes = Mirror(api, NODES, lambda items: {n.name: n for n in map(node_of, items)})
        self._pods = Mirror(api, place.pods_path, self._workers)
        self._times = TaintTimes()
        self._full_until_s: dict[Market, int] = {}
        self._idle_since_s: dict[str, int] = {}
        self._given_back: set[str] = set()
        self._leaving: frozenset[str] = frozenset()  # whom KubeRay is to delete, by the newest patch
        self._ended: dict[str, EndedInstance] = {}

    def close(self) -> None:
        """End the watches."""
        self._nodes.close()
        self._pods.close()

    def _workers(self, items: Iterable[Mapping[str, Any]]) -> dict[str, Pod]:
        return {name: pod for name, pod in workers_of(items).items() if pod.group in self._ours}

    def _look(self) -> RayCluster:
        try:
            return cluster_of(self._api.get(self._place.path))
        except NotFoundError:
            raise RefusedError(
                f"market.cluster: found no RayCluster {self._place.cluster} in namespace {self._place.namespace}, "
                "expected one, such as `proteus k8s template` prints"
            ) from None

    def _list_pods(self) -> dict[str, Pod]:
        return self._workers(self._api.get(self._place.pods_path)["items"])

    # -- prices ---------------------------------------------------------------------------------------------------

    def quotes(self, now_s: int) -> Quotes:
        offers = tuple(
            Offer(each.market, price, price, each.on_demand, each.vcpus, float(each.vcpus))
            for each in self._setting.listings
            for price in (self.price(each.market, now_s),)
        )
        full = frozenset(market for market, until_s in self._full_until_s.items() if until_s > now_s)
        return Quotes(offers, " ".join(sorted(map(str, full))), full)

    def price(self, market: Market, at_s: int) -> int:
        return self._place.prices[market]

    # -- buying -----------------------------------------------------------------------------------------------------

    def acquire(self, order: Order) -> tuple[Instance, ...]:
        now_s = self._now_s()
        name = self._place.groups.get(order.market)
        if name is None:
            raise RefusedError(f"{order.market}: no worker group stands for it")
        booking = self._book_order(order, name, now_s)
        until_s = time.monotonic() + MADE_S
        while booking.awaited and self._wait_for(name, booking.awaited, until_s):
            booking = self._fill(booking)
        if booking.awaited:
            if now_s - booking.at_s < GIVE_UP_S:
                raise UnknownOutcomeError(
                    f"{order.market}: KubeRay has made {len(booking.pods)} of {booking.count} pods so far"
                )
            booking = self._cut(booking)
        pods = self._list_pods()
        made = tuple(
            Instance(pod, order.token, order.market, pods[pod].created_s if pod in pods else now_s)
            for pod in booking.pods
        )
        if not made:
            self._full_until_s[order.market] = now_s + FULL_S
            why = self._look().problem or "is its operator there?"
            raise CapacityError(f"{order.market}: KubeRay has made no pod in {GIVE_UP_S} s: {why}")
        return made

    def _book_order(self, order: Order, name: str, now_s: int) -> Booking:
        """The order's booking, made now if it is new, with the pods that there are for it."""

        def change(cluster: RayCluster, book: Book, pods: dict[str, Pod]) -> Book:
            group = _group(cluster, name)
            if book.find(order.token) is None:
                if self._full_until_s.get(order.market, now_s) > now_s:
                    raise CapacityError(f"{order.market}: a pod did not come to run a short while ago")
                taken = len(staying(group, pods.values())) - len(free(book, group, pods.values()))
                room = group.most - taken - sum(b.awaited for b in book.bookings if b.group == name)
                if room <= 0:
                    raise QuotaError(f"{order.market}: maxReplicas of the worker group is {group.most}")
                book = book.booked(Booking(order.token, name, min(order.instances, room), now_s))
            return filled(book, order.token, group, pods.values())

        booking = self._write(change).find(order.token)
        assert booking is not None
        return booking

    def _wait_for(self, group: str, count: int, until_s: float) -> bool:
        """Wait until so many pods of a group seem to be free; the server's own list may differ, and says so."""
        left_s = until_s - time.monotonic()
        return left_s > 0 and self._pods.wait_for(lambda pods: len(self._idle(group, pods)) >= count, left_s)

    def _idle(self, group: str, pods: Mapping[str, Pod]) -> list[str]:
        """The pods of a group that an order could have."""
        taken = self._book.tokens.keys() | self._given_back | self._leaving | self._ended.keys()
        return [
            pod.name
            for pod in pods.values()
            if pod.group == group and pod.is_staying and pod.name not in taken
        ]

    def _fill(self, booking: Booking) -> Booking:
        """The booking with pods that have been made meanwhile."""
        book = self._write(
            lambda cluster, book, pods: filled(
                book, booking.token, _group(cluster, booking.group), pods.values()
            )
        )
        return book.find(booking.token) or booking

    def _cut(self, booking: Booking) -> Booking:
        """The booking without the pods that never came."""
        cut = Booking(booking.token, booking.group, len(booking.pods), booking.at_s, booking.pods)
        # Without pods it is no booking, and awaits none.
        self._write(lambda cluster, book, pods: book.booked(cut).without(()))
        return cut

    def _write(
        self, change: Callable[[RayCluster, Book, dict[str, Pod]], Book], leaving: Iterable[str] = ()
    ) -> Book:
        """Write the book that `change` makes, and the groups as they then should be. Raises CloudError."""
        problem: CloudError | None = None
        for _ in range(ATTEMPTS):
            cluster, pods = self._look(), self._list_pods()
            known = Book.of(cluster, self._job).without(self._ended)  # which the journal knows to be over
            # A pod whose node is gone may be listed as running for a minute: it is for no order.
            alive = {name: pod for name, pod in pods.items() if name not in self._ended}
            book = change(cluster, known, alive)
            groups = [group for group in cluster.groups if group.name in self._ours]
            # The last one leaves nothing behind.
            going = {*leaving, *self._ended} if book.bookings else set(pods)
            scales = [scale(book, group, pods, going) for group in groups]
            operations = patch(cluster, book, scales)
            try:
                if operations:
                    self._api.patch(self._place.path, operations)
            except ConflictError as error:
                problem = error
                continue
            self._book = book
            self._leaving = frozenset(name for each in scales for name in each.to_delete)
            return book
        assert problem is not None
        raise UnknownOutcomeError(str(problem))

    def release(self, instance_ids: tuple[str, ...]) -> None:
        gone = set(instance_ids)
        self._given_back |= gone
        self._write(lambda cluster, book, pods: book.without(gone), gone)

    # -- what there is ----------------------------------------------------------------------------------------------

    def held(self) -> tuple[Instance, ...]:
        """Pods of the job's orders."""
        book, pods = Book.of(self._look(), self._job), self._list_pods()
        return tuple(
            Instance(name, token, self._place.market(pods[name].group), pods[name].created_s)
            for name, token in book.tokens.items()
            if name in pods and not pods[name].is_over
        )

    def ended(self, instance_ids: tuple[str, ...]) -> tuple[EndedInstance, ...]:
        pods, now_s = self._pods.objects(), self._now_s()
        for name in instance_ids:
            if name not in self._ended and (ending := self._ending(name, pods, now_s)) is not None:
                self._ended[name] = EndedInstance(name, now_s, ending)
        return tuple(self._ended[name] for name in instance_ids if name in self._ended)

    def _ending(self, name: str, pods: Mapping[str, Pod], now_s: int) -> Ending | None:
        """How a pod ended; None: it has not."""
        pod = pods.get(name)
        lost = Ending.TERMINATED if name in self._given_back else Ending.EVICTED
        if pod is None:  # the watch may be behind
            return lost if self._is_gone(self._place.pods_path, name) else None
        if pod.is_over:
            return lost
        if pod.node and pod.node not in self._nodes.objects() and self._is_gone(NODES, pod.node):
            return lost
        if self._waits_too_long(pod, now_s) and self._waits_too_long(self._list_pods().get(name), now_s):
            self.release((name,))
            self._full_until_s[self._place.market(pod.group)] = now_s + FULL_S
            return Ending.TERMINATED
        return None

    def _is_gone(self, path: str, name: str) -> bool:
        try:
            self._api.get(f"{path.partition('?')[0]}/{name}")
        except NotFoundError:
            return True
        return False

    def _waits_too_long(self, pod: Pod | None, now_s: int) -> bool:
        """The server itself must say so as well: a pod that just came to run is not given back."""
        since_s = None if pod is None else pod.waits_since_s
        return since_s is not None and now_s - since_s >= self._place.pending_s

    def notices(self) -> tuple[InstanceNotice, ...]:
        """Also those from elsewhere, alone while Kubernetes does not answer."""
        more = () if self._others is None else self._others.notices()
        others = tuple(notice for notice in more if notice.instance_id in self._book.tokens)
        try:
            return (*self._of_taints_and_deletions(), *others)
        except CloudError:
            if not others:  # a warning counts seconds, and a later call says what is wrong
                raise
            return others

    def _of_taints_and_deletions(self) -> tuple[InstanceNotice, ...]:
        pods, now_s = self._pods.objects(), self._now_s()
        self._give_back_idle(pods, now_s)
        self._times.look(self._nodes.objects().values(), now_s)
        own = (pods[name] for name in self._book.tokens if name in pods)
        return notices_of(own, self._times, self._place.seconds)

    def _give_back_idle(self, pods: Mapping[str, Pod], now_s: int) -> None:
        """Pods that KubeRay made and no order has wanted for a while go."""
        waiting = {booking.group for booking in self._book.bookings if booking.awaited}
        idle = [name for group in self._ours - waiting for name in self._idle(group, pods)]
        self._idle_since_s = {name: self._idle_since_s.get(name, now_s) for name in idle}
        if gone := tuple(name for name, at_s in self._idle_since_s.items() if now_s - at_s >= IDLE_S):
            self.release(gone)


def _group(cluster: RayCluster, name: str) -> Group:
    group = cluster.group(name)
    if group is None:
        raise RefusedError(f"RayCluster {cluster.name} has no worker group {name} any more")
    return group


def _unfit(group: Group) -> str:
    """Why pods of a group cannot be bought one by one; empty: they can."""
    if group.least:
        return (
            f"found minReplicas {group.least}, expected 0: KubeRay would make so many pods again and again, "
            "whatever a job gives back"
        )
    if group.hosts > 1:
        return f"found numOfHosts {group.hosts}, expected 1: a machine is one pod"
    return "found suspend on, expected off: KubeRay makes no pods for it" if group.is_suspended else ""


def _check(cluster: RayCluster, place: PodPlace) -> None:
    """Raise RefusedError for a RayCluster that this market cannot be."""
    known = ", ".join(group.name for group in cluster.groups) or "none"
    for market, name in place.groups.items():
        key = "market.reliable.group" if market.zone == ON_DEMAND_ZONE else "market.pools"
        group = cluster.group(name)
        if group is None:
            raise RefusedError(
                f"{key}: found {name}, expected a worker group of RayCluster {cluster.name} (there are {known})"
            )
        if wrong := _unfit(group):
            raise RefusedError(f"{key}: worker group {name} of RayCluster {cluster.name}: {wrong}")
    if cluster.autoscales:
        raise RefusedError(
            f"market.cluster: RayCluster {cluster.name} has enableInTreeAutoscaling on, expected off: "
            "Ray's autoscaler and this job would set the same replicas"
        )
