"""Made markets for all tests of bidbrain; the real recordings, where they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from bidbrain.history.generate import Character, generate
from bidbrain.history.prices import History
from bidbrain.instants import Interval
from bidbrain.setting import Setting
from tests.bidbrain.makers import ON_DEMAND, make_setting

RECORDINGS = Path(__file__).resolve().parents[2].parent / "shared" / "data"
WINDOW = Interval.parse("2016-03-01/2016-04-05")


@pytest.fixture(scope="session")
def turbulent() -> History:
    """Five weeks of three made turbulent markets of two types."""
    markets = [
        ("c4.xlarge", "us-east-1a", ON_DEMAND["c4.xlarge"]),
        ("c4.xlarge", "us-east-1b", ON_DEMAND["c4.xlarge"]),
        ("c4.2xlarge", "us-east-1a", ON_DEMAND["c4.2xlarge"]),
    ]
    return generate(markets, WINDOW, Character.TURBULENT, 7)


@pytest.fixture(scope="session")
def setting(turbulent: History) -> Setting:
    return make_setting(turbulent)


@pytest.fixture(scope="session")
def recordings() -> Path:
    """../shared/data beside the checkout; tests that need it are skipped where it is not."""
    if not RECORDINGS.is_dir():
        pytest.skip("the real recordings (../shared/data) are not here")
    return RECORDINGS
