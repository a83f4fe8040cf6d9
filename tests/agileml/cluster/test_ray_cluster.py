"""What `auto` means on a computer, and which Pythons a cluster takes."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from agileml.cluster.errors import ClusterError
from agileml.cluster.job_server import find_server
from agileml.cluster.nodes import ClusterNodes
from agileml.cluster.processes import cluster_here
from agileml.cluster.ray_cluster import check_python, meant, reach

VARIABLE = "RAY_ADDRESS"


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No cluster is named, and Ray's note would lie in a folder of the test's own."""
    for name in (VARIABLE, "RAY_TMPDIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))


@contextmanager
def raylet(folder: Path, address: str, session: str = "/tmp/ray/session_1") -> Iterator[psutil.Process]:
    """A process that looks like Ray's."""
    program = folder / "raylet"
    if not program.exists():
        program.symlink_to(os.path.realpath(sys.executable))
    waits = "print(flush=True); import sys; sys.stdin.read()"
    command = [str(program), "-c", waits, f"--gcs-address={address}", f"--session_dir={session}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield psutil.Process(process.pid)
        process.kill()


@pytest.mark.parametrize("variable", ["TMPDIR", "RAY_TMPDIR"])
def test_auto_is_the_cluster_that_ray_has_noted(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray's note lies below TMPDIR where that is set, as on many clusters; only /tmp was looked into."""
    (tmp_path / variable / "ray").mkdir(parents=True)
    (tmp_path / variable / "ray" / "ray_current_cluster").write_text("10.0.0.5:6379")
    monkeypatch.setenv(variable, str(tmp_path / variable))
    assert cluster_here([]) == "10.0.0.5:6379"


def test_auto_is_the_only_cluster_of_this_computer_that_is_no_run_of_ours(tmp_path: Path) -> None:
    """`ray start --temp-dir` leaves its note there, where nobody looks."""
    with pytest.raises(ClusterError, match="found no Ray cluster on this computer for auto"):
        cluster_here([])
    with ExitStack() as stack:
        theirs = stack.enter_context(raylet(tmp_path, "10.0.0.5:6379"))
        ours = stack.enter_context(raylet(tmp_path, "127.0.0.1:1", "/tmp/proteus-abc/ray/session_1"))
        assert cluster_here([ours, theirs]) == "10.0.0.5:6379"
        other = stack.enter_context(raylet(tmp_path, "10.0.0.6:6379"))
        with pytest.raises(ClusterError, match=r"found 2 .*\(10.0.0.5:6379, 10.0.0.6:6379\), expected one"):
            cluster_here([ours, theirs, other])


def test_auto_is_no_cluster_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody may put such a note into /tmp, or start a raylet; the address in it got the token."""
    user = os.geteuid() + 4711
    note = tmp_path / "ray" / "ray_current_cluster"
    note.parent.mkdir()
    note.write_text("10.6.6.6:6379")
    with raylet(tmp_path, "10.6.6.7:6379") as theirs:
        if os.geteuid():
            monkeypatch.setattr("os.geteuid", lambda: user)  # this process is the other one
        else:  # what is root's is believed
            os.chown(note, user, user)
            monkeypatch.setattr(psutil.Process, "uids", lambda self: SimpleNamespace(real=user))
        with pytest.raises(ClusterError, match="found no Ray cluster on this computer for auto, expected"):
            cluster_here([])
        with pytest.raises(ClusterError, match=r"or the address of another user's \(10.6.6.7:6379\)$"):
            cluster_here([theirs])


def test_a_note_that_is_no_file_is_none(tmp_path: Path) -> None:
    """A link may lead to a file of this user's with any content, and a pipe would be waited for."""
    (tmp_path / "ray").mkdir()
    (tmp_path / "own").write_text("10.6.6.6:6379")
    note = tmp_path / "ray" / "ray_current_cluster"
    note.symlink_to(tmp_path / "own")
    with pytest.raises(ClusterError, match="found no Ray cluster"):
        cluster_here([])
    note.unlink()
    os.mkfifo(note)
    with pytest.raises(ClusterError, match="found no Ray cluster"):
        cluster_here([])


def test_auto_is_what_rays_variable_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """`RAY_ADDRESS=http://...`, as for `ray job`, was taken for the name of a host, and `auto` for no address."""
    monkeypatch.setenv(VARIABLE, "http://127.0.0.1:1")
    assert meant("10.0.0.5:6379") == "10.0.0.5:6379"
    for ask in (find_server, reach, ClusterNodes):
        with pytest.raises(ClusterError, match=r"no dashboard answers at http://127.0.0.1:1 "):
            ask("auto")
    monkeypatch.setenv(VARIABLE, "auto")
    assert meant("auto") == "auto"


@pytest.mark.parametrize("asked", ["ray://10.0.0.5:10001", "auto"])
def test_an_address_of_rays_client_is_named(asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It "names a host that is not known", or what listened there was "no Ray head node"."""
    monkeypatch.setenv(VARIABLE, "ray://10.0.0.5:10001")
    for ask in (find_server, reach, ClusterNodes):
        with pytest.raises(
            ClusterError, match=r"found ray://10.0.0.5:10001, which is for Ray Client, expected"
        ):
            ask(asked)


def test_a_cluster_of_another_python_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray takes no such driver: the run ended with a traceback, its folder made and its data loaded."""
    ours = platform.python_version()
    check_python(None, "a:1")
    check_python(ours, "a:1")
    for other in ("3.9.1", ours + "1"):
        with pytest.raises(ClusterError, match=f"runs Python {other}, expected {ours} as here"):
            check_python(other, "a:1")
    monkeypatch.setenv("RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL", "minor")
    check_python(ours + "1", "a:1")
