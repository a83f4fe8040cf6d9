"""What a price history and a configuration make of each other."""

import pytest

from bidbrain.config import SimulateConfig
from bidbrain.machines import UnknownTypeError
from bidbrain.simulate.plan import make_plan
from tests.bidbrain.makers import history_of

HOUR = 3600
START_S = 1_456_790_400  # 2016-03-01
WINDOWS = {"train": "2016-03-01/2016-03-10", "evaluate": "2016-03-10/2016-03-30", "job_hours": [2.0]}


def test_the_on_demand_price_of_linux_is_not_taken_for_another_product() -> None:
    rows = [(START_S, 300_000), (START_S + 30 * 24 * HOUR, 290_000)]
    names = ("c4.xlarge@us-east-1a/Windows", "c4.2xlarge@us-east-1a/Windows", "c4.xlarge@us-east-1a")
    history = history_of(dict.fromkeys(names, rows), rows[-1][0])
    for more in ({}, {"types": ["c4.xlarge"]}):
        with pytest.raises(
            UnknownTypeError, match=r"for c4\.\w+ with Windows, only with Linux .say --on-demand"
        ):
            make_plan(SimulateConfig(product="Windows", **WINDOWS, **more), history)
    plan = make_plan(SimulateConfig(product="Windows", on_demand={"c4.xlarge": 0.4}, **WINDOWS), history)
    assert plan.experiment.setting.reference == 400_000
    assert plan.notes[0].startswith("left out, because no on-demand price is known: c4.2xlarge ")
    plan = make_plan(SimulateConfig(**WINDOWS), history)
    assert plan.experiment.setting.reference == 209_000
