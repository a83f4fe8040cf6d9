"""What runs leave behind is found and removed; what is in use stays."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from agileml.cli import main
from agileml.cluster.leftovers import YOUNG_S, Leftover, leftovers, remove_leftover
from agileml.cluster.owned_folder import owned


def folder(place: Path, name: str, owner: str | None = None, age_s: float = 0.0) -> Path:
    made = place / f"proteus-{name}"
    (made / "ray").mkdir(parents=True)
    (made / "ray" / "big").write_bytes(b"x" * 4096)
    if owner is not None:
        (made / "owner").write_text(owner)
    os.utime(made, (time.time() - age_s,) * 2)
    return made


def test_only_folders_that_nobody_needs_are_found_and_removed(tmp_path: Path) -> None:
    me = psutil.Process()
    over = subprocess.Popen([sys.executable, "-c", ""])
    over.wait()
    dead = folder(tmp_path, "dead", f"{over.pid} 1.0")
    reused = folder(tmp_path, "reused", f"{me.pid} 1.0")
    folder(tmp_path, "alive", f"{me.pid} {me.create_time()}")
    folder(tmp_path, "clock-set", f"{me.pid} {me.create_time() - 3}")  # the host's clock was 3 s behind then
    old = folder(tmp_path, "old", age_s=YOUNG_S + 60)
    folder(tmp_path, "young")
    (tmp_path / "other").mkdir()
    found = leftovers((tmp_path,))
    assert [each.place for each in found] == sorted(map(str, (dead, old, reused)))
    assert all(each.bytes >= 4096 for each in found)
    for each in found:
        remove_leftover(each)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "other",
        "proteus-alive",
        "proteus-clock-set",
        "proteus-young",
    ]


def test_the_folder_of_a_live_process_stays_though_the_clock_was_set_by_hours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of a virtual machine or a laptop that has slept. The kernel counts on; only its Unix times move."""
    created_s = psutil.Process.create_time
    with owned(tmp_path / "proteus-alive"):
        monkeypatch.setattr(psutil.Process, "create_time", lambda process: created_s(process) + 7200)
        assert leftovers((tmp_path,)) == []


def test_a_folder_with_a_socket_that_someone_listens_at_stays(tmp_path: Path) -> None:
    used = folder(tmp_path, "used", age_s=YOUNG_S + 60)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(used / "s.ipc"))
        listening.listen()
        os.utime(used, (1.0, 1.0))
        assert leftovers((tmp_path,)) == []
    os.utime(used, (1.0, 1.0))
    assert [each.place for each in leftovers((tmp_path,))] == [str(used)]


def test_results_in_a_folder_of_such_a_name_stay(tmp_path: Path) -> None:
    """`--out /tmp/proteus-demo` names the folder of a run, and a checkout may lie in /tmp/proteus-main."""
    results = folder(tmp_path, "demo")
    (results / "model.safetensors").write_bytes(b"")
    os.utime(results, (1.0, 1.0))
    assert leftovers((tmp_path,)) == []


def test_a_link_of_such_a_name_leads_to_nothing_that_is_removed(tmp_path: Path) -> None:
    """Anybody may make one in /tmp that points to a folder of this user."""
    over = subprocess.Popen([sys.executable, "-c", ""])
    over.wait()
    own = tmp_path / "home" / "project"
    (own / "ray").mkdir(parents=True)
    (tmp_path / "proteus-link").symlink_to(own)
    os.utime(own, (1.0, 1.0))
    assert leftovers((tmp_path,)) == []
    (own / "owner").write_text(f"{over.pid} 1.0")
    assert leftovers((tmp_path,)) == []


def test_a_process_that_got_the_number_of_one_that_was_found_lives_on() -> None:
    """The question may wait for an answer for hours."""
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    remove_leftover(Leftover("raylet", "its folder is gone", 0, 1, other.pid))
    assert other.poll() is None
    other.communicate(b"\n")
    assert other.returncode == 0


def test_a_process_of_a_removed_folder_is_found_also_with_a_tmpdir(tmp_path: Path) -> None:
    """A cluster's folder lies in /tmp: with TMPDIR set, as on many clusters, `proteus clean` found none of its
    processes."""
    gone = f"/tmp/proteus-{os.getpid()}gone"
    with subprocess.Popen(
        [sys.executable, "-c", "input()", f"{gone}/ray/log"], stdin=subprocess.PIPE
    ) as left:
        script = "from agileml.cluster.owned_folder import orphans; print([p.pid for p in orphans()])"
        told = subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "TMPDIR": str(tmp_path)}, capture_output=True, text=True, check=True,
        )  # fmt: skip
        left.kill()
    assert left.pid in json.loads(told.stdout)


def test_the_command_only_shows_when_told_so(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["clean", "--dry-run", "--json"])
    assert not ended.value.code
    for line in capsys.readouterr().out.splitlines():
        assert json.loads(line).keys() == {"place", "reason", "bytes", "processes", "pid"}
