"""Finds and removes what broken runs left on this host: folders in the temporary directory, and their processes."""

from __future__ import annotations

import contextlib
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from agileml.cluster.owned_folder import (
    OWNER,
    holds_only_ours,
    is_users,
    orphans,
    owner_of,
    remove,
)
from agileml.cluster.processes import PREFIX, kill, processes_of

YOUNG_S = 600.0  # a folder without an owner's name may be in the making, or belong to a machine of another host's run


@dataclass(frozen=True)
class Leftover:
    """A folder, or a process whose folder is gone (`pid`), and why it is not needed."""

    place: str
    reason: str
    bytes: int
    processes: int
    pid: int | None = None


def leftovers(places: tuple[Path, ...] | None = None, *, young_s: float = YOUNG_S) -> list[Leftover]:
    """Everything of this user that runs have left in `places` (None: the temporary directories)."""
    folders = places if places is not None else tuple({Path("/tmp"), Path(tempfile.gettempdir())})
    in_use = {Path(path).parent for path in _listening()}
    found = []
    for folder in sorted(folder for place in folders for folder in place.glob(f"{PREFIX}*")):
        with contextlib.suppress(OSError):
            if is_users(folder) and folder not in in_use:
                reason = _why(folder, young_s)
                if reason is not None:
                    found.append(Leftover(str(folder), reason, _size(folder), len(processes_of(folder))))
    if places is None:
        for process in orphans():
            with contextlib.suppress(psutil.Error):
                found.append(Leftover(process.name(), "its folder is gone", 0, 1, process.pid))
    return found


def remove_leftover(leftover: Leftover) -> None:
    """End its processes and remove its folder."""
    if leftover.pid is not None:
        # It may have ended since it was found, and another process may have its number.
        kill([process for process in orphans() if process.pid == leftover.pid])
        return
    folder = Path(leftover.place)
    kill(processes_of(folder))
    remove(folder)


def _why(folder: Path, young_s: float) -> str | None:
    """The reason why no process needs a folder; None: its owner is alive, or the folder is too young to tell, or it
    holds what no run puts there. Raises OSError."""
    owner = folder / OWNER
    if not owner.exists():
        if not holds_only_ours(folder):
            return None
        age_s = time.time() - folder.stat().st_mtime
        return f"no process has named itself its owner for {age_s / 60:.0f} min" if age_s > young_s else None
    try:
        pid, is_alive = owner_of(folder)
    except (OSError, ValueError):
        return None
    return None if is_alive else f"its process {pid} has ended"


def _listening() -> list[str]:
    """The sockets in files that some process has open."""
    return [str(each.laddr) for each in psutil.net_connections(kind="unix") if each.laddr]


def _size(folder: Path) -> int:
    total = 0
    for file in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += file.lstat().st_size if file.is_file() and not file.is_symlink() else 0
    return total
