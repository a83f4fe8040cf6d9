"""The plan of docs/guides/faults.md is one that a config takes, with every kind in it."""

from pathlib import Path

import yaml

from agileml.config.job import from_values
from agileml.config.plan import KINDS
from tests.faults.fault_rig import MLR


def test_the_plan_of_the_page_has_every_kind() -> None:
    text = (Path(__file__).parents[2] / "docs" / "guides" / "faults.md").read_text()
    block = next(part for part in text.split("```yaml\n")[1:] if part.startswith("plan:")).split("```")[0]
    machines = {"reliable": 2, "transient": 4, "max": 8}
    config = from_values({**MLR, "clocks": 200, "machines": machines, **yaml.safe_load(block)})
    assert {type(event) for event in config.plan} == set(KINDS)
