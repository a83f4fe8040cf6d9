"""The reference run: its bits depend neither on partitions nor on bundles nor on threads."""

import hashlib
from collections.abc import Mapping
from typing import Any

import numba
import numpy as np
import pytest
import threadpoolctl
from hypothesis import given, settings
from hypothesis import strategies as st

from agileml.application import Application, Array, Settings
from agileml.apps import build
from agileml.core.compute.threads import single_threaded
from agileml.core.parameters.optimizer import optimizer
from agileml.core.sequential import run_sequential
from tests.agileml.core.parameters.dealt import deal

MADE = {"users": 40, "items": 60, "ratings": 700}
JOBS: dict[str, tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "mf-steps": ("mf", MADE, {"rank": 5}, {"kind": "sgd", "learning_rate": 1.0}),
    "mf-momentum": (
        "mf",
        MADE,
        {"rank": 5, "mode": "gradients"},
        {"kind": "momentum", "learning_rate": 0.01},
    ),
    "mlr-adam": (
        "mlr",
        {"kind": "blobs", "examples": 300},
        {"l2": 0.5},
        {"kind": "adam", "learning_rate": 0.05},
    ),
}


def job(name: str) -> tuple[Application, dict[str, Any]]:
    kind, data, model, algorithm = JOBS[name]
    return build(kind, Settings(data, model, 3, slices=8, clocks_per_pass=4)), algorithm


def sha256(tables: Mapping[str, Array]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tables):
        digest.update(f"{name} {tables[name].dtype} {tables[name].shape}".encode())
        digest.update(tables[name].tobytes())
    return digest.hexdigest()


def result(name: str, **how: Any) -> str:
    application, algorithm = job(name)
    return sha256(run_sequential(application, optimizer=optimizer(**algorithm), clocks=6, parts=2, **how))


@pytest.mark.parametrize("name", JOBS)
@settings(deadline=None, derandomize=True, max_examples=12)
@given(data=st.data())
def test_the_bits_do_not_depend_on_who_had_what(name: str, data: st.DataObject) -> None:
    bundles = data.draw(st.permutations(deal(data, 0, 16)))
    partitions = data.draw(st.integers(1, 9))
    assert result(name, partitions=partitions, bundles=bundles) == result(name)


@pytest.mark.parametrize("name", JOBS)
def test_without_determinism_it_trains_as_well(name: str) -> None:
    application, algorithm = job(name)
    losses: dict[bool, list[float]] = {True: [], False: []}
    for deterministic, found in losses.items():
        run_sequential(
            application,
            optimizer=optimizer(**algorithm),
            clocks=40,
            deterministic=deterministic,
            partitions=3,
            on_clock=lambda clock, loss, examples, found=found: found.append(loss / examples),  # type: ignore[misc]
        )
    first, last = losses[True][:4], losses[True][-4:]
    assert np.mean(last) < 0.9 * np.mean(first)
    np.testing.assert_allclose(losses[False], losses[True], rtol=0.05)


def test_every_clock_is_told_once_in_order() -> None:
    application, algorithm = job("mlr-adam")
    seen: list[tuple[int, int]] = []
    run_sequential(
        application,
        optimizer=optimizer(**algorithm),
        clocks=8,
        on_clock=lambda clock, loss, examples: seen.append((clock, examples)),
    )
    assert [clock for clock, _ in seen] == list(range(8))
    assert sum(examples for _, examples in seen[:4]) == sum(examples for _, examples in seen[4:]) == 240


def test_threads_are_pinned_meanwhile_and_given_back() -> None:
    def threads() -> list[int]:
        return [numba.get_num_threads(), *(pool["num_threads"] for pool in threadpoolctl.threadpool_info())]

    with threadpoolctl.threadpool_limits(2):
        before = threads()
        assert before.count(2) > 1
        with single_threaded():
            assert set(threads()) == {1}
        assert threads() == before


def test_the_bits_do_not_depend_on_the_number_of_blas_threads() -> None:
    # Matrices that are large enough for BLAS to use threads.
    data = {"kind": "blobs", "examples": 4000, "features": 300, "classes": 30}
    application = build("mlr", Settings(data, slices=2, clocks_per_pass=2))
    found = set()
    for threads in (1, 2):
        with threadpoolctl.threadpool_limits(threads):
            assert {pool["num_threads"] for pool in threadpoolctl.threadpool_info()} == {threads}
            tables = run_sequential(application, optimizer=optimizer("sgd", learning_rate=0.5), clocks=4)
        found.add(sha256(tables))
        assert np.any(tables["weights"])
    assert len(found) == 1
