"""The place of compiled code, named before any module of ours is compiled.

numba keeps it beside a module, or else in the home folder. Where it can write to neither, as in a container that runs
as a user of its own, it refuses the module.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

VARIABLE = "NUMBA_CACHE_DIR"


def name_place() -> None:
    """Name a folder of this user's in the temporary directory, if numba has no other place and the user names none."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    usual = (Path(base) / "numba", Path(__file__).parent / "__pycache__")
    if os.environ.get(VARIABLE) or any(map(_may_write, usual)):
        return
    try:
        place = _temporary()
    except OSError:  # there is none: numba says so itself
        return
    os.environ[VARIABLE] = place
    if (numba := sys.modules.get("numba")) is not None:  # it has looked already
        numba.config.CACHE_DIR = place


def _may_write(folder: Path) -> bool:
    """True where a folder can be written to, or made."""
    # Unlike `Path.exists` this takes what we may not look at for nothing.
    there = next((each for each in (folder, *folder.parents) if os.path.exists(each)), Path("/"))
    return os.path.isdir(there) and os.access(there, os.W_OK | os.X_OK)


def _temporary() -> str:
    """A folder that nobody else can write to: what lies in it is run. Raises OSError."""
    import stat
    import tempfile

    place = Path(tempfile.gettempdir()) / f"numba-{os.getuid()}"
    place.mkdir(mode=0o700, exist_ok=True)
    found = place.lstat()
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077:
        return str(place)

    import atexit
    import shutil

    own = tempfile.mkdtemp(prefix="numba-")
    atexit.register(shutil.rmtree, own, ignore_errors=True)
    return own
