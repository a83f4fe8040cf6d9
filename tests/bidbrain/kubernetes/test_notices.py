"""Taints and deletions as notices, with the seconds that each cloud gives."""

from __future__ import annotations

import pytest

from bidbrain.kubernetes.notices import TAINTS, TaintTimes, notices_of
from bidbrain.kubernetes.objects import Node, Pod, PodPhase, Taint, node_of, pod_of
from bidbrain.live.cloud import Alert

NTH, GKE = "aws-node-termination-handler/spot-itn", "cloud.google.com/impending-node-termination"


def pod(name: str = "a", node: str = "n", deadline_s: int | None = None) -> Pod:
    return Pod(name, "spot", PodPhase.RUNNING, 0, deadline_s, node)


def ends(pods: list[Pod], times: TaintTimes) -> dict[str, int]:
    return {each.instance_id: each.deadline_s for each in notices_of(pods, times, TAINTS)}


@pytest.mark.parametrize(("key", "seconds"), [(NTH, 120), (GKE, 15), ("karpenter.sh/disrupted", 120)])
def test_a_taint_counts_from_when_it_was_first_seen(key: str, seconds: int) -> None:
    times = TaintTimes()
    for now_s in (1000, 1003, 1050):  # looked at again and again
        times.look([Node("n", (Taint(key),)), Node("other")], now_s)
        assert ends([pod(), pod("b", "other"), pod("c", "")], times) == {"a": 1000 + seconds}


def test_a_taint_that_says_when_it_was_added_counts_from_then() -> None:
    times = TaintTimes()
    times.look([Node("n", (Taint(NTH, 990),))], 1000)
    assert ends([pod()], times) == {"a": 1110}


def test_a_taint_that_was_taken_away_and_comes_back_is_a_new_one() -> None:
    times = TaintTimes()
    times.look([Node("n", (Taint(NTH),))], 1000)
    times.look([Node("n")], 1010)
    assert ends([pod()], times) == {}
    times.look([Node("n", (Taint(NTH),))], 1100)
    assert ends([pod()], times) == {"a": 1220}


def test_the_soonest_of_several_ends_counts_and_has_an_id_of_its_own() -> None:
    times = TaintTimes()
    times.look([Node("n", (Taint(NTH), Taint("somebodys/own")))], 1000)
    (first,) = notices_of([pod()], times, TAINTS)
    (second,) = notices_of([pod(deadline_s=1060)], times, TAINTS)
    assert (first.deadline_s, second.deadline_s) == (1120, 1060)
    assert first.notice_id != second.notice_id
    assert ends([pod(deadline_s=1500)], times) == {"a": 1120}


def test_keys_of_the_user_s_own_count_and_unknown_ones_do_not() -> None:
    times = TaintTimes()
    times.look([Node("n", (Taint("somebodys/own"),))], 1000)
    assert notices_of([pod()], times, TAINTS) == ()
    (found,) = notices_of([pod()], times, {"somebodys/own": 40})
    assert (found.alert, found.deadline_s) == (Alert.TERMINATE, 1040)


def test_a_rebalance_recommendation_is_a_hint() -> None:
    times = TaintTimes()
    times.look([Node("n", (Taint("aws-node-termination-handler/rebalance-recommendation"),))], 1000)
    (found,) = notices_of([pod()], times, TAINTS)
    assert found.alert is Alert.REBALANCE


def test_objects_of_the_server_are_read() -> None:
    about = {
        "name": "a", "creationTimestamp": "2026-01-01T00:00:00Z", "deletionTimestamp": "2026-01-01T00:02:00Z",
        "labels": {"ray.io/group": "spot"},
    }  # fmt: skip
    read = pod_of({"metadata": about, "spec": {"nodeName": "n"}, "status": {"phase": "Running"}})
    assert (read.group, read.node, read.phase) == ("spot", "n", PodPhase.RUNNING)
    assert read.deadline_s is not None and read.deadline_s - read.created_s == 120
    assert not read.is_staying and not read.is_over
    taints = [{"key": "k", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"}, {"key": "l"}]
    node = node_of({"metadata": {"name": "n"}, "spec": {"taints": taints}})
    assert node.taints == (Taint("k", read.created_s), Taint("l"))
