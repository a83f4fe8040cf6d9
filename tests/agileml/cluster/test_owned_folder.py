"""What a run must not leave: the folder of its sockets, also when it is killed; tracebacks of its children."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from agileml.cluster.owned_folder import owned, sweep
from agileml.cluster.processes import processes_of
from agileml.cluster.ray_startup import spare_children
from agileml.process.run_transport import socket_folder

OWNER = """
import sys
from agileml.cluster.owned_folder import owned
from agileml.process.run_transport import socket_folder
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


def test_what_a_killed_run_leaves_is_swept_and_what_a_living_one_has_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a temporary folder of its own: other processes sweep the usual one."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)  # it is found again
    folder = socket_folder("test-owned")
    assert folder.parent == tmp_path
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


def test_ctrl_c_interrupts_the_run_and_not_a_child_that_is_being_forked() -> None:
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with pytest.raises(KeyboardInterrupt), spare_children():
        signal.raise_signal(signal.SIGINT)
    with spare_children():
        child = os.fork()
        if not child:
            try:
                signal.raise_signal(signal.SIGINT)
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.skipif(os.getuid() != 0, reason="needs a process of another user")
def test_another_user_s_process_that_names_a_folder_is_left_alone(tmp_path: Path) -> None:
    """`sudo tail` of a log there ended the run, and each later one on this computer, with a traceback of psutil's."""
    command = ["/bin/sh", "-c", "echo; read _", str(tmp_path / "raylet.log")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with (
        subprocess.Popen(command, user=65534, cwd="/", **pipes) as theirs,  # type: ignore[call-overload]
        subprocess.Popen(command, **pipes) as own,  # type: ignore[call-overload]
    ):
        for process in (theirs, own):
            process.stdout.readline()
        assert [found.pid for found in processes_of(tmp_path)] == [own.pid]
        for process in (theirs, own):
            process.kill()
