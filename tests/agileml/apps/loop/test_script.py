"""A script that is run more than once in a process."""

from pathlib import Path

import pytest

import agileml
from tests.agileml.apps.loop.scripts import BODY, HEAD, loop, script, values

KEEPS = """
import logging, sys
out = sys.stdout
log = logging.Logger("mine")
log.addHandler(logging.StreamHandler(out))
"""


def test_a_script_may_keep_its_standard_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As a logger does. Where it begins anew before it trains nothing of it is shown, but its loop is."""
    path = script(
        tmp_path, head=HEAD + KEEPS, rest=loop(BODY + "print('printed', file=out)\nlog.info('logged')\n")
    )
    agileml.run(
        values(path, clocks=4, slices=1, machines={"reliable": 1, "transient": 0, "max": 1}),
        sequential=True,
        out=str(tmp_path / "out"),
    )
    found = capsys.readouterr()
    assert "Logging error" not in found.err
    assert found.out.count("printed") == found.out.count("logged") >= 3
