"""A worker's forecast of its own speed: what it tells its predictor, and when."""

from __future__ import annotations

import numpy as np
import pytest

from agileml.core.compute.speed_forecast import CoreReading, SpeedForecast
from straggler.speed.narx import Narx
from straggler.speed.predictors import Resources, RestartingEma
from straggler.speed.traces import regimes


class Noted:
    """A predictor that notes what it hears, and expects 1, 2, 3 ..."""

    def __init__(self) -> None:
        self.heard: list[tuple[float, Resources]] = []
        self.asked: list[Resources] = []

    def observe(self, speed: float, resources: Resources = Resources(1, 1)) -> None:
        self.heard.append((speed, resources))

    def predict(self, resources: Resources = Resources(1, 1)) -> float:
        self.asked.append(resources)
        return float(len(self.asked))


def test_a_clock_is_heard_of_once_when_its_last_bundle_is_computed() -> None:
    noted = Noted()
    forecast = SpeedForecast(noted)
    forecast.computed(3, 4, 1.0, 12)
    forecast.computed(3, 6, 2.0, 12)
    assert (noted.heard, forecast.expected) == ([], 0.0)
    forecast.computed(3, 2, 1.0, 12)
    assert (noted.heard, forecast.expected) == ([(3.0, Resources(1, 1))], 1.0)
    forecast.computed(4, 8, 4.0, 12)  # a change of members deals the rest to others
    forecast.computed(5, 12, 6.0, 12)
    assert [speed for speed, _ in noted.heard] == [3.0, 2.0]
    assert forecast.expected == 2.0


def test_a_clock_without_a_time_says_nothing() -> None:
    noted = Noted()
    SpeedForecast(noted).computed(0, 4, 0.0, 4)
    assert noted.heard == []


def test_what_it_had_is_the_clocks_mean_and_what_it_has_the_latest_stretch() -> None:
    noted = Noted()
    forecast = SpeedForecast(noted)
    run_s = wait_s = 0.0
    for at in range(11):  # a second of a clock; another program comes after six tenths
        forecast.measured(CoreReading(at / 10, run_s, wait_s, 0.8 if at < 5 else 0.5))
        share = 1.0 if at < 6 else 0.5
        run_s, wait_s = run_s + 0.1 * share, wait_s + 0.1 * (1 - share)
    forecast.computed(0, 1, 1.0, 1)
    assert noted.heard[0][1] == Resources(pytest.approx(0.8), 0.8)
    assert noted.asked == [Resources(pytest.approx(0.5), 0.5)]
    forecast.measured(CoreReading(2.0, run_s, wait_s, 0.5))  # it waited for others, and wanted no core
    forecast.computed(1, 1, 1.0, 1)
    assert noted.asked[1].cpu == pytest.approx(0.5)


def test_with_readings_narx_knows_a_speed_before_it_is_measured() -> None:
    """The next speed of a made trace, from readings of the core that the worker had a moment before it."""
    trace = regimes(5, 400)
    errors: dict[str, list[float]] = {"narx": [], "ema": []}
    forecast, average = SpeedForecast(Narx()), RestartingEma()
    forecast.measured(CoreReading(0.0, 0.0, 0.0, float(trace.memory[0])))
    now_s = run_s = wait_s = 0.0
    shares = [*map(float, trace.cpu), 1.0]
    for clock, (speed, _) in enumerate(trace):
        if clock > 1:
            errors["narx"].append((forecast.expected - speed) ** 2)
            errors["ema"].append((average.predict() - speed) ** 2)
        for seconds, share in ((1.0, shares[clock]), (0.15, shares[clock + 1])):
            now_s, run_s = now_s + seconds, run_s + seconds * share
            wait_s += seconds * (1 - share)
            forecast.measured(CoreReading(now_s, run_s, wait_s, float(trace.memory[clock])))
        forecast.computed(clock, 100, 100 / speed, 100)
        average.observe(speed)
    assert np.mean(errors["narx"]) < 0.8 * np.mean(errors["ema"])
