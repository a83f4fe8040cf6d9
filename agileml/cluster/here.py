"""The Ray cluster of this computer, for `auto`.

Whoever shares the computer may write a note as Ray's, or start a process that looks like one of Ray's. The address in
it would get this user's token, so only what this user or root has written or started is believed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

import psutil

from agileml.cluster.errors import ClusterError
from agileml.cluster.owned_folder import PREFIX
from agileml.cluster.processes import clusters_of_raylets


def cluster_here(processes: Iterable[psutil.Process] | None = None) -> str:
    """The GCS address of the cluster of this computer, by Ray's note of the newest or else by a raylet (None: any):
    after `ray start --temp-dir`, or with another TMPDIR, the note lies elsewhere. Raises ClusterError."""
    temporary = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    if noted := _believed(Path(temporary) / "ray" / "ray_current_cluster"):
        return noted
    every = list(psutil.process_iter() if processes is None else processes)
    ours = [each for each in every if _is_believed(_user_of(each))]
    match clusters_of_raylets(ours, besides=PREFIX):  # runs of ours have clusters of their own
        case [only]:
            return only
        case found:
            count = f"{len(found)} Ray clusters" if found else "no Ray cluster"
            these = f" ({', '.join(found)})" if found else ""
            others = [each for each in clusters_of_raylets(every, besides=PREFIX) if each not in found]
            theirs = f", or the address of another user's ({', '.join(others)})" if others else ""
            raise ClusterError(
                f"address: found {count} on this computer for auto{these}, expected one that `ray start` began{theirs}"
            )


def _believed(note: Path) -> str:
    """What Ray has noted; nothing where there is no note, or another user's."""
    try:
        file = os.open(note, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    with os.fdopen(file, errors="replace") as opened:
        about = os.fstat(file)
        return opened.read().strip() if stat.S_ISREG(about.st_mode) and _is_believed(about.st_uid) else ""


def _user_of(process: psutil.Process) -> int:
    try:
        return process.uids().real
    except psutil.Error:
        return -1  # it has ended


def _is_believed(user: int) -> bool:
    return user in (os.geteuid(), 0)
