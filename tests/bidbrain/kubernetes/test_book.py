"""The book and the groups: KubeRay, whatever happens, never deletes a pod that was not named."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from bidbrain.kubernetes.book import ANNOTATION, Book, Booking, filled, free, patch, scale, staying
from bidbrain.kubernetes.objects import Group, Pod, PodPhase, RayCluster
from tests.kubernetes.api_server import patched
from tests.kubernetes.kuberay_operator import reconciled
from tests.thorough import examples

SPOT = Group("spot", 0, 0)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["buy", "give back", "lose", "delete", "end", "reconcile"]), st.integers(0, 99)
    ),
    min_size=10,
    max_size=40,
)


def pods_of(*pods: Pod) -> dict[str, Pod]:
    return {pod.name: pod for pod in pods}


@dataclass
class Ground:
    """A group, its pods and KubeRay, which reconciles when it is its turn."""

    group: Group = SPOT
    pods: dict[str, Pod] = field(default_factory=dict)
    book: Book = field(default_factory=lambda: Book("job"))
    numbers: Any = field(default_factory=count)
    unnamed: list[str] = field(default_factory=list)
    given_back: set[str] = field(default_factory=set)

    def write(self, book: Book, leaving: frozenset[str] = frozenset()) -> None:
        found = scale(book, self.group, self.pods, leaving)
        self.book = book
        self.group = replace(self.group, replicas=found.replicas, to_delete=found.to_delete)

    def reconcile(self) -> None:
        make, gone, unnamed = reconciled(self.group.replicas, list(self.group.to_delete), list(self.pods))
        self.unnamed += unnamed
        for pod in (*gone, *unnamed):
            del self.pods[pod]
        for _ in range(make):
            name = f"pod-{next(self.numbers)}"
            self.pods[name] = Pod(name, "spot", PodPhase.RUNNING, next(self.numbers))

    def step(self, what: str, number: int) -> None:
        names = sorted(self.pods)
        some = names[number % len(names)] if names else ""
        match what:
            case "buy":
                token = f"order-{next(self.numbers)}"
                book = self.book.booked(Booking(token, "spot", 1 + number % 3, 0))
                self.write(filled(book, token, self.group, self.pods.values()))
            case "give back" if some:
                self.given_back.add(some)
                self.write(self.book.without([some]), frozenset([some]))
            case "lose" if some:
                del self.pods[some]
            case "delete" if some:
                self.pods[some] = replace(self.pods[some], deadline_s=1000)
            case "end":  # the grace of those that were deleted is over
                self.pods = {name: pod for name, pod in self.pods.items() if pod.deadline_s is None}
            case "reconcile":
                self.reconcile()


@given(STEPS)
@settings(max_examples=examples(150), deadline=None)
def test_no_pod_goes_that_was_not_named(steps: list[tuple[str, int]]) -> None:
    ground = Ground()
    for what, number in steps:
        ground.step(what, number)
    assert not ground.unnamed
    ground.reconcile()
    assert not ground.given_back & ground.pods.keys(), (
        "what was given back is gone, whatever was written since"
    )
    # When all that was ordered has been made, nothing is awaited, and nobody has been given a pod twice.
    for booking in ground.book.bookings:
        ground.reconcile()
        ground.write(filled(ground.book, booking.token, ground.group, ground.pods.values()))
    pods = [pod for booking in ground.book.bookings for pod in booking.pods]
    assert len(pods) == len(set(pods))
    ground.step("end", 0)
    ground.reconcile()
    assert not ground.unnamed
    stay = {pod.name for pod in staying(ground.group, ground.pods.values())}
    idle = {pod.name for pod in free(ground.book, ground.group, ground.pods.values())}
    assert stay - idle == stay & set(pods)


def test_a_lost_pod_s_successor_goes_to_the_next_order() -> None:
    ground = Ground()
    ground.step("buy", 1)
    ground.reconcile()
    ground.write(filled(ground.book, ground.book.bookings[0].token, ground.group, ground.pods.values()))
    ground.step("lose", 0)
    ground.reconcile()
    assert len(free(ground.book, ground.group, ground.pods.values())) == 1
    ground.step("buy", 0)
    assert (ground.group.replicas, len(ground.pods)) == (2, 2), "no pod is made for it"
    assert ground.book.bookings[1].awaited == 0


def test_running_pods_are_given_before_pending_ones_and_old_ones_before_young() -> None:
    pods = pods_of(
        Pod("young", "spot", PodPhase.RUNNING, 30),
        Pod("pending", "spot", PodPhase.PENDING, 10),
        Pod("old", "spot", PodPhase.RUNNING, 20),
        Pod("other", "large", PodPhase.RUNNING, 1),
        Pod("leaving", "spot", PodPhase.RUNNING, 1, deadline_s=99),
    )
    book = filled(Book("job").booked(Booking("a", "spot", 2, 0)), "a", SPOT, pods.values())
    assert book.bookings[0].pods == ("old", "young")


def test_a_pod_that_goes_is_named_and_no_replica_is_lost_for_it() -> None:
    pods = pods_of(
        Pod("a", "spot", PodPhase.RUNNING, 1),
        Pod("b", "spot", PodPhase.FAILED, 1),
        Pod("c", "spot", PodPhase.RUNNING, 1, 9),
    )
    book = Book("job", (Booking("order", "spot", 3, 0, ("a", "b", "c")),))
    found = scale(book, Group("spot", 0, 3), pods)
    assert (found.replicas, found.to_delete) == (1, ("b", "c"))
    assert scale(book, Group("spot", 0, 3), pods, ["a"]).replicas == 0


def test_the_groups_limit_holds_but_lowers_nothing() -> None:
    book = Book("job").booked(Booking("order", "spot", 9, 0))
    assert scale(book, Group("spot", 0, 0, most=4), {}).replicas == 4
    pods = pods_of(*(Pod(f"{i}", "spot", PodPhase.RUNNING, i) for i in range(6)))
    assert scale(Book("job"), Group("spot", 0, 6, most=4), pods).replicas == 6


def test_a_book_is_read_as_it_was_written_and_by_its_own_job_only() -> None:
    book = Book("job", (Booking("a", "spot", 2, 5, ("x",)), Booking("b", "large", 1, 6)))
    cluster = RayCluster("ray", "7", (), {ANNOTATION: book.text()})
    assert Book.of(cluster, "job") == book
    assert Book.of(cluster, "another") == Book("another")
    assert Book.of(replace(cluster, annotations={ANNOTATION: "no JSON"}), "job") == Book("job")
    assert book.without(["x"]).bookings[0] == Booking("a", "spot", 1, 5)
    assert Book("job", (Booking("a", "spot", 1, 5, ("x",)),)).without(["x"]) == Book("job")


def test_a_patch_is_for_this_version_and_these_groups_only() -> None:
    item = {
        "metadata": {"name": "ray", "resourceVersion": "7"},
        "spec": {"workerGroupSpecs": [{"groupName": "spot", "replicas": 0}]},
    }
    cluster = RayCluster("ray", "7", (SPOT,), {})
    book = Book("job").booked(Booking("a", "spot", 2, 5))
    operations = patch(cluster, book, [scale(book, SPOT, {})])
    after = patched(item, operations)
    assert after["spec"]["workerGroupSpecs"] == [
        {"groupName": "spot", "replicas": 2, "scaleStrategy": {"workersToDelete": []}}
    ]
    assert after["metadata"]["annotations"] == {ANNOTATION: book.text()}
    assert [each["path"] for each in operations if each["op"] == "test"] == [
        "/metadata/resourceVersion",
        "/spec/workerGroupSpecs/0/groupName",
    ]
    same = replace(cluster, annotations={ANNOTATION: book.text()}, groups=(replace(SPOT, replicas=2),))
    assert patch(same, book, [scale(book, same.groups[0], {})]) == []
