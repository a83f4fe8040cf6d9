"""KubeRay as a market, against a real HTTPS server that plays the API server."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bidbrain.billing import Ending
from bidbrain.kubernetes import kuberay
from bidbrain.kubernetes.api import Api
from bidbrain.kubernetes.mirror import Mirror
from bidbrain.live.cloud import (
    Alert,
    CapacityError,
    CloudError,
    CredentialsError,
    InstanceNotice,
    QuotaError,
    RefusedError,
    UnknownOutcomeError,
    notice_of,
)
from tests.kubernetes.api_server import now_text
from tests.kubernetes.ground import LARGE, SPOT, STAYS, Ground, ground_of, order, soon

NTH = "aws-node-termination-handler/spot-itn"


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    with ground_of(tmp_path) as ground:
        yield ground


def ids(instances: Any) -> list[str]:
    return [instance.instance_id for instance in instances]


def test_an_order_is_made_once_however_often_it_is_asked(ground: Ground) -> None:
    cloud = ground.cloud()
    first = cloud.acquire(order("a", 3))
    assert len(set(ids(first))) == 3 and ground.replicas("spot") == 3
    assert ids(cloud.acquire(order("a", 3))) == ids(first)
    assert ids(ground.cloud().acquire(order("a", 3))) == ids(first), "by a new process too"
    second = cloud.acquire(order("b", 1, LARGE)) + cloud.acquire(order("c", 1, STAYS))
    assert {each.market for each in cloud.held()} == {SPOT, LARGE, STAYS}
    assert sorted(ids(cloud.held())) == sorted(ids(first + second))


def test_an_answer_that_is_lost_buys_nothing_twice(ground: Ground) -> None:
    cloud = ground.cloud()
    failures = iter([504])  # the patch is made, the answer is not
    plain = ground.server.answer

    def lost(method: str, path: str, body: bytes) -> Any:
        found = plain(method, path, body)
        if method == "PATCH" and next(failures, None):
            from tests.kubernetes.api_server import RefusedError as Refused

            raise Refused(504, "Timeout")
        return found

    ground.server.answer = lost  # type: ignore[method-assign]
    with pytest.raises(UnknownOutcomeError, match="patch rayclusters/ray: Kubernetes answers 504"):
        cloud.acquire(order("a", 2))
    assert len(cloud.acquire(order("a", 2))) == 2
    assert ground.replicas("spot") == 2


def test_who_writes_at_the_same_time_loses_nothing(ground: Ground) -> None:
    """Two jobs' worth of orders from two threads, and a third that scales another group by hand."""
    cloud = ground.cloud()
    found: list[str] = []

    def buy(name: str) -> None:
        for number in range(3):
            found.extend(ids(cloud.acquire(order(f"{name}{number}", 1))))

    threads = [threading.Thread(target=buy, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for _ in range(5):
        ground.server.change(
            "rayclusters", "ray", lambda item: item["metadata"].update(labels={"x": now_text()})
        )
    for thread in threads:
        thread.join()
    assert len(found) == len(set(found)) == 6
    assert sorted(ids(cloud.held())) == sorted(found)


def test_pods_go_by_name_and_nothing_is_left_with_the_last(ground: Ground) -> None:
    cloud = ground.cloud()
    stays = cloud.acquire(order("r", 1, STAYS))
    spot = ids(cloud.acquire(order("a", 3)))
    cloud.release((spot[1],))
    cloud.release((spot[1],))  # again
    ground.settled()
    assert set(ground.operator.names("spot")) == {spot[0], spot[2]}
    assert sorted(ids(cloud.held())) == sorted([stays[0].instance_id, spot[0], spot[2]])
    assert [each.ending for each in soon(ground, lambda: cloud.ended((spot[1],)))] == [Ending.TERMINATED]
    cloud.release((spot[0], spot[2], stays[0].instance_id))
    ground.settled()
    assert not ground.server.items("pods")
    assert cloud.held() == ()


def test_a_lost_pod_has_ended_and_its_successor_serves_the_next_order(ground: Ground) -> None:
    cloud = ground.cloud()
    lost, stays = ids(cloud.acquire(order("a", 2)))
    ground.operator.evict(lost)
    (ended,) = soon(ground, lambda: cloud.ended((lost, stays)))
    assert (ended.instance_id, ended.ending) == (lost, Ending.EVICTED)
    assert cloud.ended((lost,)) == (ended,), "and stays so"
    (new,) = ids(cloud.acquire(order("b", 1)))
    ground.settled()
    assert set(ground.operator.names("spot")) == {stays, new} and ground.replicas("spot") == 2


def test_a_successor_that_nobody_orders_goes_after_a_while(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kuberay, "IDLE_S", 600)  # the test may take some seconds of its own
    cloud = ground.cloud()
    lost, stays = ids(cloud.acquire(order("a", 2)))
    ground.operator.evict(lost)
    ground.settled()

    def look(later_s: int) -> set[str]:
        ground.later_s += later_s
        cloud.notices()
        ground.settled()
        return set(ground.operator.names("spot"))

    assert len(look(0)) == 2 and len(look(500)) == 2
    assert soon(ground, lambda: look(101) == {stays})
    assert ids(cloud.held()) == [stays]


def test_with_the_last_order_s_pods_those_of_no_order_go_too(ground: Ground) -> None:
    cloud = ground.cloud()
    lost, stays = ids(cloud.acquire(order("a", 2)))
    ground.operator.evict(lost)
    ground.settled()
    assert len(ground.operator.names("spot")) == 2, "one of them in place of the lost one"
    soon(ground, lambda: cloud.ended((lost,)))
    cloud.release((stays,))
    ground.settled()
    assert not ground.server.items("pods")


def test_pods_of_an_earlier_job_are_taken_over(tmp_path: Path) -> None:
    with ground_of(tmp_path, spot=2) as ground:
        there = ground.operator.names("spot")
        earlier = ground.cloud("earlier")
        assert sorted(ids(earlier.acquire(order("a", 2)))) == sorted(there)
        cloud = ground.cloud("later")
        assert set(there) <= set(ids(cloud.acquire(order("b", 3))))
        assert ground.replicas("spot") == 3


def test_a_node_that_is_gone_takes_its_pod_along_though_the_pod_is_still_listed(ground: Ground) -> None:
    cloud = ground.cloud()
    (pod,) = ids(cloud.acquire(order("a", 1)))
    assert cloud.ended((pod,)) == ()
    ground.server.remove("nodes", f"node-{pod}")
    assert soon(ground, lambda: cloud.ended((pod,)))[0].ending is Ending.EVICTED
    (new,) = ids(cloud.acquire(order("b", 1)))
    assert new != pod, "the next order gets a pod that lives"
    assert ids(cloud.held()) == [new]
    ground.settled()
    assert ground.operator.names("spot") == [new]


def test_an_order_waits_for_no_pod_that_kuberay_is_to_delete(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud = ground.cloud()
    gone, _ = ids(cloud.acquire(order("a", 2)))
    ground.settled()
    ground.operator.is_away = True
    cloud.release((gone,))
    monkeypatch.setattr(kuberay, "MADE_S", 0.5)
    again = ground.cloud()  # a new process does not know whom the one before it gave back
    seen = ground.server.seen["get rayclusters"]
    with pytest.raises(UnknownOutcomeError, match="KubeRay has made 0 of 1 pods so far"):
        again.acquire(order("b", 1))
    assert ground.server.seen["get rayclusters"] == seen + 1, "and asks no more than it must"


def test_an_order_does_not_wait_for_ever_for_a_pod_that_only_the_watch_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kuberay, "MADE_S", 0.5)
    with ground_of(tmp_path, spot=1) as ground:
        cloud = ground.cloud()
        monkeypatch.setattr(Mirror, "_take", lambda mirror, kind, item: None)  # it hears nothing any more
        ground.operator.is_away = True
        ground.server.remove("pods", *ground.operator.names("spot"))
        with pytest.raises(UnknownOutcomeError, match="KubeRay has made 0 of 1 pods so far"):
            cloud.acquire(order("a", 1))


def test_a_pod_that_does_not_run_is_given_back_and_its_pool_left_alone(ground: Ground) -> None:
    ground.operator.room["spot"] = 1
    cloud = ground.cloud(place=ground.place(pending_s=300))
    runs, waits = ids(cloud.acquire(order("a", 2)))
    soon(ground, lambda: "nodeName" in ground.operator.pods("spot")[0]["spec"])
    assert cloud.ended((runs, waits)) == ()
    ground.later_s += 301
    ended = soon(ground, lambda: cloud.ended((runs, waits)))
    assert [(each.instance_id, each.ending) for each in ended] == [(waits, Ending.TERMINATED)]
    ground.settled()
    assert ground.operator.names("spot") == [runs]
    assert cloud.quotes(ground.now_s()).full == {SPOT}
    with pytest.raises(CapacityError, match="spot@ray: a pod did not come to run a short while ago"):
        cloud.acquire(order("b", 1))
    ground.later_s += kuberay.FULL_S
    assert not cloud.quotes(ground.now_s()).full


def test_without_an_operator_an_order_is_open_then_refused(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kuberay, "MADE_S", 0.1)
    ground.operator.is_away = True
    cloud = ground.cloud()
    with pytest.raises(UnknownOutcomeError, match="KubeRay has made 0 of 2 pods so far"):
        cloud.acquire(order("a", 2))
    ground.later_s += kuberay.GIVE_UP_S
    with pytest.raises(CapacityError, match="KubeRay has made no pod in 60 s: is its operator there"):
        cloud.acquire(order("a", 2))
    assert ground.replicas("spot") == 0


def test_the_groups_limit_is_a_quota(tmp_path: Path) -> None:
    with ground_of(tmp_path) as ground:

        def limit(item: Any) -> None:
            item["spec"]["workerGroupSpecs"][1]["maxReplicas"] = 2

        ground.server.change("rayclusters", "ray", limit)
        cloud = ground.cloud()
        assert len(cloud.acquire(order("a", 3))) == 2
        with pytest.raises(QuotaError, match="maxReplicas of the worker group is 2"):
            cloud.acquire(order("b", 1))


def test_a_taint_and_a_deletion_are_notices_with_their_seconds(ground: Ground) -> None:
    cloud = ground.cloud()
    tainted, deleted, stays = ids(cloud.acquire(order("a", 3)))
    assert cloud.notices() == ()
    before_s = int(time.time())
    ground.operator.taint(tainted, NTH)
    ground.operator.delete(deleted, 25)
    found = soon(ground, lambda: len(cloud.notices()) == 2 and cloud.notices())
    deadline_s = {each.instance_id: each.deadline_s for each in found}
    assert {each.alert for each in found} == {Alert.TERMINATE}
    assert before_s + 120 <= deadline_s[tainted] <= time.time() + 120
    assert before_s + 25 <= deadline_s[deleted] <= time.time() + 25
    assert cloud.notices() == found, "repeats are the same"
    before_s = int(time.time())
    ground.operator.taint(stays, NTH, added=now_text(-60))
    soon(ground, lambda: len(cloud.notices()) == 3)
    (sooner,) = set(cloud.notices()) - set(found)
    assert before_s + 60 <= sooner.deadline_s <= time.time() + 60
    cloud.release((deleted,))
    assert {each.instance_id for each in cloud.notices()} == {tainted, stays}, "what we give back is no news"


def test_a_market_that_is_asked_for_prices_alone_watches_nothing(ground: Ground) -> None:
    quotes = ground.cloud().quotes(ground.now_s())
    assert {offer.market: offer.price for offer in quotes.offers} == {SPOT: 60_000, LARGE: 110_000}
    assert not quotes.full
    assert not [name for name in ground.server.seen if name.startswith("watch")]


def test_a_watch_that_breaks_off_or_is_too_old_misses_nothing(ground: Ground) -> None:
    cloud = ground.cloud()
    (pod,) = ids(cloud.acquire(order("a", 1)))
    ground.server.forget_the_past()
    ground.operator.taint(pod, NTH)
    soon(ground, cloud.notices)
    ground.server.fail = lambda method, path: 500 if "watch=1" in path else 0
    ground.server.forget_the_past()
    ground.server.change("nodes", f"node-{pod}", lambda item: item["spec"].pop("taints"))
    ground.server.fail = lambda method, path: 0
    soon(ground, lambda: not cloud.notices())


def test_a_copy_that_is_stale_is_not_relied_on(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bidbrain.kubernetes.mirror.STALE_S", 0.0)
    cloud = ground.cloud()
    ground.server.fail = lambda method, path: 503
    ground.server.forget_the_past()

    def stale() -> bool:
        try:
            cloud.notices()
        except UnknownOutcomeError as error:
            return "Kubernetes answers 503" in str(error)
        return False

    soon(ground, stale)


def test_what_ray_says_is_heard_while_kubernetes_is_silent(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod tells Ray that it is being stopped; the job hears of its own pods alone."""
    monkeypatch.setattr("bidbrain.kubernetes.mirror.STALE_S", 0.0)
    told: list[InstanceNotice] = []

    class Drains:
        def notices(self) -> tuple[InstanceNotice, ...]:
            return tuple(told)

    cloud = ground.cloud(others=Drains())
    (pod,) = ids(cloud.acquire(order("a", 1)))
    assert cloud.notices() == ()
    ground.server.fail = lambda method, path: 503
    ground.server.forget_the_past()

    def stale() -> bool:
        try:
            return bool(cloud.notices())
        except CloudError:
            return True

    soon(ground, stale)
    told += [notice_of(Alert.TERMINATE, each, ground.now_s() + 15) for each in (pod, "of-another-job")]
    assert [each.instance_id for each in cloud.notices()] == [pod]


def refusal(ground: Ground, **changes: Any) -> str:
    with pytest.raises(CloudError) as caught:
        ground.cloud(place=ground.place(**changes))
    return str(caught.value)


def test_what_cannot_be_a_market_is_one_sentence(ground: Ground) -> None:
    from dataclasses import replace

    other = replace(ground.place(), cluster="elsewhere")
    with pytest.raises(
        RefusedError, match=r"market\.cluster: found no RayCluster elsewhere in namespace here"
    ):
        ground.cloud(place=other)
    with pytest.raises(
        RefusedError, match=r"market.pools: found gone, expected a worker group .* stays, spot, l"
    ):
        ground.cloud(place=replace(ground.place(), groups={SPOT: "gone"}))
    with pytest.raises(RefusedError, match=r"market.reliable.group: found gone"):
        ground.cloud(place=replace(ground.place(), groups={STAYS: "gone"}))
    ground.server.change("rayclusters", "ray", lambda item: item["spec"].update(enableInTreeAutoscaling=True))
    with pytest.raises(RefusedError, match="has enableInTreeAutoscaling on, expected off"):
        ground.cloud()


def test_what_is_wrong_with_an_account_is_one_sentence(ground: Ground, tmp_path: Path) -> None:
    ground.server.allowed = lambda right: right != ("list", "nodes", "")
    with pytest.raises(
        CredentialsError, match='get v1/nodes: Kubernetes answers 403, nodes "" is forbidden: User'
    ):
        ground.cloud()
    (ground.server.account / "token").write_text("another")
    with pytest.raises(CredentialsError, match="get rayclusters/ray: Kubernetes answers 401, Unauthorized"):
        ground.cloud()
    place = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(ground.server.port)}
    with pytest.raises(
        CredentialsError, match=r"market\.account: found no .*/token, expected the token of a"
    ):
        Api.of_pod(tmp_path / "nowhere", place)
    with pytest.raises(CredentialsError, match="found no KUBERNETES_SERVICE_HOST in the environment"):
        Api.of_pod(ground.server.account, {})
    other = tmp_path / "other"
    with ground_of(other) as elsewhere:
        (ground.server.account / "ca.crt").write_bytes((elsewhere.server.account / "ca.crt").read_bytes())
        with pytest.raises(CredentialsError, match=r"has no certificate of .*ca.crt"):
            ground.api.get("/api/v1/nodes")
    with pytest.raises(UnknownOutcomeError, match=r"no answer from 127\.0\.0\.1:9"):
        Api("127.0.0.1", 9, other / "account").get("/api/v1/nodes")
