"""The GPUs that a machine sees: those that it has reserved, of its own while there are enough."""

import os

import pytest
import ray

from agileml.cluster.local import VISIBLE, LocalCluster

pytestmark = pytest.mark.cluster


@ray.remote(num_cpus=1)
def seen() -> str | None:
    return os.environ.get(VISIBLE)


def test_a_machine_sees_no_device_that_it_has_not_reserved(cluster: LocalCluster) -> None:
    """Each process of each machine would compute on the first one."""
    cluster.add_nodes("transient", 1)
    assert ray.get(seen.remote()) == ""


def test_each_machine_reserves_a_gpu_of_its_own(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All had the first one, and the others were idle."""
    monkeypatch.setenv(VISIBLE, "4,7")
    added = cluster.add_nodes("transient", 2, gpus=1)
    at = [seen.options(num_gpus=1, label_selector={"ray.io/node-id": each.node_id}) for each in added]
    assert ray.get([each.remote() for each in at]) == ["4", "7"]
