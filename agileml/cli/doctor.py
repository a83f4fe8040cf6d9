"""`proteus doctor`: can this computer run Proteus, and a remedy for each problem.

Each `judge_*` judges measured figures; `examine` measures them.
"""

from __future__ import annotations

import enum
import json
import os
import platform
import resource
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version

import psutil

GIB = 1 << 30
NEEDED = ("ray", "numpy", "numba", "pyzmq", "msgpack", "safetensors", "pydantic", "scikit-learn", "torch")
RAY_OLDEST, RAY_NEWEST = (2, 54), (2, 60)  # series, as in setup.cfg; the tests pass on both
MACHINE_BYTES = 300 << 20  # a local Ray node with one worker
STORE_BYTES = 80 << 20
FIRST_TRY = "proteus configs --copy . && proteus run configs/demo.yaml"


class Severity(enum.StrEnum):
    """The consequence of a finding for a run."""

    OK = "ok"
    ADVICE = "advice"  # it runs, but not as well as it could
    BLOCKS = "blocks"


OK, ADVICE, BLOCKS = Severity


@dataclass(frozen=True)
class Finding:
    """One line of the screen; `advice` is the remedy ("" if all is well)."""

    subject: str
    severity: Severity
    found: str
    advice: str = ""


def judge_python(major: int, minor: int) -> Finding:
    """The project is tested with Python 3.11 and 3.12."""
    found = f"{major}.{minor} ({platform.python_implementation()}, {platform.system()} {platform.machine()})"
    if (major, minor) in ((3, 11), (3, 12)):
        return Finding("Python", OK, found)
    return Finding("Python", BLOCKS, found, "use Python 3.11 or 3.12")


def judge_packages(versions: dict[str, str | None]) -> Finding:
    """`versions`: the installed version of each package that is needed; None: not installed."""
    missing = [name for name, found in versions.items() if found is None]
    if missing:
        return Finding(
            "Packages",
            BLOCKS,
            f"missing: {', '.join(missing)}",
            "install Proteus with its packages: make venv in a checkout, or pip install",
        )
    ray = versions["ray"] or ""
    text = ", ".join(f"{name} {found}" for name, found in versions.items())
    if not RAY_OLDEST <= _series(ray) <= RAY_NEWEST:
        oldest, newest = (".".join(map(str, series)) for series in (RAY_OLDEST, RAY_NEWEST))
        return Finding(
            "Packages",
            BLOCKS,
            f"ray {ray}",
            f"install Ray {oldest} to {newest}, as setup.cfg asks for: make venv in a checkout, or pip install",
        )
    return Finding("Packages", OK, text)


def judge_encryption(has_curve: bool) -> Finding:
    """Machines with different addresses talk through CURVE."""
    if has_curve:
        return Finding("Encryption", OK, "ZeroMQ with CURVE")
    return Finding(
        "Encryption",
        BLOCKS,
        "this ZeroMQ was built without CURVE",
        "install pyzmq from its wheel: pip install --force-reinstall --only-binary :all: pyzmq",
    )


def judge_memory(available_bytes: int, total_bytes: int) -> Finding:
    """A local machine of a run takes about 300 MiB before any data."""
    found = f"{available_bytes / GIB:.1f} GiB free of {total_bytes / GIB:.1f}"
    machines = available_bytes // MACHINE_BYTES - 2  # the head and the driver take as much as two
    if machines < 1:
        return Finding("Memory", BLOCKS, found, "free at least 1 GiB, or join a cluster with --address")
    if machines < 8:
        return Finding(
            "Memory", ADVICE, found, f"enough for about {machines} local machines: set machines.max"
        )
    return Finding("Memory", OK, found)


def judge_shared_memory(free_bytes: int | None) -> Finding:
    """Ray keeps 80 MiB per local machine there."""
    if free_bytes is None:
        return Finding(
            "/dev/shm", ADVICE, "is not there", "Ray uses /tmp instead; in Docker add --shm-size=2g"
        )
    found = f"{free_bytes / GIB:.2f} GiB free"
    if free_bytes < 9 * STORE_BYTES:
        return Finding("/dev/shm", ADVICE, found, "Ray uses /tmp instead; in Docker add --shm-size=2g")
    return Finding("/dev/shm", OK, found)


def judge_open_files(soft: int, hard: int) -> Finding:
    """Each machine has connections to each other one and to the head; Ray itself opens hundreds."""
    found = f"{soft} (at most {hard})" if hard != resource.RLIM_INFINITY else f"{soft}"
    if soft < 512:
        return Finding("Open files", BLOCKS, found, "raise the limit: ulimit -n 65536")
    if soft < 4096:
        return Finding("Open files", ADVICE, found, "raise the limit for many machines: ulimit -n 65536")
    return Finding("Open files", OK, found)


def judge_disk(free_bytes: int, folder: str) -> Finding:
    """Sessions of Ray, sockets and spilled objects."""
    found = f"{free_bytes / GIB:.1f} GiB free in {folder}"
    if free_bytes < 200 << 20:
        return Finding("Disk", BLOCKS, found, f"free at least 1 GiB in {folder}")
    if free_bytes < GIB:
        return Finding("Disk", ADVICE, found, f"free at least 1 GiB in {folder}: Ray writes its logs there")
    return Finding("Disk", OK, found)


def judge_gpus(names: list[str]) -> Finding:
    """GPUs are optional: the built-in applications use none."""
    return Finding("GPUs", OK, ", ".join(names) or "none (not needed)")


def check_ports(ip: str) -> Finding:
    """Whether this computer can be reached at the address that it gives its peers."""
    try:
        with socket.create_server((ip, 0)) as server:
            port = server.getsockname()[1]
            socket.create_connection((ip, port), timeout=2).close()
    except OSError as error:
        return Finding(
            "Ports",
            BLOCKS,
            f"{ip} cannot be reached from here ({error.strerror or error})",
            "let the firewall pass connections of this computer to itself, and between nodes of a cluster",
        )
    return Finding("Ports", OK, f"free ones, reachable at {ip}")


def check_ray_starts() -> Finding:
    """Start a cluster of one machine, run a task on it, end it."""
    import ray

    from agileml.cluster.local import LocalCluster

    start_s = time.monotonic()
    try:
        with LocalCluster() as cluster:
            cluster.add_nodes("transient", 1)
            ray.get(ray.remote(num_cpus=1)(lambda: os.getpid()).remote(), timeout=60)
    except Exception as error:  # any failure is a finding
        return Finding(
            "Ray",
            BLOCKS,
            f"does not start: {' '.join(str(error).split())[:200] or type(error).__name__}",
            "see the lines above that are not ok; else look for proxies and VPNs that change this computer's address",
        )
    return Finding("Ray", OK, f"a local node started, worked and ended in {time.monotonic() - start_s:.1f} s")


def check_ray_answers(address: str) -> Finding:
    """Whether the cluster at `address` answers and has labelled machines."""
    from agileml.cluster import ray_cluster as cluster
    from agileml.cluster.errors import ClusterError

    try:
        found = cluster.reach(address)
        cluster.join(found, namespace="proteus-doctor")
    except ClusterError as error:
        return Finding(
            "Ray", BLOCKS, str(error), "start the head with `ray start --head`, or correct --address"
        )
    try:
        import ray

        machines = cluster.tiered_nodes()
        tiers = ", ".join(
            f"{sum(m.tier == tier for m in machines)} {tier}" for tier in ("reliable", "transient")
        )
    finally:
        ray.shutdown()
    if not any(machine.tier == "reliable" for machine in machines):
        return Finding(
            "Ray", BLOCKS, f"{found} answers; machines: {tiers}",
            "label at least one node: ray start --address=... --labels tier=reliable",
        )  # fmt: skip
    return Finding("Ray", OK, f"{found} answers; machines: {tiers}")


def examine(address: str | None) -> Iterator[Finding]:
    """Every finding in turn; the last one, of Ray, takes seconds."""
    yield judge_python(*sys.version_info[:2])
    packages = judge_packages({name: _version(name) for name in NEEDED})
    yield packages
    if packages.severity is BLOCKS:
        return  # the rest needs them
    import zmq

    yield judge_encryption(bool(zmq.has("curve")))
    memory = psutil.virtual_memory()
    yield judge_memory(memory.available, memory.total)
    yield judge_shared_memory(shutil.disk_usage("/dev/shm").free if os.path.isdir("/dev/shm") else None)
    yield judge_open_files(*resource.getrlimit(resource.RLIMIT_NOFILE))
    yield judge_disk(shutil.disk_usage("/tmp").free, "/tmp")
    yield judge_gpus(_gpus())
    import ray

    yield check_ports(ray.util.get_node_ip_address())
    yield check_ray_starts() if address is None else check_ray_answers(address)


def run_doctor(address: str | None, say: Callable[[str], None] = print, *, as_json: bool = False) -> int:
    """Print the screen, or an object for each finding; returns the exit code: 1 if something blocks a run."""
    marks = {OK: "ok    ", ADVICE: "advice", BLOCKS: "BLOCKS"}
    severities = []
    for finding in examine(address):
        severities.append(finding.severity)
        if as_json:
            say(json.dumps(asdict(finding)))
            continue
        say(f"{marks[finding.severity]}  {finding.subject:<11} {finding.found}")
        if finding.advice:
            say(f"{'':20}-> {finding.advice}")
    blocked = severities.count(BLOCKS)
    if as_json:
        return 1 if blocked else 0
    if blocked:
        say(f"This computer cannot run Proteus yet: {blocked} of {len(severities)} findings block it.")
        return 1
    say(f"This computer can run Proteus. Try: {FIRST_TRY}")
    return 0


def _series(found: str) -> tuple[int, ...]:
    """The first two numbers of a version; those that are no numbers count as none."""
    return tuple(int(part) for part in found.split(".")[:2] if part.isdecimal())


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _gpus() -> list[str]:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    asked = [tool, "--query-gpu=name,memory.total", "--format=csv,noheader"]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()] if done.returncode == 0 else []
