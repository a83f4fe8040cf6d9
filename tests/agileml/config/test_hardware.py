"""How a machine's cores are split between compute processes."""

from __future__ import annotations

from typing import Any

import pytest

from agileml.config.hardware import Split, capacity_of, split_of, splits_of
from agileml.config.job import ConfigError, from_values


def config(machines: dict[str, Any], **more: Any) -> Any:
    return from_values({"application": "mlr", "clocks": 9, "machines": machines} | more)


REPLICA = {"application": "torch", "exchange": "allreduce", "optimizer": {"kind": "torch", "name": "AdamW"}}


@pytest.mark.parametrize(
    ("machines", "more", "cores", "expected"),
    [
        ({}, {}, 1, Split(1, 1)),
        ({}, {}, 36, Split(36, 1)),
        ({"threads": 4}, {"deterministic": False}, 36, Split(9, 4)),
        ({"threads": 5}, {"deterministic": False}, 36, Split(7, 5)),
        ({"workers": 2}, {}, 4, Split(2, 1)),
        ({"gpus": 4}, {}, 36, Split(4, 1)),
        ({"gpus": 0.5}, {}, 8, Split(8, 1)),
        ({}, {"model": {"threads": 2}}, 8, Split(4, 2)),
        ({}, {"model": {"threads": 4}}, 2, Split(1, 4)),  # as the model says, with fewer cores as well
        ({}, REPLICA, 8, Split(1, 8)),  # one process has the parameters
        ({"workers": 1}, REPLICA, 8, Split(1, 8)),
        ({"threads": 4}, REPLICA, 8, Split(1, 4)),
        ({}, REPLICA | {"model": {"threads": 2}}, 8, Split(1, 2)),
        ({"gpus": 1}, REPLICA, 8, Split(1, 1)),
    ],
)
def test_a_machine_computes_with_all_its_cores(
    machines: dict[str, Any], more: dict[str, Any], cores: int, expected: Split
) -> None:
    assert split_of(config(machines, **more), cores) == expected


def test_one_process_has_one_gpu() -> None:
    with pytest.raises(
        ConfigError, match=r"machines\.gpus: found 4 with optimizer.kind torch, expected at most 1"
    ):
        config({"gpus": 4}, **REPLICA)


PIPELINE = {"application": "torch", "pipeline": {"mode": "flush", "replicas": 2}}


@pytest.mark.parametrize(
    ("machines", "more", "cores", "expected"),
    [
        ({}, {}, 8, 4.0),
        ({"workers": 2}, {}, 8, 1.0),
        ({"gpus": 2}, {}, 36, 1.0),
        ({}, {"model": {"threads": 4}}, 8, 4.0),
        ({}, {"model": {"threads": 4}}, 2, 1.0),  # more threads than cores are no faster
        ({}, PIPELINE, 8, 0.5),  # a stage has one thread
        ({}, PIPELINE, 1, 0.5),
    ],
)
def test_a_machine_counts_for_the_cores_that_it_computes_with(
    machines: dict[str, Any], more: dict[str, Any], cores: int, expected: float
) -> None:
    assert capacity_of(config(machines, **more), cores, speed=0.5) == expected


@pytest.mark.parametrize(
    ("machines", "more", "cores", "expected"),
    [
        ({}, {}, 1, [Split(1, 1)]),
        ({}, {}, 2, [Split(2, 1), Split(1, 2)]),
        ({}, {}, 6, [Split(6, 1), Split(3, 2), Split(1, 4), Split(1, 6)]),
        ({}, {}, 8, [Split(8, 1), Split(4, 2), Split(2, 4), Split(1, 8)]),
        ({}, {"deterministic": True}, 8, [Split(8, 1)]),
        ({"threads": 2}, {}, 8, [Split(4, 2)]),
        ({"workers": 4}, {}, 8, [Split(4, 1)]),
        ({"gpus": 2}, {}, 8, [Split(2, 1)]),
        ({}, {"model": {"threads": 1}}, 8, [Split(8, 1)]),
        ({}, {"consistency": {"kind": "elastic"}}, 8, [Split(1, 1)]),
    ],
)
def test_a_machine_chooses_where_sums_may_depend_on_threads(
    machines: dict[str, Any], more: dict[str, Any], cores: int, expected: list[Split]
) -> None:
    assert splits_of(config(machines, **{"deterministic": False, **more}), cores) == tuple(expected)


@pytest.mark.parametrize(
    ("machines", "more", "cores", "sentence"),
    [
        (
            {"workers": 3},
            {},
            2,
            "machines.workers: found 3, expected at most 2: a machine's Ray node has 2 cores, an",
        ),
        (
            {"workers": 2},
            {},
            1,
            "machines.workers: found 2, expected at most 1: a machine's Ray node has 1 core, and",
        ),
        (
            {"threads": 4},
            {"deterministic": False},
            2,
            "machines.threads: found 4, expected at most 2: a machine's Ray",
        ),
    ],
)
def test_more_than_the_cores_is_one_sentence(
    machines: dict[str, Any], more: dict[str, Any], cores: int, sentence: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        split_of(config(machines, **more), cores)
    assert str(raised.value).startswith(sentence)
