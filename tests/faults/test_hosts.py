"""benchmarks/hosts.py: links as slow as they should be, and nothing left behind, not even by a killed process."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from hosts import Hosts, Link, why_not  # noqa: E402

HOSTS = [sys.executable, str(BENCHMARKS / "hosts.py")]
RECEIVE = """
import socket
server = socket.create_server(("", 5000))
print("listening", flush=True)
while True:
    connection, _ = server.accept()
    while connection.recv(1 << 20):
        pass
    connection.close()
"""
# Sends until one time the link was what kept it from being faster: a busy host does so now and then.
SEND = """
import socket, sys, time
for _ in range(100):
    with socket.create_connection((sys.argv[1], 5000)) as connection:
        begin_s = time.monotonic()
        connection.sendall(bytes(5_000_000))
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)  # nothing comes: it has read all
        bytes_per_s = 5_000_000 / (time.monotonic() - begin_s)
    print(bytes_per_s, flush=True)
    if bytes_per_s > float(sys.argv[2]):
        break
"""


def spaces() -> set[str]:
    folder = Path("/run/netns")
    return {path.name for path in folder.glob("proteus*h*")} if folder.exists() else set()


def test_without_root_it_says_so_in_one_sentence() -> None:
    # The interpreter may be readable by root alone: give up root after everything is imported.
    code = f"import os, sys; sys.path.insert(0, {str(BENCHMARKS)!r}); import hosts; "
    code += "os.geteuid() or os.seteuid(65534); sys.argv = ['hosts.py', 'up', '2']; hosts.main()"
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=False
    )
    assert ran.returncode == 1
    assert ran.stderr.count("\n") == 1
    assert "need root" in ran.stderr


needs_root = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))


@needs_root
def test_a_link_carries_what_it_should_and_both_ends_count_it() -> None:
    limit = Link("100mbit").bytes_per_s
    with Hosts(2, Link("100mbit"), cpus=0.5) as hosts:
        receiving = hosts.start(0, [sys.executable, "-c", RECEIVE], stdout=subprocess.PIPE, text=True)
        assert receiving.stdout is not None
        assert receiving.stdout.readline() == "listening\n"
        command = [sys.executable, "-c", SEND, hosts.address(0), str(0.8 * limit)]
        sending = hosts.start(1, command, stdout=subprocess.PIPE, text=True)
        bytes_per_s = [float(line) for line in sending.communicate(timeout=600)[0].split()]
        assert sending.returncode == 0
        assert hosts.traffic(1)[0] > 5_000_000
        assert hosts.traffic(0)[1] > 5_000_000
        sleeping = hosts.start(0, ["sleep", "1000"])
        names = {hosts.space(0), hosts.space(1)}
        assert names <= spaces()
    assert bytes_per_s[-1] > 0.8 * limit, bytes_per_s
    assert max(bytes_per_s) < 1.05 * limit, "the bucket may be full at the start"
    receiving.communicate(timeout=300)
    assert sleeping.wait(120) == -signal.SIGKILL
    assert not names & spaces()


@needs_root
def test_what_a_killed_one_left_is_removed_with_its_processes() -> None:
    holder = subprocess.Popen([*HOSTS, "up", "1"], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    space = holder.stdout.readline().split()[-2]
    inside = subprocess.Popen(["ip", "netns", "exec", space, "sleep", "1000"])
    while not subprocess.run(["ip", "netns", "pids", space], capture_output=True, check=True).stdout:
        time.sleep(0.01)
    assert subprocess.run([*HOSTS, "clean"], timeout=600, check=False).returncode == 0
    assert space in spaces(), "its owner lives"
    holder.kill()
    holder.communicate()
    assert space in spaces()
    assert subprocess.run([*HOSTS, "clean"], timeout=600, check=False).returncode == 0
    assert space not in spaces()
    assert inside.wait(120) == -signal.SIGKILL


@needs_root
def test_ctrl_c_ends_it_quietly() -> None:
    holder = subprocess.Popen([*HOSTS, "up", "1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    space = holder.stdout.readline().split()[-2]
    assert space in spaces()
    holder.send_signal(signal.SIGINT)
    _, problem = holder.communicate(timeout=300)
    assert (holder.returncode, problem) == (0, "")
    assert space not in spaces()
