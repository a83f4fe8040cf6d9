"""Which machine helped which, in sums that go with what each had to compute."""

from __future__ import annotations

import pytest

from agileml.events.run import HelpGiven, Work, WorkDone
from agileml.runs.help import HelpSums


def test_the_share_that_was_taken_over_is_of_the_machines_own_work() -> None:
    """Machines that take turns compute for each other, too: that is not a part of what they were dealt."""
    sums = HelpSums()
    sums.add(WorkDone(1, 10, 10, {"m0": Work(150, 15.0, 0.0), "m1": Work(50, 10.0, 5.0)}))
    sums.add(HelpGiven(1, 10, 10, {"m0": {"m1": 50}}))
    sums.add(WorkDone(1, 20, 10, {"m0": Work(60, 12.0, 3.0), "m1": Work(140, 14.0, 1.0)}))
    sums.add(HelpGiven(1, 20, 10, {"m1": {"m0": 40}}))
    first, second = sums.rows()
    assert (first.helper, first.helped, first.units) == ("m0", "m1", 50)
    assert first.share == pytest.approx(50 / 200), "each was dealt 100 units in 10 clocks"
    assert second.share == pytest.approx(40 / 200)
    assert second.spared_s == pytest.approx(40 * 27 / 210), "at the speed of all its work"
