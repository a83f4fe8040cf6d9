"""Readings of what the compute threads got of their cores."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from agileml.config.text import ConfigError
from agileml.process.measurement.core_time import CoreTime


def test_a_thread_that_computes_runs_or_waits_and_one_that_has_ended_counts_no_more() -> None:
    done = threading.Event()

    def compute() -> None:
        while not done.is_set():
            sum(range(1000))

    thread = threading.Thread(target=compute)
    thread.start()
    core_time = CoreTime(lambda: [Path(f"/proc/self/task/{thread.native_id}/schedstat")])
    first = core_time.read()
    while (now := core_time.read()).run_s - first.run_s < 0.01:
        time.sleep(0.001)
    assert now.at_s > first.at_s
    assert now.wait_s >= first.wait_s
    assert 0 < now.memory <= 1
    done.set()
    thread.join()
    while core_time.read().run_s:  # the kernel takes a moment to drop it
        time.sleep(0.001)


def test_a_kernel_that_does_not_count_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"found narx, expected ema: this kernel has no .*schedstat"):
        CoreTime(lambda: [], tmp_path / "schedstat")
