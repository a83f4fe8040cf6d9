"""The best parameters of a run on Ray nodes, one of which is killed, are in its folder."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import agileml
from tests.agileml.driver.test_best_model import app, values

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def test_the_best_is_that_of_one_process(tmp_path: Path) -> None:
    more = {"early_stopping": {"patience": 3}, "clocks": 200}
    alone = agileml.run(values(**more), app(), sequential=True, out=str(tmp_path / "alone"))
    plan = [{"at_clock": 7, "kill": 1}]
    result = agileml.run(values(**more, plan=plan), app(), out=str(tmp_path / "out"))
    assert result.summary["best"] == alone.summary["best"] and result.summary["stopped"]
    one, other = (load_file(r.folder / "best.safetensors") for r in (result, alone))
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
