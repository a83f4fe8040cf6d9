"""The folder of a run's sockets goes with the process that made it, also when that is killed."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

from agileml.runtime.local import owned, sweep
from agileml.runtime.wiring import socket_folder

OWNER = """
import sys
from agileml.runtime.local import owned
from agileml.runtime.wiring import socket_folder
with owned(socket_folder("test-owned")) :
    print("made", flush=True)
    sys.stdin.read()
"""


def test_a_folder_goes_with_its_block_and_its_files(tmp_path: Path) -> None:
    folder = tmp_path / "proteus-x"
    with owned(folder):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        (folder / "1.ipc").touch()
    assert not folder.exists()


def test_what_a_killed_run_leaves_is_swept_and_what_a_living_one_has_stays() -> None:
    folder = socket_folder("test-owned")
    run = subprocess.Popen(
        [sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert run.stdout is not None and run.stdout.readline() == "made\n"
        assert folder not in sweep()
        assert folder.is_dir()
    finally:
        run.kill()
        run.communicate()
    assert folder.is_dir()
    assert folder in sweep()
    assert not folder.exists()
