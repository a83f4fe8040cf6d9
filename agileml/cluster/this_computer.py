"""The Ray clusters that this computer is a node of, as `ray start` left them: what `auto` means, and who is no node."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import psutil

from agileml.cluster.errors import ClusterError
from agileml.cluster.owned_folder import PREFIX

FLAG = "--gcs-address="  # of a raylet
VARIABLE = "RAY_ADDRESS"


def meant(address: str) -> str:
    """The address that `auto` stands for where RAY_ADDRESS names a cluster, as it does for Ray's own commands: that of
    a GCS or a dashboard. Any other address as it is."""
    named = os.environ.get(VARIABLE, "")
    return named if address == "auto" and named not in ("", "auto") else address


def cluster_here(processes: Iterable[psutil.Process] | None = None) -> str:
    """The GCS address of the cluster of this computer. Raises ClusterError: there is none, or more than one.

    It is the newest one by Ray's own note of it, else the one that a process here (None: any) belongs to: with
    `ray start --temp-dir`, or in a shell with another TMPDIR, the note lies elsewhere.
    """
    temporary = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    note = Path(temporary) / "ray" / "ray_current_cluster"
    if note.is_file() and (found := note.read_text().strip()):
        return found
    clusters = sorted(set(_clusters(processes)))
    if len(clusters) > 1:
        raise ClusterError(
            f"address: found {len(clusters)} Ray clusters on this computer for auto ({', '.join(clusters)}), expected "
            "one, or its host:port"
        )
    if not clusters:
        raise ClusterError(
            "address: found no Ray cluster on this computer for auto, expected one that `ray start` began"
        )
    return clusters[0]


def is_node_of(port: int) -> bool:
    """True where a raylet runs here whose GCS listens at this port: without one `ray.init` waits in vain."""
    return any(address.endswith(f":{port}") for address in _clusters(None, ours=True))


def _clusters(processes: Iterable[psutil.Process] | None, *, ours: bool = False) -> Iterable[str]:
    """The GCS addresses of the raylets among these processes; `ours`: also of those that runs of ours have started."""
    for process in psutil.process_iter() if processes is None else processes:
        try:
            words = process.cmdline() if process.name() == "raylet" else []
        except psutil.Error:
            continue
        if ours or not any(f"/{PREFIX}" in word for word in words):
            yield from (word.removeprefix(FLAG) for word in words if word.startswith(FLAG))
