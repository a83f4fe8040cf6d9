"""Silence: what is counted, and that a machine ends within its time."""

from __future__ import annotations

import resource
import socket
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agileml.cluster.orphan import Silence
from agileml.cluster.watchdog import LivenessEndpoint, WatchedHead
from tests.thorough import examples


@settings(deadline=None, derandomize=True, max_examples=examples(300))
@given(
    after_s=st.floats(0.5, 3600),
    heard=st.lists(st.booleans(), max_size=30),
    lateness=st.floats(0, 0.9),
)
def test_an_orphan_ends_in_time_and_nobody_else_does(
    after_s: float, heard: list[bool], lateness: float
) -> None:
    silence, now_s = Silence(after_s), 0.0
    period_s = silence.period_s
    assert 10 * period_s <= after_s + 1e-9

    last_s = None
    for answered in [*heard, True]:
        silence = silence.asked(now_s, answered)
        if answered or last_s is None:
            last_s = now_s
        assert (
            silence.is_orphaned == (now_s - last_s >= after_s - 2 * period_s)
            or abs(now_s - last_s - (after_s - 2 * period_s)) < 1e-6 * after_s
        )
        now_s += period_s
    # The head dies right after its last answer; questions come up to a period late.
    died_s = now_s - period_s
    while not silence.is_orphaned:
        now_s += period_s * lateness
        silence = silence.asked(now_s, False)
        assert now_s - died_s < after_s
        now_s += period_s * (1 - lateness)
    assert silence.silent_s <= now_s - died_s


def test_a_machine_that_slept_does_not_blame_the_head() -> None:
    silence = Silence(100.0).asked(0.0, True).asked(100_000.0, False)
    assert not silence.is_orphaned
    assert silence.silent_s == 3 * silence.period_s
    assert silence.asked(100_001.0, True).silent_s == 0


def test_the_liveness_endpoint_is_heard_and_what_is_dead_or_stuck_is_not() -> None:
    with LivenessEndpoint() as endpoint:
        address = endpoint.address
        assert all(WatchedHead(address).speaks(60) for _ in range(3))
    assert not WatchedHead(address).speaks(0.2)
    with socket.create_server(("127.0.0.1", 0)) as stuck:  # the kernel accepts, nobody answers
        assert not WatchedHead(f"127.0.0.1:{stuck.getsockname()[1]}").speaks(0.2)


def test_it_is_heard_again_after_a_moment_in_which_no_more_files_could_be_open() -> None:
    """As while the user's code opens too many: every machine would end itself, though the job goes on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    endpoint = LivenessEndpoint()
    with socket.socket() as asking:
        asking.settimeout(0.3)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            endpoint.__enter__()
            host, _, port = endpoint.address.rpartition(":")
            asking.connect((host, int(port)))
            with pytest.raises(TimeoutError):
                asking.recv(1)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert WatchedHead(endpoint.address).speaks(20)
    endpoint.__exit__()


def test_a_fixed_port_is_a_lock_that_a_crash_does_not_leave_behind() -> None:
    """One process drives the market of a head; when it is killed, another may at once."""
    # Below the ports that the kernel gives to connections: nobody else takes it while it is free.
    code = """
import contextlib, os, sys
from agileml.cluster.watchdog import LivenessEndpoint
from tests.thorough import examples
for port in range(12_000 + os.getpid() % 8_000, 30_000):
    with contextlib.suppress(OSError), LivenessEndpoint(port=port) as endpoint:
        print(endpoint.address, flush=True)
        sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as first:
        assert first.stdout is not None
        address = first.stdout.readline().strip()
        port = int(address.rpartition(":")[2])
        assert WatchedHead(address).speaks(60)
        with pytest.raises(OSError, match="in use"):
            LivenessEndpoint(port=port)
        first.kill()
    with LivenessEndpoint(port=port) as endpoint:
        assert endpoint.address == address and WatchedHead(address).speaks(60)
