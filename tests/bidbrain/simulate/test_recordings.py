"""The figures of record on the real recordings; skipped where they are not."""

from pathlib import Path

import pytest

from bidbrain.config import load_config
from bidbrain.history.availability import read_trace
from bidbrain.history.readers import read_history
from bidbrain.simulate.experiment import summarise
from bidbrain.simulate.plan import make_plan
from bidbrain.simulate.pool_plan import make_pool_plan
from bidbrain.simulate.workers import Pool

ROOT = Path(__file__).resolve().parents[3]
# scheme: (cost, runtime, tolerance)
CALM = {
    "standard_checkpoint": (0.147, 1.21, 0.03),
    "proteus": (0.114, 0.68, 0.02),
    "renewal": (0.096, 0.70, 0.02),
}
ROUGH = {
    "standard_checkpoint": (0.225, 1.21, 0.02),
    "proteus": (0.190, 0.68, 0.02),
    "renewal": (0.132, 0.71, 0.02),
}


def rows_of(name: str, recording: Path, schemes: list[str]):
    overrides = {"history": [recording], "schemes": schemes, "job_hours": [20.0]}
    config = load_config(ROOT / "configs" / name, overrides)
    experiment = make_plan(config, read_history(config.history)).experiment
    with Pool(1) as pool:
        results = experiment.run(pool, lambda _: None)
    return {result.scheme: summarise(result, 0) for result in results}


@pytest.mark.parametrize(
    ("name", "file", "targets", "oracle"),
    [
        ("simulate_2016.yaml", "2016-02_2016-04_us-east-1.csv.gz", CALM, 0.031),
        ("simulate_2015.yaml", "2015-03_2015-08_us-east-1.csv.gz", ROUGH, 0.064),
    ],
)
def test_the_table_of_record(recordings: Path, name: str, file: str, targets: dict, oracle: float) -> None:
    rows = rows_of(name, recordings / "spot" / file, [*targets, "one_hour_oracle"])
    for scheme, (cost, runtime, tolerance) in targets.items():
        assert rows[scheme].cost == pytest.approx(cost, rel=tolerance)
        assert rows[scheme].runtime == pytest.approx(runtime, rel=tolerance)
        assert rows[scheme].unfinished == 0
    assert rows["one_hour_oracle"].cost == pytest.approx(oracle, rel=0.05)


def test_one_recorded_pool(recordings: Path) -> None:
    path = recordings / "availability" / "aws_us-west-2a_v100_16nodes_2023-08.json"
    config = load_config(
        ROOT / "configs" / "simulate_today.yaml", {"availability": [path], "schemes": ["elastic"]}
    )
    with Pool(1) as pool:
        (result,) = make_pool_plan(config, [read_trace(path)]).experiment.run(pool, lambda _: None)
    row = summarise(result, 0)
    assert row.cost == pytest.approx(0.333, rel=0.03)
    assert row.runtime == pytest.approx(7.2, rel=0.03)


def test_the_recording_of_2015_has_one_hole(recordings: Path) -> None:
    history = read_history([recordings / "spot" / "2015-03_2015-08_us-east-1.csv.gz"])
    assert [round(hole.seconds / 3600) for hole in history.holes] == [56]
