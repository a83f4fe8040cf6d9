"""The soak: its faults are data, its figures tell growth from noise, and its short form runs."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.soak_plan import HEADS, LOSSES, draw, from_text, to_text
from benchmarks.soak_watch import allocated, slope

ROOT = Path(__file__).resolve().parents[2]


@given(st.integers(0, 1000), st.integers(0, 4), st.integers(0, 4))
def test_a_plan_is_what_was_asked_for_and_parses_back(seed: int, heads: int, losses: int) -> None:
    plan = draw(seed, 1800.0, 5.0, heads, losses)
    assert plan == draw(seed, 1800.0, 5.0, heads, losses)
    assert sum(due.harm in HEADS for due in plan) == heads
    assert 240 < len(plan) < 480
    lives = [at for at, due in enumerate(plan) if due.harm in HEADS]
    for begin, end in zip([-1, *lives], [*lives, len(plan)], strict=True):
        assert sum(due.harm in LOSSES for due in plan[begin + 1 : end]) <= losses
    again = from_text(to_text(plan))
    assert [due.harm for due in again] == [due.harm for due in plan]
    assert all(abs(one.at_s - other.at_s) < 0.01 for one, other in zip(again, plan, strict=True))
    with pytest.raises(ValueError):
        from_text("soon: machine\n")


def test_growth_is_told_from_noise() -> None:
    noise = [0.3 if n % 3 else -0.6 for n in range(200)]
    flat = [(3.0 * n, 100 + noise[n]) for n in range(200)]
    grows = [(3.0 * n, 100 + noise[n] + n * 3.0 / 3600 * 24) for n in range(200)]
    rate, error = slope([flat])
    assert abs(rate) < 3 * error
    rate, error = slope([grows])
    assert rate == pytest.approx(24, abs=2) and rate - 3 * error > 15
    lives = [[(at_s, 40 * number + mib) for at_s, mib in grows[:60]] for number in range(4)]
    rate, error = slope(lives)  # processes one after the other, each with a level of its own
    assert rate == pytest.approx(24, abs=6) and rate - 3 * error > 0
    assert slope([[(1.0, 5.0), (1.0, 6.0)]]) == (0.0, 0.0)


def test_what_a_process_allocated_counts_and_what_it_maps_from_a_file_does_not(tmp_path: Path) -> None:
    size = 32 << 20
    (tmp_path / "library").write_bytes(bytes(size))
    before = allocated(os.getpid())
    with (
        (tmp_path / "library").open("rb") as file,
        mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped,
    ):
        assert sum(mapped[::4096]) == 0  # read, so that it is resident
        assert allocated(os.getpid()) - before < size // 4
    block = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    block.write(b"1" * size)
    assert allocated(os.getpid()) - before > size * 3 // 4
    with pytest.raises(OSError, match="/proc/0/status"):
        allocated(0)


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.skipif(os.geteuid() != 0, reason="the disk that fills up is mounted")
def test_a_minute_of_faults() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "bench_soak.py"), "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
