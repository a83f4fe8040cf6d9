"""What a price history and a configuration make of each other."""

from pathlib import Path

import pytest

from bidbrain.config import ConfigError, SimulateConfig, load_config
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


def test_a_price_of_the_table_that_may_be_wrong_or_goes_unused_is_noted() -> None:
    """The table is that of us-east-1, and a misspelt type's price is nobody's."""
    rows = [(START_S, 30_000), (START_S + 30 * 24 * HOUR, 29_000)]
    home, abroad = "c4.xlarge@us-east-1a", "c4.xlarge@eu-central-1b"

    def notes(*names: str, **said: object) -> str:
        config = SimulateConfig(**WINDOWS, **said)
        return "\n".join(make_plan(config, history_of(dict.fromkeys(names, rows), rows[-1][0])).notes)

    assert "us-east-1, also for eu-central-1: the package has no others" in notes(home, abroad)
    assert "us-east-1, also" not in notes(home)
    assert "us-east-1, also" not in notes(home, abroad, on_demand={"c4.xlarge": 0.227})
    assert "on_demand: nothing comes of c4.xlrage, as" in notes(home, on_demand={"c4.xlrage": 0.2})
    named = {"on_demand": {"m4.xlarge": 0.2}, "vcpus": {"m4.xlarge": 4, "c4.xlarge": 4}}
    assert "nothing comes" not in notes(home, reliable_type="m4.xlarge", **named)


def test_a_market_that_training_never_saw_is_noted() -> None:
    """Its table knows no eviction, so it looks the safest of all."""
    rows = [(START_S + day * 24 * HOUR, 30_000 + day) for day in range(30)]
    names = ("c4.xlarge@us-east-1a", "c4.xlarge@us-east-1b", "c4.xlarge@us-east-1c")
    own = {name: rows[first:] for name, first in zip(names, (0, 8, 9), strict=True)}
    notes = make_plan(SimulateConfig(**WINDOWS), history_of(own, rows[-1][0])).notes
    assert [note for note in notes if "train has no hour of" in note] == [
        "train has no hour of c4.xlarge@us-east-1c: the tables of proteus say that nobody is ever evicted there"
    ]


def test_a_job_below_one_machine_is_refused_where_machines_are_whole() -> None:
    """No job of `expected_cost` ended, and the history was said to be too short."""
    rows = [(START_S + day * 24 * HOUR, 30_000) for day in range(30)]
    history = history_of({"c4.2xlarge@us-east-1a": rows}, rows[-1][0])
    small = {**WINDOWS, "job_vcpus": 4, "schemes": ["on_demand", "expected_cost"]}
    with pytest.raises(ConfigError, match=r"the cap of 6 vCPUs has no room for one of c4\.2xlarge .8.$"):
        make_plan(SimulateConfig(**small), history)
    make_plan(SimulateConfig(**{**small, "cap": 2.0}), history)
    make_plan(SimulateConfig(**{**small, "schemes": ["renewal"]}), history)


def test_the_linear_program_says_what_it_does_not_know() -> None:
    rows = [(START_S + day * 24 * HOUR, 30_000) for day in range(30)]
    history = history_of({"c4.xlarge@us-east-1a": rows}, rows[-1][0])

    def said(**more: object) -> list[str]:
        config = SimulateConfig(schemes=["renewal", "paid_hours_bound"], **WINDOWS, **more)
        return [note.partition(":")[0] for note in make_plan(config, history).notes if "paid_hours" in note]

    assert said() == []
    assert said(rules="per_second") == ["paid_hours_bound pays whole hours"]
    assert said(phi=0.8, rules="per_second_paid") == [
        "paid_hours_bound pays whole hours",
        "paid_hours_bound leaves phi out",
    ]


def test_training_on_what_came_after_the_jobs_is_noted() -> None:
    rows = [(START_S + day * 24 * HOUR, 30_000) for day in range(30)]
    history = history_of({"c4.xlarge@us-east-1a": rows}, rows[-1][0])
    late = {"train": "2016-03-20/2016-03-29", "evaluate": "2016-03-02/2016-03-20", "job_hours": [2.0]}
    note = "train is later than evaluate: tables know prices that came after the jobs"
    assert note in make_plan(SimulateConfig(**late), history).notes
    assert note not in make_plan(SimulateConfig(**WINDOWS), history).notes


def test_paths_of_a_config_may_begin_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No shell reads a config: results went to a folder that is called ~."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "c.yaml").write_text("history: ~/a.csv\navailability: [~/b.json]\nout: ~/results\n")
    config = load_config(tmp_path / "c.yaml", {})
    assert config.history == [tmp_path / "a.csv"] and config.availability == [tmp_path / "b.json"]
    assert config.out == tmp_path / "results"
