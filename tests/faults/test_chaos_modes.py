"""Twelve random faults on real nodes in each way to share work and parameters that a result may depend on.

What may not change is the bits of one process, or those of one process that follows the log of the run. SSP promises
neither: there each item must have been counted as often as the clocks say.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.utils.data import TensorDataset

from agileml.cli.chaos import run_chaos
from agileml.config.job import from_values
from tests.faults.fault_rig import CHAOS_SEEDS
from tests.faults.test_pipelines import TIED

pytestmark = [pytest.mark.slow, pytest.mark.cluster]
ITEMS, BATCH = 1024, 64
MACHINES = {"reliable": 1, "transient": 3, "max": 6}
UNEQUAL = {"unit_s": 0.002, "speeds": {"m0": 0.4}}  # the others have something to help with


class Counting(torch.nn.Module):
    """Parameter i falls by one whenever item i is in a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.left = torch.nn.Parameter(torch.zeros(ITEMS))

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        return self.left[numbers]


def step(model: Counting, batch: Any) -> torch.Tensor:
    return model(batch[0]).mean()


def numbers() -> TensorDataset:
    return TensorDataset(torch.arange(ITEMS))


MLR = {
    "application": "mlr",
    "data": {"kind": "digits"},
    "optimizer": {"kind": "adam", "learning_rate": 0.05},
    "clocks": 300,
    "clocks_per_pass": 4,
    "slices": 16,
    "machines": MACHINES,
}
STAGES = TIED | {"clocks": 200, "slices": 8, "machines": {"reliable": 1, "transient": 3, "max": 4}}
# Without a flush the norm of all gradients is never known.
STALE = STAGES | {"optimizer": {k: v for k, v in TIED["optimizer"].items() if k != "clip_norm"}}
JOBS: Mapping[str, Mapping[str, Any]] = {
    "helping": MLR | {"helping": True, "pace": UNEQUAL, "units_per_slice": 4},
    "elastic": MLR | {"consistency": {"kind": "elastic", "range": 5}, "pace": UNEQUAL},
    "flush": STAGES | {"pipeline": {"mode": "flush"}},
    "zero-bubble": STAGES | {"pipeline": {"mode": "flush", "order": "zero-bubble"}},
    "stash": STALE | {"pipeline": {"mode": "stash"}},
    "vertical-sync": STALE | {"pipeline": {"mode": "stash", "vertical_sync": True}},
}


@pytest.mark.parametrize("seed", range(CHAOS_SEEDS))
@pytest.mark.parametrize("mode", JOBS)
def test_twelve_faults_change_no_bit(mode: str, seed: int, tmp_path: Path) -> None:
    chaos = run_chaos(from_values(JOBS[mode]), seed, 12, tmp_path / "chaos")
    print(chaos)
    assert chaos.same_bits is True and chaos.is_good, str(chaos)


@pytest.mark.parametrize("seed", range(CHAOS_SEEDS))
def test_with_ssp_and_helpers_each_item_counts_once(seed: int, tmp_path: Path) -> None:
    here = "tests.faults.test_chaos_modes"
    values = {
        "application": "torch",
        "data": {"dataset": f"{here}:numbers"},
        "model": {"module": f"{here}:Counting", "step": f"{here}:step", "batch_size": BATCH},
        "optimizer": {"kind": "sgd", "learning_rate": float(BATCH)},
        "clocks": 300,
        "slices": 16,
        "machines": MACHINES,
        "consistency": {"kind": "ssp", "slack": 1},
        "helping": True,
        "pace": UNEQUAL,
    }
    chaos = run_chaos(from_values(values), seed, 12, tmp_path / "chaos")
    print(chaos)
    assert chaos.is_good, str(chaos)
    (model,) = (tmp_path / "chaos").rglob("model.safetensors")
    counts = -load_file(model)["left"]
    passes = 300 * BATCH // ITEMS
    assert counts.sum() == 300 * BATCH
    assert counts.min() >= passes and counts.max() <= passes + 1
