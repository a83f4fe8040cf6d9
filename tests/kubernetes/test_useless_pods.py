"""Worker groups and pods that cost money and are no machines, against a server that plays the API server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bidbrain.billing import Ending
from bidbrain.kubernetes import kuberay
from bidbrain.live.cloud import CapacityError, RefusedError, UnknownOutcomeError
from tests.kubernetes.api_server import now_text
from tests.kubernetes.ground import SPOT, Ground, ground_of, order, soon


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    with ground_of(tmp_path) as ground:
        yield ground


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"minReplicas": 1},
            "found minReplicas 1, expected 0: KubeRay would make so many pods again and again",
        ),
        ({"numOfHosts": 2}, "found numOfHosts 2, expected 1"),
        ({"suspend": True}, "found suspend on, expected off"),
    ],
)
def test_a_group_whose_pods_do_not_come_and_go_one_by_one_is_refused(
    ground: Ground, change: dict[str, Any], said: str
) -> None:
    """KubeRay keeps minReplicas pods whatever `replicas` says: each idle one that went came again, for ever."""
    ground.server.change(
        "rayclusters", "ray", lambda item: item["spec"]["workerGroupSpecs"][1].update(change)
    )
    with pytest.raises(RefusedError, match=f"market.pools: worker group spot of RayCluster ray: {said}"):
        ground.cloud()


def test_what_keeps_kuberay_from_making_pods_is_said_in_its_words(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kuberay, "MADE_S", 0.1)
    ground.operator.is_away = True
    said = 'pods "ray-spot-worker-1" is forbidden: exceeded quota: compute'
    failure = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreateWorkerPod", "message": said}
    ground.server.change("rayclusters", "ray", lambda item: item.update(status={"conditions": [failure]}))
    cloud = ground.cloud()
    with pytest.raises(UnknownOutcomeError):
        cloud.acquire(order("a", 2))
    ground.later_s += kuberay.GIVE_UP_S
    with pytest.raises(CapacityError, match=f"KubeRay has made no pod in 60 s: {said}"):
        cloud.acquire(order("a", 2))


@pytest.mark.parametrize("restarts", [0, 4])
def test_a_pod_whose_containers_end_again_and_again_is_given_back(ground: Ground, restarts: int) -> None:
    """As one that gets too little memory, or an image with another Ray: its phase stays Running. A pod that only fails
    its probes may be busy."""
    cloud = ground.cloud(place=ground.place(pending_s=300))
    works, dies = (each.instance_id for each in cloud.acquire(order("a", 2)))
    ground.running()

    def die(item: Any) -> None:
        ready = {"type": "Ready", "status": "False", "lastTransitionTime": now_text()}
        again = {"name": "ray-worker", "restartCount": restarts, "state": {"waiting": {}}}
        item["status"].update(conditions=[ready], containerStatuses=[again])

    ground.server.change("pods", dies, die)
    assert cloud.ended((works, dies)) == (), "it may come up again"
    ground.later_s += 301
    if not restarts:
        assert cloud.ended((works, dies)) == ()
        return
    ended = soon(ground, lambda: cloud.ended((works, dies)))
    assert [(each.instance_id, each.ending) for each in ended] == [(dies, Ending.TERMINATED)]
    ground.settled()
    assert ground.operator.names("spot") == [works]
    assert cloud.quotes(ground.now_s()).full == {SPOT}
