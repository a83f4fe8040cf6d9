"""Bytes by role: against a count of every single message, and against the closed forms of the thesis."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agileml.core.stage.traffic import ClockBytes, Roles, Volume, clock_bytes, volume_of
from tests.thorough import examples

NODES = ("r0", "r1", "t0", "t1", "t2")
W = 840.0


def counted(roles: Roles, volume: Volume) -> dict[str, ClockBytes]:
    """Every message of a clock, one by one."""
    sent = dict.fromkeys(roles.nodes(), 0.0)
    received = dict(sent)
    n = len(roles.owner)

    def send(source: str, target: str, size: float) -> None:
        if source != target:
            sent[source] += size
            received[target] += size

    for (owner, backup), (worker, sums) in product(
        zip(roles.owner, roles.backup, strict=True), roles.sums.items()
    ):
        send(owner, worker, volume.pull / n)
        for _ in range(sums):
            send(worker, owner, volume.push / n)
        send(owner, backup, volume.cut / n / len(roles.sums))
    return {node: ClockBytes(sent[node], received[node]) for node in roles.nodes()}


node = st.sampled_from(NODES)
partitions = st.integers(1, 6).flatmap(
    lambda n: st.tuples(st.lists(node, min_size=n, max_size=n), st.lists(node, min_size=n, max_size=n))
)
roles_of_any_kind = st.builds(
    lambda held, sums: Roles(*held, sums), partitions, st.dictionaries(node, st.integers(1, 4), min_size=1)
)
volumes = st.builds(Volume, *[st.floats(0, 1e9)] * 3)


@settings(deadline=None, derandomize=True, max_examples=examples(200))
@given(roles_of_any_kind, volumes)
def test_loads_are_what_counting_every_message_gives(roles: Roles, volume: Volume) -> None:
    expected = counted(roles, volume)
    found = clock_bytes(roles, volume)
    assert found.keys() == expected.keys()
    for name, load in found.items():
        assert load.sent == pytest.approx(expected[name].sent, rel=1e-9, abs=1e-3)
        assert load.received == pytest.approx(expected[name].received, rel=1e-9, abs=1e-3)


@settings(deadline=None, derandomize=True, max_examples=examples(200))
@given(roles_of_any_kind, volumes)
def test_volumes_are_found_from_what_moved(roles: Roles, volume: Volume) -> None:
    def moved(pull: float, push: float, cut: float) -> float:
        return sum(load.received for load in counted(roles, Volume(pull, push, cut)).values())

    found = volume_of(roles, moved(volume.pull, 0, 0), moved(0, volume.push, 0), moved(0, 0, volume.cut))
    assert clock_bytes(roles, found).keys() == clock_bytes(roles, volume).keys()
    for name, load in clock_bytes(roles, found).items():
        assert load.sent == pytest.approx(clock_bytes(roles, volume)[name].sent, rel=1e-6, abs=1e-3)


def even(owners: list[str], backups: list[str], workers: list[str]) -> Roles:
    n = len(owners) * len(backups)
    return Roles(
        [owners[p % len(owners)] for p in range(n)],
        [backups[p // len(owners)] for p in range(n)],
        dict.fromkeys(workers, 1),
    )


def machines(reliable: int, transient: int) -> tuple[list[str], list[str]]:
    return [f"r{i}" for i in range(reliable)], [f"t{i}" for i in range(transient)]


DENSE = Volume(W, W, 0.0)


def test_the_traditional_layout_moves_4_w_times_n_less_1_over_n() -> None:
    reliable, _ = machines(8, 0)
    roles = Roles(reliable, reliable, dict.fromkeys(reliable, 1))
    for load in clock_bytes(roles, DENSE).values():
        assert load.sent + load.received == pytest.approx(4 * W * 7 / 8)


def test_stage_1() -> None:
    reliable, transient = machines(2, 6)
    roles = Roles(reliable * 4, reliable * 4, dict.fromkeys(reliable + transient, 1))
    found = clock_bytes(roles, DENSE)
    assert found["r0"].sent == pytest.approx(W * (1 - 1 / 2) + W * 7 / 2)
    assert found["t0"] == ClockBytes(pytest.approx(W), pytest.approx(W))


def test_stage_2() -> None:
    reliable, transient = machines(2, 6)
    active = transient[:3]
    found = clock_bytes(even(active, reliable, reliable + transient), Volume(W, W, 60.0))
    assert found["t0"].sent == pytest.approx(W * (1 - 1 / 3) + W * 7 / 3 + 60 / 3)
    assert found["t0"].received == pytest.approx(W * (1 - 1 / 3) + W * 7 / 3)
    assert found["t5"] == ClockBytes(pytest.approx(W), pytest.approx(W))
    assert found["r0"] == ClockBytes(pytest.approx(W), pytest.approx(W + 60 / 2))


def test_stage_3() -> None:
    reliable, transient = machines(1, 7)
    found = clock_bytes(even(transient, reliable, transient), Volume(W, W, 70.0))
    assert found["t0"].sent == pytest.approx(W * (1 - 1 / 7) + W * 6 / 7 + 10)
    assert found["r0"] == ClockBytes(0.0, pytest.approx(70.0))


def test_what_the_thesis_adds_up_for_an_active_of_stage_3() -> None:
    everybody = [f"t{i}" for i in range(8)]
    found = clock_bytes(even(everybody[:4], ["r0"], everybody), DENSE)["t0"]
    serving, working = 4 * W * 7 / 8, 2 * W * 6 / 8
    assert found.sent + found.received == pytest.approx(serving + working)
