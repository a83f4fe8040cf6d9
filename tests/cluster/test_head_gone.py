"""The head of a cluster that others run dies for good: the run ends with our sentence, before Ray ends it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from agileml.cluster.processes import kill, tree
from agileml.errors import HEAD_LOST_CODE
from agileml.events.run import CutCommitted
from agileml.events.schema import of_type
from tests.cluster.started import own_address, started_cluster
from tests.cluster.test_head_with_redis import DRIVER, HEAD, command, log_of, of_head, until

pytestmark = [pytest.mark.slow, pytest.mark.cluster]


@pytest.mark.parametrize("is_whole", [False, True], ids=["the GCS alone", "the head as a whole"])
def test_a_run_whose_head_never_comes_back_says_so(is_whole: bool, tmp_path: Path) -> None:
    """Its process is on another host than the head. With the GCS alone gone the controller lives, and cuts stop."""
    with started_cluster([], ip=HEAD) as cluster:
        for tier in ("reliable", "transient"):
            cluster.start(
                f"--address={cluster.address}", "--num-cpus=1", f"--labels=tier={tier}",
                f"--node-ip-address={own_address()}", "--dashboard-agent-listen-port=0",
            )  # fmt: skip
        words = command(tmp_path / "run", "--address", cluster.address, "--set", "clocks=100000")[3:]
        run = subprocess.Popen(
            [sys.executable, "-c", DRIVER, own_address(), *words],
            env=cluster.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        try:
            until(lambda: bool(of_type(log_of(tmp_path / "run"), CutCommitted)), run)
            kill([of_head(cluster, "gcs_server"), *(tree(of_head(cluster, "raylet")) if is_whole else [])])
            said, _ = run.communicate(timeout=300)
        finally:
            run.kill()
    assert run.returncode == HEAD_LOST_CODE, said
    assert said.splitlines()[-1].startswith("proteus: Ray's head has not answered for 40 s"), said
    assert "Traceback" not in said
