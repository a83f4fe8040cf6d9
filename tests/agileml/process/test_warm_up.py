"""Before a machine says that it is ready, everything that its first clock needs is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba.core.dispatcher import Dispatcher

from agileml.application import Application, Settings, Table, Unit, Update, Updates
from agileml.apps import matrix_factorization
from agileml.core.parameters import fold, kernels
from agileml.process.spec import RunSpec
from agileml.process.warm_up import load_kernels
from tests.agileml.process.engine_rig import Rig
from tests.agileml.process.test_engine import MF, MLR, PLAN, job


def specializations() -> dict[str, set[Any]]:
    """By compiled kernel: the types that it was compiled for."""
    found = {
        name: set(kernel.signatures)
        for module in (fold, kernels, matrix_factorization)
        for name, kernel in vars(module).items()
        if isinstance(kernel, Dispatcher)
    }
    assert len(found) >= 7
    return found


STEPS = {**MF, "model": {}}


@pytest.mark.parametrize(
    ("base", "deterministic"),
    [
        pytest.param(MF, True, id="mf gradients, deterministic"),
        pytest.param(MF, False, id="mf gradients", marks=pytest.mark.slow),
        pytest.param(STEPS, True, id="mf steps, deterministic", marks=pytest.mark.slow),
        pytest.param(STEPS, False, id="mf steps"),
        pytest.param(MLR, True, id="mlr, deterministic"),
        pytest.param(MLR, False, id="mlr", marks=pytest.mark.slow),
    ],
)
def test_a_run_compiles_nothing_after_warming_up(
    base: Mapping[str, Any], deterministic: bool, tmp_path: Path
) -> None:
    """The same kernels, for the same types, whether arrays came over sockets or were made here."""
    from agileml.config.job import from_values

    values = job(base, plan=PLAN, deterministic=deterministic)
    spec = RunSpec("warm", from_values(values))
    application = spec.build()
    load_kernels(spec.job(application))
    application.warm_up()
    before = specializations()
    ran = Rig(values, tmp_path).finish()
    assert ran.tables is not None
    assert specializations() == before


class Late(Application):
    """Notes what was called first."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.calls: list[str] = []

    def tables(self) -> list[Table]:
        return [Table("w", 4, 4, update=Update.STEP)]

    def warm_up(self) -> None:
        self.calls.append("warm_up")
        if self.settings.model.get("broken"):
            raise RuntimeError("no such compiler")

    def load(self, slice_index: int) -> int:
        self.calls.append("load")
        return slice_index

    def process(self, unit: Unit, items: int, parameters: Mapping[str, Any]) -> Updates:
        self.calls.append("process")
        return Updates({"w": np.ones((4, 4), np.float32)}, 1.0, 1)


def test_an_application_warms_up_before_anything_else(tmp_path: Path) -> None:
    application = Late(Settings(slices=8))
    machines = {"reliable": 1, "transient": 0, "max": 8}
    Rig(job(MLR, application="package.module:Class", machines=machines), tmp_path, application).finish()
    assert application.calls[0] == "warm_up"
    assert application.calls.count("warm_up") == 1
    assert "process" in application.calls


def test_a_warm_up_that_fails_ends_the_run_with_its_traceback(tmp_path: Path) -> None:
    application = Late(Settings(slices=8, model={"broken": True}))
    ran = Rig(job(MLR, application="package.module:Class"), tmp_path, application).finish()
    assert ran.halted is not None
    assert "warm_up(): RuntimeError: no such compiler" in ran.halted.reason
    assert 'raise RuntimeError("no such compiler")' in ran.halted.trace
