"""phi, sigma, lambda and nu recovered from clocks of a job whose true values are known."""

from __future__ import annotations

import numpy as np
import pytest

from bidbrain.live.decide import Measurements, measured_job
from bidbrain.live.estimators import Clock, Disturbance, Estimator, Sent, Stretch
from bidbrain.policy.footprint import scaling_efficiency
from bidbrain.setting import Workload

VCPUS = {"small": 4, "large": 8}
JOB_VCPUS = 64
WORK = 640.0  # vCPU seconds per clock


def speed(machines: dict[str, int], nu: dict[str, float], phi: float) -> float:
    vcpus = sum(count * VCPUS[kind] for kind, count in machines.items())
    ideal = sum(count * nu[kind] for kind, count in machines.items())
    return scaling_efficiency(vcpus, JOB_VCPUS, phi) * ideal


def stretch(seconds: float, machines: dict[str, int]) -> Stretch:
    return Stretch(seconds, {kind: count for kind, count in machines.items() if count})


def live_clocks(seed: int, nu: dict[str, float], phi: float, lambda_s: float, sigma_s: float) -> list[Clock]:
    """A job of 400 clocks: footprints that change every ten clocks or so, clocks that vary by 5%."""
    rng = np.random.default_rng(seed)
    machines = {"small": 8, "large": 2}
    clocks = []
    for _ in range(400):
        work = WORK * float(rng.lognormal(0.0, 0.05))  # what a clock really takes; its nominal work is WORK
        before = speed(machines, nu, phi)
        if rng.random() > 0.1:
            seconds = work / before
            clocks.append(Clock((stretch(seconds, machines),), WORK))
            continue
        evicted = bool(rng.random() < 0.5)
        other = {"small": int(rng.integers(1, 16)), "large": int(rng.integers(0, 8))}
        at_s = float(rng.random()) * work / before  # in the middle of a clock
        pause_s = (lambda_s if evicted else sigma_s) * float(rng.lognormal(0.0, 0.2)) / np.exp(0.02)
        after_s = pause_s + (work - at_s * before) / speed(other, nu, phi)
        kind = Disturbance.EVICTION if evicted else Disturbance.CHANGE
        clocks.append(Clock((stretch(at_s, machines), stretch(after_s, other)), WORK, kind, 1))
        machines = other
    return clocks


@pytest.mark.parametrize("phi", [0.5, 0.8])
def test_true_values_are_recovered_within_15_percent(phi: float) -> None:
    nu, lambda_s, sigma_s = {"small": 3.1, "large": 7.2}, 40.0, 15.0
    worst = dict.fromkeys(("phi", "lambda", "sigma", "nu small", "nu large"), 0.0)
    for seed in range(20):
        estimator = Estimator(VCPUS, JOB_VCPUS, 1.0)
        for clock in live_clocks(seed, nu, phi, lambda_s, sigma_s):
            estimator.observe(clock)
        found = estimator.measured()
        assert found.phi and found.lambda_s and found.sigma_s
        pairs = {
            "phi": (found.phi, phi),
            "lambda": (found.lambda_s, lambda_s),
            "sigma": (found.sigma_s, sigma_s),
            "nu small": (found.nu["small"], nu["small"]),
            "nu large": (found.nu["large"], nu["large"]),
        }
        for name, (value, true) in pairs.items():
            worst[name] = max(worst[name], abs(value / true - 1))
    print(f"phi {phi}: worst of 20 jobs " + ", ".join(f"{k} {v:.1%}" for k, v in worst.items()))
    assert max(worst.values()) < 0.15, worst


def test_what_was_not_seen_is_not_said() -> None:
    estimator = Estimator(VCPUS, JOB_VCPUS, 0.9)
    assert estimator.measured() == Measurements()
    for _ in range(20):
        estimator.observe(Clock((Stretch(10.0, {"small": 8}),), 320.0))
    found = estimator.measured()
    assert found == Measurements(None, None, None, {"small": pytest.approx(4.0)})
    job = measured_job(Workload(phi=0.9), found)
    assert job == Workload(phi=0.9)
    engine = measured_job(Workload(), Measurements(0.5, 33.4, 2.0)).engine
    assert (engine.lambda_s, engine.sigma_s) == (33, 2)


def test_what_an_earlier_process_measured_holds_until_it_is_measured_anew() -> None:
    before = Measurements(0.7, 30.0, 5.0, {"small": 3.0, "large": 7.5})
    estimator = Estimator(VCPUS, JOB_VCPUS, 1.0, before)
    assert estimator.measured() == before
    for _ in range(20):
        estimator.observe(Clock((Stretch(10.0, {"small": 8}),), 320.0))
    for _ in range(2):
        estimator.observe(Clock((Stretch(22.0, {"small": 8}),), 320.0, Disturbance.EVICTION, 1))
    found = estimator.measured()
    assert found.nu == {"small": pytest.approx(4.0), "large": 7.5}
    assert found.lambda_s == pytest.approx(12.0)
    assert (found.phi, found.sigma_s) == (0.7, 5.0)


def test_clocks_done_again_count_as_lost() -> None:
    estimator = Estimator(VCPUS, JOB_VCPUS, 1.0)
    for _ in range(20):
        estimator.observe(Clock((Stretch(10.0, {"small": 8}),), 320.0))
    for _ in range(3):  # two clocks again, and five seconds of standing still
        estimator.observe(Clock((Stretch(15.0, {"small": 8}),), 320.0, Disturbance.EVICTION, 1))
        estimator.observe(Clock((Stretch(10.0, {"small": 8}),), 0.0, Disturbance.EVICTION))
        estimator.observe(Clock((Stretch(10.0, {"small": 8}),), 0.0, Disturbance.EVICTION))
    assert estimator.measured().lambda_s == pytest.approx(25.0)


def test_a_few_very_slow_clocks_count_with_their_seconds_only() -> None:
    estimator = Estimator(VCPUS, JOB_VCPUS, 1.0)
    for number in range(103):
        seconds = 200.0 if number % 40 == 20 else 10.0
        estimator.observe(Clock((Stretch(seconds, {"small": 8}),), 320.0))
    assert estimator.measured().nu["small"] == pytest.approx(103 * 320.0 / (100 * 10 + 3 * 200) / 8, rel=0.01)


def test_a_type_that_was_not_seen_is_taken_to_be_like_the_others() -> None:
    from bidbrain.live.decide import worth_of
    from tests.bidbrain.makers import ON_DEMAND, history_of, make_setting

    rows = {f"{kind}@us-east-1a": [(0, 100_000)] for kind in ON_DEMAND}
    setting = make_setting(history_of(rows, 3600))
    assert worth_of(Measurements(), setting) == 1.0
    assert worth_of(Measurements(nu={"c4.xlarge": 3.0, "c4.xlarge on demand": 1.0}), setting) == 0.75


def test_traffic_is_what_a_machine_sends_and_receives_in_an_hour() -> None:
    estimator = Estimator({"c4.xlarge": 4}, 8, 1.0)
    estimator.sent(Sent(600.0, 1, 0))  # one machine alone has nobody to send to
    estimator.sent(Sent(60.0, 4, 1_000_000_000))
    assert estimator.measured().traffic_gb_per_h is None
    estimator.sent(Sent(60.0, 2, 500_000_000))
    before = Estimator({"c4.xlarge": 4}, 8, 1.0, Measurements(traffic_gb_per_h=7.0))
    assert before.measured().traffic_gb_per_h == 7.0
    # 1.5 GB were sent, and received, in 360 machine seconds.
    assert estimator.measured().traffic_gb_per_h == pytest.approx(30.0)
