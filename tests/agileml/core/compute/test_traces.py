"""Tracebacks of the user's code begin with the user's frames."""

import pytest

from agileml.core.compute.traces import user_trace
from agileml.core.compute.unit_error import UnitError, blamed


def test_frames_of_the_package_before_the_users_are_left_out() -> None:
    def mine() -> None:
        raise ValueError("mine")

    with pytest.raises(UnitError) as caught, blamed("clock 0"):
        mine()
    trace = caught.value.trace
    assert "in mine\n" in trace and trace.endswith("ValueError: mine\n") and "unit_computer.py" not in trace


def test_an_error_of_another_process_has_its_traceback() -> None:
    error, there = ValueError("far"), RuntimeError()
    there.tb = '\n"""\nTraceback ...\nValueError: far\n"""'  # type: ignore[attr-defined]  as concurrent.futures has it
    error.__cause__ = there
    assert user_trace(error) == "Traceback ...\nValueError: far"
