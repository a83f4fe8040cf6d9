"""Which pods of a RayCluster belong to which order, and how its groups are scaled for that. Pure.

The book lies in an annotation of the RayCluster, and is written in the same patch as the replicas: an order is booked
and its pods are asked for, or neither. Two rules keep KubeRay from deleting a pod that we did not name: a group's
`replicas` counts the pods that stay and those that an order awaits, never fewer; and `workersToDelete` names every pod
of the group that is going. Where a group has more pods than replicas, the named ones aside, KubeRay deletes some of
its own choice.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from bidbrain.kubernetes.objects import Group, Pod, PodPhase, RayCluster

ANNOTATION = "proteus/orders"


@dataclass(frozen=True)
class Booking:
    """An order: so many pods of a group, of which these are known. at_s: when it was booked (Unix time)."""

    token: str
    group: str
    count: int
    at_s: int
    pods: tuple[str, ...] = ()

    @property
    def awaited(self) -> int:
        """Pods that have not been made yet, or had been made for others."""
        return self.count - len(self.pods)


@dataclass(frozen=True)
class Book:
    """The orders of one job, oldest first. A job that finds another's book begins a new one."""

    job: str
    bookings: tuple[Booking, ...] = ()

    @staticmethod
    def of(cluster: RayCluster, job: str) -> Book:
        """The job's book in a cluster; empty where there is none, or another job's."""
        try:
            found = json.loads(cluster.annotations[ANNOTATION])
            if found["job"] != job:
                return Book(job)
            rows = [Booking(**{**row, "pods": tuple(row["pods"])}) for row in found["orders"]]
        except (KeyError, TypeError, ValueError):
            return Book(job)
        return Book(job, tuple(rows))

    def text(self) -> str:
        """As the annotation holds it."""
        return json.dumps({"job": self.job, "orders": [vars(booking) for booking in self.bookings]})

    def find(self, token: str) -> Booking | None:
        """The booking of an order."""
        return next((booking for booking in self.bookings if booking.token == token), None)

    @property
    def tokens(self) -> dict[str, str]:
        """The order's token by pod."""
        return {pod: booking.token for booking in self.bookings for pod in booking.pods}

    def booked(self, booking: Booking) -> Book:
        """With this booking, instead of one with its token."""
        others = tuple(each for each in self.bookings if each.token != booking.token)
        return replace(self, bookings=(*others, booking))

    def without(self, pods: Iterable[str]) -> Book:
        """Without these pods. A booking that has no pod left and awaits none goes."""
        gone = set(pods)
        bookings = []
        for each in self.bookings:
            left = tuple(pod for pod in each.pods if pod not in gone)
            count = each.count - (len(each.pods) - len(left))
            if count:
                bookings.append(replace(each, pods=left, count=count))
        return replace(self, bookings=tuple(bookings))


@dataclass(frozen=True)
class GroupScale:
    """A group as it should be. to_delete: the pods that go, named."""

    group: Group
    replicas: int
    to_delete: tuple[str, ...]

    @property
    def is_new(self) -> bool:
        """Whether the group is to change."""
        return (self.replicas, self.to_delete) != (self.group.replicas, self.group.to_delete)


def staying(group: Group, pods: Iterable[Pod]) -> list[Pod]:
    """The group's pods that are not being deleted, running ones first, then the oldest."""
    found = [
        pod for pod in pods if pod.group == group.name and pod.is_staying and pod.name not in group.to_delete
    ]
    return sorted(found, key=lambda pod: (pod.phase is not PodPhase.RUNNING, pod.created_s, pod.name))


def free(book: Book, group: Group, pods: Iterable[Pod]) -> list[Pod]:
    """Pods of the group that stay and belong to no order: of an earlier job, or made in place of lost ones."""
    return [pod for pod in staying(group, pods) if pod.name not in book.tokens]


def filled(book: Book, token: str, group: Group, pods: Iterable[Pod]) -> Book:
    """The book with free pods given to an order that awaits some."""
    booking = book.find(token)
    assert booking is not None
    given = tuple(pod.name for pod in free(book, group, pods)[: booking.awaited])
    return book.booked(replace(booking, pods=(*booking.pods, *given)))


def scale(book: Book, group: Group, pods: Mapping[str, Pod], leaving: Iterable[str] = ()) -> GroupScale:
    """The group for this book when the pods `leaving` are to go too."""
    going = set(leaving)
    stay = {pod.name for pod in staying(group, pods.values())} - going
    # A pod that is booked and gone is no reason to make another one: that is for the next order.
    awaited = sum(booking.awaited for booking in book.bookings if booking.group == group.name)
    own = {pod for booking in book.bookings if booking.group == group.name for pod in booking.pods}
    replicas = max(len(stay), len(stay & own) + awaited)
    named = tuple(
        sorted(pod.name for pod in pods.values() if pod.group == group.name and pod.name not in stay)
    )
    return GroupScale(group, min(replicas, max(group.most, len(stay))), named)


def patch(cluster: RayCluster, book: Book, scales: Iterable[GroupScale]) -> list[dict[str, Any]]:
    """The JSON patch that writes the book and these groups, which applies only if the object has not changed since;
    empty: no change."""
    operations: list[dict[str, Any]] = []
    for each in scales:
        if each.is_new:
            base = f"/spec/workerGroupSpecs/{each.group.index}"
            operations += [
                {"op": "test", "path": f"{base}/groupName", "value": each.group.name},
                {"op": "add", "path": f"{base}/replicas", "value": each.replicas},
                {
                    "op": "add",
                    "path": f"{base}/scaleStrategy",
                    "value": {"workersToDelete": list(each.to_delete)},
                },
            ]
    if cluster.annotations.get(ANNOTATION) != book.text():
        if not cluster.annotations:
            operations.append({"op": "add", "path": "/metadata/annotations", "value": {}})
        key = ANNOTATION.replace("~", "~0").replace("/", "~1")
        operations.append({"op": "add", "path": f"/metadata/annotations/{key}", "value": book.text()})
    if operations:
        operations.insert(0, {"op": "test", "path": "/metadata/resourceVersion", "value": cluster.version})
    return operations
