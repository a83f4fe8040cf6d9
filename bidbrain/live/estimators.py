"""phi, sigma, lambda and nu of equations 4.2 and 4.3, measured from the running job's own clocks. Pure.

An undisturbed clock gives the speed of a set of machines: work / seconds = phi(V) sum_i k_i nu_i. From such clocks
alternating least squares, in relative errors, give nu of every type and phi. Disturbed clocks then give the cost of a
disturbance: their seconds beyond those that the work needed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from bidbrain.live.decide import Measurements
from bidbrain.policy.footprint import scaling_efficiency

Floats = npt.NDArray[np.float64]
KEPT = 2000  # clocks
MIN_CLOCKS = 5
MIN_EVENTS = 2
ROUNDS = 30
PRIOR = 0.05  # weight of a type's nominal vCPUs, in clocks; matters only for types without a sample
SENT_S = 120.0  # of several machines, before their traffic counts as measured
BEYOND = 1.05  # only sizes above the job's own by more than this factor measure phi


class Disturbance(StrEnum):
    """The disturbance of a clock."""

    NONE = "none"
    CHANGE = "change"  # machines came, or left as planned: sigma
    EVICTION = "eviction"  # machines were taken: lambda


@dataclass(frozen=True)
class Stretch:
    """Part of a clock with the same machines (working ones, by type)."""

    seconds: float
    machines: Mapping[str, int]


@dataclass(frozen=True)
class Clock:
    """One clock: its stretches in order, a new one at each disturbance. work_vcpu_s: new work; 0 if it was done again.

    events: how many disturbances of the kind began in it (0 for clocks that still suffer from an earlier one).
    """

    stretches: tuple[Stretch, ...]
    work_vcpu_s: float
    disturbance: Disturbance = Disturbance.NONE
    events: int = 0

    @property
    def seconds(self) -> float:
        return sum(stretch.seconds for stretch in self.stretches)


@dataclass(frozen=True)
class Speeds:
    """nu by type (vCPUs that one machine is worth) and phi (None: not measured)."""

    nu: dict[str, float]
    phi: float | None


def rate(
    machines: Mapping[str, int], nu: Mapping[str, float], vcpus: Mapping[str, int], job_vcpus: int, phi: float
) -> float:
    """(4.3) per time: phi(V) sum_i k_i nu_i, vCPUs; V is nominal."""
    size = sum(count * vcpus[kind] for kind, count in machines.items())
    ideal = sum(count * nu.get(kind, vcpus[kind]) for kind, count in machines.items())
    return scaling_efficiency(size, job_vcpus, phi) * ideal if ideal else 0.0


def estimate_speeds(clocks: Sequence[Clock], vcpus: Mapping[str, int], job_vcpus: int, phi: float) -> Speeds:
    """nu and phi from undisturbed clocks. phi: the first guess, which holds if no size measures it."""
    throughputs = [each for each in throughputs_of(clocks) if set(each.machines) <= set(vcpus)]
    counts = {kind: sum(each.clocks for each in throughputs if kind in each.machines) for kind in vcpus}
    kinds = [kind for kind in vcpus if counts[kind] >= MIN_CLOCKS]
    usable = [each for each in throughputs if each.machines and set(each.machines) <= set(kinds)]
    if not usable:
        return Speeds({}, None)
    held = np.array([[each.machines.get(kind, 0) for kind in kinds] for each in usable], np.float64)
    rates = np.array([each.rate for each in usable])
    weights = np.array([each.clocks for each in usable], np.float64)
    sizes = held @ np.array([vcpus[kind] for kind in kinds], np.float64)
    nominal = np.array([vcpus[kind] for kind in kinds], np.float64)
    beyond = sizes > BEYOND * job_vcpus
    measures_phi = weights[beyond].sum() >= MIN_CLOCKS and weights[~beyond].sum() >= MIN_CLOCKS
    nu = nominal
    for _ in range(ROUNDS):
        share = np.array([scaling_efficiency(each, job_vcpus, phi) for each in sizes])
        nu = _relative_least_squares(held * share[:, None], rates, weights, nominal)
        if not measures_phi:
            break
        phi = _phi(rates[beyond], (held @ nu)[beyond], sizes[beyond], weights[beyond], job_vcpus)
    return Speeds(dict(zip(kinds, nu.tolist(), strict=True)), phi if measures_phi else None)


@dataclass(frozen=True)
class Throughput:
    """The work of one set of machines in all of its undisturbed clocks."""

    machines: Mapping[str, int]
    clocks: int
    seconds: float
    work_vcpu_s: float

    @property
    def rate(self) -> float:
        return self.work_vcpu_s / self.seconds


def throughputs_of(clocks: Sequence[Clock]) -> list[Throughput]:
    """Work and time of each set of machines, summed over its clocks.

    (A mean of relative errors clock by clock would let a few very slow clocks decide.)
    """
    sums: dict[frozenset[tuple[str, int]], tuple[int, float, float]] = {}
    for clock in clocks:
        if clock.disturbance is Disturbance.NONE and clock.work_vcpu_s and len(clock.stretches) == 1:
            key = frozenset(clock.stretches[0].machines.items())
            count, seconds, work = sums.get(key, (0, 0.0, 0.0))
            sums[key] = (count + 1, seconds + clock.seconds, work + clock.work_vcpu_s)
    return [Throughput(dict(key), *found) for key, found in sums.items()]


def _relative_least_squares(held: Floats, rates: Floats, weights: Floats, nominal: Floats) -> Floats:
    """nu that minimises the squared relative errors of the rates, with a weak prior at the nominal vCPUs."""
    heavy = np.sqrt(weights)
    rows = np.vstack([held * (heavy / rates)[:, None], np.diag(PRIOR / nominal)])
    target = np.concatenate([heavy, np.full(len(nominal), PRIOR)])
    return np.maximum(np.linalg.lstsq(rows, target, rcond=None)[0], 1e-9)


def _phi(rates: Floats, ideal: Floats, sizes: Floats, weights: Floats, job_vcpus: int) -> float:
    """phi where rate = ideal (V0 + phi (V - V0)) / V, least squares in relative errors, within 0 .. 1."""
    slope = ideal * (sizes - job_vcpus) / (sizes * rates)
    rest = 1.0 - ideal * job_vcpus / (sizes * rates)
    return float(np.clip((weights * slope) @ rest / ((weights * slope) @ slope), 0.0, 1.0))


def estimate_loss(
    clocks: Sequence[Clock],
    kind: Disturbance,
    speeds: Speeds,
    vcpus: Mapping[str, int],
    job_vcpus: int,
    phi: float,
) -> float | None:
    """Seconds lost per disturbance of a kind (lambda or sigma); None before two of them were seen."""
    disturbed = [clock for clock in clocks if clock.disturbance is kind]
    events = sum(clock.events for clock in disturbed)
    if events < MIN_EVENTS or not speeds.nu:
        return None
    lost = sum(_lost_s(clock, speeds, vcpus, job_vcpus, phi) for clock in disturbed)
    return max(0.0, lost / events)


def _lost_s(clock: Clock, speeds: Speeds, vcpus: Mapping[str, int], job_vcpus: int, phi: float) -> float:
    """Seconds of a clock beyond what its work needed: at full speed up to the last disturbance, the rest after it."""
    left = clock.work_vcpu_s
    *earlier, last = clock.stretches
    for stretch in earlier:
        left -= stretch.seconds * rate(stretch.machines, speeds.nu, vcpus, job_vcpus, phi)
    now = rate(last.machines, speeds.nu, vcpus, job_vcpus, phi)
    return last.seconds - (max(0.0, left) / now if now else 0.0)


@dataclass(frozen=True)
class Sent:
    """Bytes that `machines` sent to each other within `seconds`."""

    seconds: float
    machines: int
    sent_bytes: int


def estimate_traffic(sent: Sequence[Sent]) -> float | None:
    """GB that a machine sends and receives per hour; None before SENT_S seconds of several machines were seen."""
    several = [each for each in sent if each.machines > 1]
    if sum(each.seconds for each in several) < SENT_S:
        return None
    machine_h = sum(each.seconds * each.machines for each in several) / 3600.0
    moved_gb = 2.0 * sum(each.sent_bytes for each in several) / 1e9  # what one sends another receives
    return float(f"{moved_gb / machine_h:.2g}")  # with more digits the figure would change every second


@dataclass
class Estimator:
    """Keeps the last clocks of a job and estimates from them. vcpus: nominal, by type; phi: the config's.

    before: what an earlier process of the job measured, which holds until it is measured anew.
    """

    vcpus: Mapping[str, int]
    job_vcpus: int
    phi: float
    before: Measurements = field(default_factory=Measurements)
    _clocks: deque[Clock] = field(default_factory=lambda: deque(maxlen=KEPT))
    _sent: deque[Sent] = field(default_factory=lambda: deque(maxlen=KEPT))

    def observe(self, clock: Clock) -> None:
        assert clock.seconds > 0
        self._clocks.append(clock)

    def sent(self, sent: Sent) -> None:
        """Take a measurement of the machines' traffic."""
        self._sent.append(sent)

    def measured(self) -> Measurements:
        """All figures, each None or absent until it was measured."""
        clocks, before = list(self._clocks), self.before
        assumed = self.phi if before.phi is None else before.phi
        now = estimate_speeds(clocks, self.vcpus, self.job_vcpus, assumed)
        speeds = Speeds({**before.nu, **now.nu}, before.phi if now.phi is None else now.phi)
        what = (speeds, self.vcpus, self.job_vcpus, assumed if now.phi is None else now.phi)
        lambda_s = estimate_loss(clocks, Disturbance.EVICTION, *what)
        sigma_s = estimate_loss(clocks, Disturbance.CHANGE, *what)
        traffic = estimate_traffic(list(self._sent))
        return Measurements(
            speeds.phi,
            before.lambda_s if lambda_s is None else lambda_s,
            before.sigma_s if sigma_s is None else sigma_s,
            speeds.nu,
            before.traffic_gb_per_h if traffic is None else traffic,
        )
