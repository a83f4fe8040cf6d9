"""Experiments on pools whose capacity was recorded."""

import pytest

from bidbrain.config import ConfigError, SimulateConfig
from bidbrain.simulate.experiment import summarise
from bidbrain.simulate.pool_plan import make_pool_plan
from bidbrain.simulate.workers import Pool
from tests.bidbrain.makers import made_trace, pool


def test_what_does_not_fit_pools_is_refused() -> None:
    traces = [pool("p", [16] * 2000)]
    with pytest.raises(ConfigError, match="bids on prices"):
        make_pool_plan(SimulateConfig(schemes=["proteus"]), traces)
    with pytest.raises(ConfigError, match="paid_hours_bound bids on prices"):
        make_pool_plan(SimulateConfig(schemes=["paid_hours_bound"]), traces)
    with pytest.raises(ConfigError, match="one name"):
        make_pool_plan(SimulateConfig(), traces * 2)


@pytest.mark.parametrize(
    ("key", "value"), [("grant_delay_s", 60), ("job_vcpus", 8), ("min_delta", 0.01), ("types", ["c4.xlarge"])]
)
def test_an_option_that_pools_do_not_know_is_refused(key: str, value: object) -> None:
    """As `--sweep grant_delay_s=0,60`, of which all values gave one result."""
    config = SimulateConfig.model_validate({key: value})
    with pytest.raises(
        ConfigError, match=rf"^{key}: found .*, expected it left out: nothing comes of it with"
    ):
        make_pool_plan(config, [pool("p", [16] * 2000)])


def test_an_experiment_on_made_pools() -> None:
    traces = [made_trace(name, 16, 400, 3.0, 2.0, 5) for name in ("a", "b", "c")]
    config = SimulateConfig(job_hours=[10.0], starts=20)
    plan = make_pool_plan(config, traces)
    with Pool(1) as processes:
        results = plan.experiment.run(processes, lambda _: None)
    rows = {result.scheme: summarise(result, 0) for result in results}
    assert rows["on_demand"].cost == 1.0
    assert 0.3 < rows["elastic"].cost < rows["static_checkpoint"].cost
    assert rows["elastic"].runtime < rows["static_checkpoint"].runtime
    assert rows["spot_2026"].runtime_p95 <= 1.5
