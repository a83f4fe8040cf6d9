"""The keys of a simulation are the options of the command, and stand in the guide with their defaults."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
import typer.main

from agileml.cli import app
from bidbrain.cli.run import processes_of
from bidbrain.config import DEFAULT_SCHEMES, SimulateConfig
from bidbrain.simulate.plan import OF_POOLS
from bidbrain.simulate.pool_plan import DEFAULTS, OF_PRICES
from tests.bidbrain.cli.test_commands import ROOT, proteus

GUIDE = ROOT / "docs" / "guides" / "simulate-bidding.md"


def test_every_key_is_an_option() -> None:
    command = typer.main.get_command(app).commands["simulate"]  # type: ignore[attr-defined]
    options = {parameter.name for parameter in command.params} - {"config", "sweep", "as_json"}
    assert options == set(SimulateConfig.model_fields)


def test_there_are_as_many_processes_as_cores_that_this_one_may_use() -> None:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert processes_of(SimulateConfig()) == 1
    finally:
        os.sched_setaffinity(0, before)
    assert processes_of(SimulateConfig()) == len(before)
    assert processes_of(SimulateConfig(processes=3)) == 3


def documented() -> dict[str, tuple[str, str]]:
    """By key: its default on prices and with availability, as the guide has them."""
    section = GUIDE.read_text().partition("\n## Keys and defaults\n")[2].partition("\n## ")[0]
    found: dict[str, tuple[str, str]] = {}
    for row in re.findall(r"^\| (`.*) \|$", section, re.M):
        keys, *defaults, _ = (cell.strip() for cell in row.split("|"))
        names = re.findall(r"`(\w+)`", keys)
        each = [text.split(", ") if len(names) > 1 else [text] for text in defaults]
        prices, pools = (parts if len(parts) == len(names) else parts * len(names) for parts in each)
        found |= dict(zip(names, zip(prices, pools, strict=True), strict=True))
    return found


@pytest.mark.parametrize("key", SimulateConfig.model_fields)
def test_the_guide_has_its_default(key: str) -> None:
    on_prices, on_pools = documented()[key]
    assert (on_prices == "refused") is (key in (*OF_POOLS, "availability"))
    assert (on_pools == "refused") is (key in (*OF_PRICES, "history"))
    usual: Any = SimulateConfig.model_fields[key].default
    if isinstance(usual, list) and key == "job_hours":
        usual = usual[0]
    if isinstance(usual, float | int) and not isinstance(usual, bool):
        for text, default in ((on_prices, usual), (on_pools, DEFAULTS.get(key, usual))):
            assert text in ("refused", "the same") or float(text) == default
    if key == "schemes":
        assert on_prices == ", ".join(f"`{name}`" for name in DEFAULT_SCHEMES)
        assert on_pools == ", ".join(f"`{name}`" for name in DEFAULTS[key])  # type: ignore[attr-defined]


def test_prices_may_be_made_without_a_config(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    made = ("simulate", "--made", "calm", "--out", tmp_path)
    assert "made: found it without types" in proteus(capsys, *made)[2]
    windows = ("--train", "2016-03-01/2016-03-03", "--evaluate", "2016-03-03/2016-03-05")
    job = ("--types", "c4.xlarge", "--schemes", "on_demand", "--job-hours", 2, "--starts", 2)
    code, said, error = proteus(capsys, *made, *windows, *job)
    assert code == 0, error
    assert "note: the prices are made (calm, seed 0)" in said
    assert "--made: found calm with a history" in proteus(capsys, *made, "--history", tmp_path)[2]
