"""What a job would cost, from several starts in a recording."""

from dataclasses import replace

import pytest

from bidbrain.policy.registry import find_scheme
from bidbrain.setting import Workload
from bidbrain.simulate.forecast import forecast
from tests.bidbrain.makers import HOUR, history_of, make_setting

CHEAP, DEAR = 60_000, 500_000  # of 209,000 on demand
SCHEME = find_scheme("expected_cost")


def setting_of(rows: list[tuple[int, int]]):
    history = history_of({"c4.xlarge@us-east-1a": rows}, 40 * HOUR)
    setting = make_setting(history, Workload(8, 2.0, 1.0), rules="per_second")
    return replace(setting, reliable=replace(setting.reliable, vcpus=0)), history


def test_jobs_that_do_not_finish_are_counted_and_not_averaged() -> None:
    """From the 20th hour on nothing is worth buying: a job that starts there costs nothing, and does nothing."""
    setting, history = setting_of([(0, CHEAP), (20 * HOUR, DEAR)])
    found = forecast(setting, SCHEME, history)
    assert 0 < found.finished < found.starts
    setting, history = setting_of([(0, CHEAP), (39 * HOUR, DEAR)])
    alone = forecast(setting, SCHEME, history)
    assert alone.finished == alone.starts
    assert found.cost == pytest.approx(alone.cost, rel=0.01) and found.hours == pytest.approx(
        alone.hours, rel=0.01
    )
    assert found.pools[0].machine_h == pytest.approx(alone.pools[0].machine_h, rel=0.01)


def test_a_pool_that_the_recording_lacks_is_said() -> None:
    setting, history = setting_of([(0, CHEAP)])
    listing = setting.listings[0]
    other = replace(listing, market=replace(listing.market, zone="us-east-1b"))
    found = forecast(replace(setting, listings=(listing, other)), SCHEME, history)
    assert found.gone == ("the recording has no prices of c4.xlarge@us-east-1b: no figure counts them",)
    assert forecast(setting, SCHEME, history).gone == ()


def test_a_recording_in_which_no_job_finishes_is_too_short() -> None:
    setting, history = setting_of([(0, DEAR), (39 * HOUR, CHEAP)])
    with pytest.raises(ValueError, match="none of 10 jobs finishes within it"):
        forecast(setting, SCHEME, history)
