"""Real Ray nodes on this machine: added, drained, removed, killed; and nothing left of a cluster."""

import contextlib
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray

from agileml.cluster import ray_cluster
from agileml.cluster.errors import ClusterError
from agileml.cluster.local import HEALTH_CHECK, LocalCluster
from agileml.cluster.ray_cluster import HEAD_RESOURCE, reach
from agileml.errors import RunError
from agileml.events.terms import Tier
from tests.cluster.started import best_s

pytestmark = pytest.mark.cluster


def until(condition: Callable[[], Any], timeout_s: float = 120) -> float:
    """Seconds until `condition()` holds; fails after `timeout_s`."""
    start_s = time.monotonic()
    while not condition():
        assert time.monotonic() - start_s < timeout_s, "this never came true"
        time.sleep(0.01)
    return time.monotonic() - start_s


def head_id() -> str:
    """Ray's id of the head node."""
    (head,) = [node for node in ray.nodes() if node["Alive"] and HEAD_RESOURCE in node["Resources"]]
    return str(head["NodeID"])


@ray.remote(num_cpus=1)
class Sleeper:
    """An actor with a child of its own, as a data loader would have."""

    def start(self) -> list[int]:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        return [os.getpid(), child.pid]

    def variable(self, name: str) -> str | None:
        return os.environ.get(name)


def test_a_node_that_registers_too_late_is_ended_and_started_again(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, late = cluster._cluster.add_node, []

    def too_late(**arguments: Any) -> Any:
        node = start(**arguments)
        if late:
            return node
        late.append(node.node_id)
        cluster._cluster.worker_nodes.discard(node)
        raise Exception("The current node timed out during startup.")  # as Ray's own

    monkeypatch.setattr(cluster._cluster, "add_node", too_late)
    added = cluster.add_nodes(Tier.TRANSIENT, 1)
    until(lambda: {n["NodeID"] for n in ray.nodes() if n["Alive"]} == {head_id(), added[0].node_id})
    assert late != [added[0].node_id]


def test_a_node_that_never_starts_is_one_sentence(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(**_: Any) -> Any:
        raise Exception("The current node timed out during startup.")

    monkeypatch.setattr(cluster._cluster, "add_node", never)
    with pytest.raises(RunError, match=r"could not start a node on this host in 3 tries: The current node"):
        cluster.add_nodes(Tier.TRANSIENT, 1)


def test_machines_carry_tier_and_allocation_and_the_head_is_none(cluster: LocalCluster) -> None:
    added = cluster.add_nodes(Tier.RELIABLE, 1) + cluster.add_nodes("transient", 1, allocation="spot-7")
    assert [(m.tier, m.allocation) for m in added] == [
        ("reliable", added[0].allocation),
        ("transient", "spot-7"),
    ]
    assert cluster.tiered_nodes() == added
    assert ray_cluster.tiered_nodes() == sorted(added, key=lambda machine: machine.node_id)
    assert head_id() not in {machine.node_id for machine in added}
    assert ray.get_runtime_context().get_node_id() == head_id()


def test_a_signal_to_our_process_group_reaches_none_of_rays_processes(cluster: LocalCluster) -> None:
    with ThreadPoolExecutor(1) as other_thread:  # as markets do it
        (machine,) = other_thread.submit(cluster.add_nodes, "transient", 1).result()
        # No helper of Ray's is there (one that was just forked still has its parent's name).
        whole = ["cat"] * 4 + ["gcs_server", "raylet", "raylet"]
        until(lambda: sorted(process.name() for process in cluster.processes()) == whole)
        groups = [os.getpgid(process.pid) for process in cluster.processes()]
        cluster.kill(machine.node_id)
    assert os.getpgrp() not in groups


def test_a_cluster_leaves_nothing_of_its_own_to_the_next_one_of_this_process(cluster: LocalCluster) -> None:
    """Ray made folders of a cluster that was gone again: it had noted them in settings that all clusters shared."""
    assert not [value for value in HEALTH_CHECK.values() if isinstance(value, str)]


@pytest.mark.slow
def test_a_node_that_stood_still_for_five_seconds_is_kept(cluster: LocalCluster) -> None:
    """So does one of a host that is short of CPU. Ray would end all that runs on it, and with the head the run."""
    (node,) = cluster.add_nodes(Tier.TRANSIENT, 1)
    affinity = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node.node_id, soft=False)
    sleeper = Sleeper.options(scheduling_strategy=affinity).remote()  # type: ignore[attr-defined]
    ray.get(sleeper.variable.remote("HOME"))
    cluster.freeze(node.node_id)
    began_s = time.monotonic()
    until(lambda: time.monotonic() > began_s + 5)
    cluster.thaw(node.node_id)
    ray.get(sleeper.variable.remote("HOME"), timeout=60)
    assert ray_cluster.tiered_nodes() == [node]


def test_a_drained_node_is_seen_with_its_deadline_and_a_removed_one_is_gone(cluster: LocalCluster) -> None:
    (first,) = cluster.add_nodes(Tier.TRANSIENT, 1)
    threads = rays_threads()
    (second,) = cluster.add_nodes(Tier.TRANSIENT, 1)
    assert rays_threads() == threads  # a run may start thousands of nodes
    assert ray_cluster.draining() == {}
    actor = Sleeper.options(label_selector={"ray.io/node-id": first.node_id}).remote()
    ray.get(actor.start.remote())  # without work a drained raylet exits at once
    deadline_s = time.time() + 300
    ray_cluster.drain(cluster.address, first.node_id, deadline_s, "spot interruption")
    until(lambda: first.node_id in ray_cluster.draining())
    seen = ray_cluster.draining()
    assert list(seen) == [first.node_id]
    assert seen[first.node_id] == pytest.approx(deadline_s, abs=0.002)
    cluster.remove(first.node_id)
    until(lambda: ray_cluster.tiered_nodes() == [second])
    assert ray_cluster.draining() == {}


def test_a_machine_is_killed_as_a_whole(cluster: LocalCluster) -> None:
    victim, other = cluster.add_nodes(Tier.TRANSIENT, 2)
    at = [
        Sleeper.options(label_selector={"ray.io/node-id": machine.node_id}).remote()
        for machine in (victim, other)
    ]
    of_victim, of_other = ray.get([actor.start.remote() for actor in at])
    # It is in the environment of the node, as there is no agent that would prepare another one.
    assert "MALLOC_ARENA_MAX" not in os.environ
    assert ray.get(at[1].variable.remote("MALLOC_ARENA_MAX")) == "1"
    start_s = time.monotonic()
    cluster.kill(victim.node_id)
    took_s = time.monotonic() - start_s
    assert not any(map(alive, of_victim))
    assert all(map(alive, of_other))
    assert cluster.tiered_nodes() == [other]
    print(
        f"killed in {took_s:.3f} s, seen by Ray {until(lambda: ray_cluster.tiered_nodes() == [other]):.2f} s later"
    )
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(at[0].start.remote(), timeout=60)


def rays_threads() -> int:
    """Threads of Ray's clients in this process: each wakes up several times a second, and goes with its client."""
    names = (path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm"))
    return sum(name.startswith("client.poll") for name in names)


def alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_the_token_is_private_and_needed(cluster: LocalCluster, tmp_path: Path, monkeypatch: Any) -> None:
    token = cluster.token_path.read_text()
    assert stat.S_IMODE(cluster.token_path.stat().st_mode) == 0o600
    assert stat.S_IMODE(cluster.token_path.parent.stat().st_mode) == 0o700
    assert not any(token in " ".join(process.cmdline()) for process in cluster.processes())
    assert reach(cluster.address) == cluster.address
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "none"))
    with pytest.raises(ClusterError, match=r"needs a token and none was found; set RAY_AUTH_TOKEN_PATH"):
        reach(cluster.address)
    (tmp_path / "wrong").write_text("0" * 64)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "wrong"))
    with pytest.raises(ClusterError, match=r"refuses the token of .*/wrong"):
        reach(cluster.address)


def test_an_address_that_is_no_cluster_is_one_sentence_within_3_s(cluster: LocalCluster) -> None:
    with socket.socket() as closed, socket.socket() as silent:
        closed.bind(("127.0.0.1", 0))
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        nobody, mute = (f"127.0.0.1:{s.getsockname()[1]}" for s in (closed, silent))
        for address, sentence in [
            (
                nobody,
                f"address: nobody listens at {nobody} \\(Connection refused\\), expected a Ray head node",
            ),
            (mute, f"address: what listens at {mute} is no Ray head node"),
            (f"http://{nobody}", f"address: no dashboard answers at http://{nobody}"),
            (f"http://{mute}", f"address: no dashboard answers at http://{mute}"),
            (
                "no-such-host.invalid:6379",
                "address: no-such-host.invalid:6379 names a host that is not known",
            ),
            ("somewhere", "address: found 'somewhere', expected host:port, http://host:port or auto"),
        ]:

            def refused(address: str = address, sentence: str = sentence) -> None:
                with pytest.raises(ClusterError, match=sentence):
                    reach(address)

            assert best_s(refused, 3.2) < 3.2


DRIVER = """
    import os, sys, time
    from agileml.cluster.local import LocalCluster
    how = sys.argv[1]
    try:
        with LocalCluster() as cluster:
            import ray
            cluster.add_nodes("transient", 1)
            ray.get(ray.remote(num_cpus=1)(lambda: os.getpid()).remote())
            print(cluster.token_path.parent, cluster.address, flush=True)
            if how == "exception":
                raise ValueError("of the user")
            while True:
                time.sleep(0.1)
    except KeyboardInterrupt:
        sys.exit(130)
"""


@pytest.fixture
def start_driver() -> Iterator[Callable[[str], tuple[subprocess.Popen[str], Path, str]]]:
    """Starts another process with a cluster of its own: (process, folder, address). None outlives the test."""
    started: list[subprocess.Popen[str]] = []

    def start(how: str) -> tuple[subprocess.Popen[str], Path, str]:
        driver = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(DRIVER), how],
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        started.append(driver)
        assert driver.stdout is not None
        folder, address = driver.stdout.readline().split()
        return driver, Path(folder), address

    yield start
    for driver in started:
        driver.kill()
        driver.wait()


def of_folder(folder: Path) -> list[str]:
    """Processes that name the folder in their arguments or write their output there."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        names = list(process.info["cmdline"] or [])
        for number in (1, 2):
            with contextlib.suppress(OSError):
                names.append(os.readlink(f"/proc/{process.pid}/fd/{number}"))
        if any(f"{folder}/" in name for name in names):
            found.append(" ".join(names)[:80])
    return found


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ("SIGINT", 130),
        pytest.param("SIGTERM", 143, marks=pytest.mark.slow),
        pytest.param("exception", 1, marks=pytest.mark.slow),
    ],
)
def test_a_second_cluster_disturbs_nobody_and_leaves_nothing(
    how: str, code: int, cluster: LocalCluster, start_driver: Any
) -> None:
    start_s = time.monotonic()
    driver, folder, address = start_driver(how)
    assert address != cluster.address
    up_s, start_s = time.monotonic() - start_s, time.monotonic()
    if how != "exception":
        assert of_folder(folder)
        driver.send_signal(getattr(signal, how))
    assert driver.wait(timeout=300) == code
    took_s = time.monotonic() - start_s
    print(f"{how}: up in {up_s:.2f} s, gone after {took_s:.2f} s")
    assert of_folder(folder) == []
    assert not folder.exists()
    assert ray.nodes()[0]["NodeID"] == head_id()
    # A raylet that lives has a name there for a moment while it starts; what a dead one leaves is there for good.
    until(lambda: not [name for name in os.listdir("/dev/shm") if "plasma" in name])


def test_what_a_killed_process_leaves_is_removed_by_the_next_cluster(start_driver: Any) -> None:
    driver, folder, _ = start_driver("SIGKILL")
    driver.kill()
    driver.wait()
    script = "from agileml.cluster.owned_folder import sweep; sweep()"
    subprocess.run([sys.executable, "-c", script], check=True)
    # Another cluster that starts on this computer just now may have begun to remove it.
    until(lambda: not folder.exists() and of_folder(folder) == [])


@pytest.mark.parametrize(
    ("labels", "tier"),
    [
        ({"tier": "reliable"}, Tier.RELIABLE),
        ({"tier": "transient", "ray.io/market-type": "on-demand"}, Tier.TRANSIENT),
        ({"ray.io/market-type": "spot"}, Tier.TRANSIENT),
        ({"ray.io/market-type": "on-demand"}, Tier.RELIABLE),
        ({"tier": "gold"}, None),
        ({}, None),
    ],
)
def test_labels_make_a_machine(labels: dict[str, str], tier: Tier | None) -> None:
    node = {"NodeID": "ab", "NodeManagerAddress": "10.0.0.1", "Labels": labels, "Resources": {"CPU": 1}}
    machine = ray_cluster.as_tiered_node(node)
    assert (machine and machine.tier) == tier
    if machine is not None:
        assert machine.allocation == "ab"  # on its own unless it says otherwise
    head = node | {"Resources": {HEAD_RESOURCE: 1.0}}
    assert ray_cluster.as_tiered_node(head) is None


REACH = "import sys; from agileml.cluster.ray_cluster import HEAD_RESOURCE, reach; print(reach(sys.argv[1]))"


@pytest.mark.slow
def test_a_cluster_that_ray_start_began_is_found_by_every_kind_of_address(
    tmp_path: Path, monkeypatch: Any
) -> None:
    with contextlib.ExitStack() as free:
        port, dashboard = (
            free.enter_context(socket.create_server(("", 0))).getsockname()[1] for _ in range(2)
        )
    folder = Path(tempfile.mkdtemp(prefix="pt-", dir="/tmp"))
    monkeypatch.setenv("RAY_TMPDIR", str(folder))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    ray_command = [str(Path(sys.executable).parent / "ray")]
    start = [
        *ray_command,
        "start",
        "--head",
        "--block",
        "--num-cpus=0",
        f"--port={port}",
        "--disable-usage-stats",
    ]
    head = subprocess.Popen(
        [*start, f"--dashboard-port={dashboard}"], start_new_session=True, env=clean,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        address = f"127.0.0.1:{port}"

        def found(name: str) -> str:
            """What a process of its own finds: Ray reads once per process whether there are tokens."""
            done = subprocess.run(
                [sys.executable, "-c", REACH, name], env=clean, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0 or "ClusterError" in done.stderr, done.stderr
            return done.stdout.strip()

        until(lambda: found(address) == address)
        until(lambda: (folder / "ray" / "ray_current_cluster").is_file())
        assert found("auto").endswith(f":{port}")
        until(lambda: found(f"http://127.0.0.1:{dashboard}").endswith(f":{port}"))
    finally:
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                if os.getsid(process.pid) == head.pid:
                    process.kill()
        head.wait()
        shutil.rmtree(folder, ignore_errors=True)
