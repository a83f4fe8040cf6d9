"""A loop over passes: where it is, whatever clocks its machine is given."""

from __future__ import annotations

from pathlib import Path
from textwrap import indent

import pytest

from agileml.application import Settings, Unit
from agileml.apps.loop.module import ScriptModule
from tests.agileml.apps.loop.scripts import BODY, script

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_loop_knows_the_pass_and_the_clock_also_where_the_run_goes_back(tmp_path: Path) -> None:
    """As after a loss, when the newest cut is of the pass before: a body may go by both."""
    seen = tmp_path / "seen"
    rest = f"""
for number in trainer.passes():
    for batch in loader:
        with open({str(seen)!r}, "a") as file:
            file.write(f"{{number}}/{{trainer.clock}} ")
{indent(BODY.strip(), "        ")}
"""
    app = ScriptModule(Settings(model={"script": script(tmp_path, rest=rest)}, slices=2))
    tables, share = {table.name: app.initial(table) for table in app.tables()}, app.load(0)
    for clock in (9, 10, 11, 8, 9, 10, 21, 3):  # of 10 in a pass
        app.process(Unit(clock, 0), share, tables)
    app.ended()
    assert seen.read_text().split() == ["0/9", "1/10", "1/11", "0/8", "0/9", "1/10", "2/21", "0/3"]
