"""An expired credential is said once, however often the market refuses, and once more when it is renewed."""

from __future__ import annotations

from agileml.market.outage import QUIET_S, Outage


def test_a_weekend_without_credentials_is_two_lines() -> None:
    outage = Outage()
    weekend_s = 60 * 3600
    said = [outage.failed(at_s, "spot prices: ExpiredToken", 30.0) for at_s in range(0, weekend_s, 30)]
    assert said[0] == "spot prices: ExpiredToken; it is asked again every 30 s"
    assert not any(said[1:])
    assert outage.worked(weekend_s) is None, "the next call may fail again"
    over = outage.worked(weekend_s + QUIET_S)
    assert over == f"it answers again, after {weekend_s // 30} failures in {weekend_s - 30} s"
    assert outage.worked(weekend_s + 2 * QUIET_S) is None


def test_a_new_reason_is_said_with_the_count_and_another_outage_from_its_start() -> None:
    outage = Outage()
    reasons = ["expired", "expired", "denied", "expired", "denied"]
    said = [outage.failed(30.0 * number, reason, 30.0) for number, reason in enumerate(reasons)]
    assert said[2] == "denied (failure 3 in a row); it is asked again every 30 s"
    assert [number for number, sentence in enumerate(said) if sentence] == [0, 2]
    assert outage.worked(120.0 + QUIET_S) == "it answers again, after 5 failures in 120 s"
    assert outage.failed(1000.0, "denied", 30.0) == "denied; it is asked again every 30 s"
