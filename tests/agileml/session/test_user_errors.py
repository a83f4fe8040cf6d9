"""Memory that is not there: a sentence where the config asked for it, a traceback where the user's code did."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from agileml.config.job import from_values
from agileml.errors import RunError
from agileml.session import run
from agileml.session.user_errors import blame_user

TOO_MANY = 10**12


def test_a_model_that_no_computer_holds_is_one_sentence(tmp_path: Path) -> None:
    values = {"application": "mf", "data": {"kind": "made"}, "model": {"rank": TOO_MANY}, "clocks": 1}
    with pytest.raises(RunError, match=r"^training: Unable to allocate .* array with shape") as raised:
        run(from_values({**values, "out": str(tmp_path / "run")}), sequential=True)
    assert raised.value.trace == ""


def test_the_users_own_line_is_shown() -> None:
    with (
        pytest.raises(RunError, match=r"^tables\(\): .*MemoryError: Unable to allocate") as raised,
        blame_user("tables()"),
    ):
        np.ones(TOO_MANY * 1000)
    assert "np.ones(TOO_MANY * 1000)" in raised.value.trace
