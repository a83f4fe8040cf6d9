"""The schemes by name, and one run of a scheme on a pattern; the command and the benchmarks share it.

A scheme prints as text and parses back: `bsp`, `ssp:1`, `asp`, `bsp-rr`, `flexrr`, `lb-bsp:narx`,
`elasticbsp:15,rate`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import get_args

from straggler.consistency import Bsp, Ssp
from straggler.elasticbsp import ElasticBsp, Objective
from straggler.flexrr.groups import helper_groups
from straggler.flexrr.protocol import FlexRrParameters
from straggler.lbbsp.policy import LbBsp
from straggler.simulate.computer import SECOND_NS
from straggler.simulate.engine import Simulation
from straggler.simulate.outcome import Departure, Network, Outcome
from straggler.simulate.patterns import Cluster, Pattern
from straggler.simulate.policies import ClockPolicy, PoolPolicy, SchemePolicy, SuperstepPolicy
from straggler.simulate.profile import SpeedProfile, ideal_time_s
from straggler.speed.narx import Narx
from straggler.speed.predictors import Arima, Ema, Memoryless, SpeedPredictor

PREDICTORS: Mapping[str, Callable[[], SpeedPredictor]] = {
    "memoryless": Memoryless,
    "ema": Ema,
    "arima": Arima,
    "narx": Narx,
}


class SchemeKind(Enum):
    """How workers are kept together."""

    BSP = "bsp"
    SSP = "ssp"
    ASP = "asp"
    BSP_RR = "bsp-rr"
    FLEXRR = "flexrr"
    LB_BSP = "lb-bsp"
    ELASTIC = "elasticbsp"


@dataclass(frozen=True)
class Scheme:
    """A scheme with its options."""

    kind: SchemeKind
    slack: int = 1
    predictor: str = "ema"
    lookahead: int = 15
    objective: Objective = "rate"

    def __str__(self) -> str:
        match self.kind:
            case SchemeKind.SSP:
                return f"ssp:{self.slack}"
            case SchemeKind.FLEXRR:
                return "flexrr" if self.slack == 1 else f"flexrr:{self.slack}"
            case SchemeKind.LB_BSP:
                return f"lb-bsp:{self.predictor}"
            case SchemeKind.ELASTIC:
                return f"elasticbsp:{self.lookahead},{self.objective}"
        return self.kind.value


def parse_scheme(text: str) -> Scheme:
    """Read a scheme's text. Raises ValueError with the schemes there are."""
    name, _, argument = text.partition(":")
    known = {kind.value: kind for kind in SchemeKind}
    if name not in known:
        raise ValueError(f"scheme {text!r} is unknown; expected one of {', '.join(known)}")
    scheme = Scheme(known[name])
    if not argument:
        return scheme
    try:
        match scheme.kind:
            case SchemeKind.SSP | SchemeKind.FLEXRR if int(argument) >= 1:
                return replace(scheme, slack=int(argument))
            case SchemeKind.LB_BSP if argument in PREDICTORS:
                return replace(scheme, predictor=argument)
            case SchemeKind.ELASTIC:
                lookahead, _, objective = argument.partition(",")
                if int(lookahead) >= 1 and objective in ("", *get_args(Objective)):
                    wanted: Objective = "wait" if objective == "wait" else "rate"
                    return replace(scheme, lookahead=int(lookahead), objective=wanted)
    except ValueError:
        pass
    raise ValueError(
        f"scheme {text!r}: {argument!r} is not understood; expected for example ssp:1, "
        f"lb-bsp:{'|'.join(PREDICTORS)} or elasticbsp:15,rate"
    )


@dataclass(frozen=True)
class Experiment:
    """All that a run depends on besides scheme, pattern and seed.

    `units`: of an even share of an iteration. `check_s`: seconds that one message check costs a FlexRR worker.
    """

    cluster: Cluster
    iterations: int = 20
    units: int = 1000
    flexrr: FlexRrParameters = field(default_factory=FlexRrParameters)
    network: Network = field(default_factory=Network)
    departures: tuple[Departure, ...] = ()
    check_s: float = 0.0

    def __post_init__(self) -> None:
        if self.iterations < 1 or self.units < 1:
            raise ValueError(f"iterations is {self.iterations}, units {self.units}; expected at least 1 each")
        if not 0 <= self.check_s < float("inf"):
            raise ValueError(f"check_s is {self.check_s}; expected seconds of at least 0")
        for departure in self.departures:
            if (
                not 0 <= departure.worker < self.cluster.workers
                or departure.at_s < 0
                or departure.detect_s < 0
            ):
                raise ValueError(
                    f"{departure}: expected a worker below {self.cluster.workers} and times >= 0"
                )
        if len({departure.worker for departure in self.departures}) >= self.cluster.workers:
            raise ValueError("departures take every worker; expected one to stay")


@dataclass(frozen=True)
class Row:
    """One run. `per_iteration_s`: overall run time / iterations; `ideal_s`: the bound for any scheme."""

    pattern: str
    scheme: str
    seed: int
    per_iteration_s: float
    ideal_s: float
    waiting_share: float
    moved_share: float
    messages: int
    redone_units: int
    supersteps: int

    @property
    def over_ideal(self) -> float:
        """The time as a multiple of the ideal."""
        return self.per_iteration_s / self.ideal_s


def run_scheme(scheme: Scheme, pattern: Pattern, experiment: Experiment, seed: int) -> tuple[Row, Outcome]:
    """Simulate one scheme on one drawing of a pattern; equal seeds give equal profiles to all schemes."""
    cluster, seed = experiment.cluster, int(seed)  # one of numpy is no seed of `random`
    profiles = pattern.profiles(cluster, seed)
    reassigns = scheme.kind in (SchemeKind.FLEXRR, SchemeKind.BSP_RR)
    outcome = Simulation(
        profiles,
        policy_of(scheme, pattern, experiment, profiles),
        units=experiment.units,
        iteration_s=cluster.iteration_s,
        groups=helper_groups(cluster.workers, cluster.machines, experiment.flexrr.group_size)
        if reassigns
        else None,
        parameters=experiment.flexrr if reassigns else None,
        network=experiment.network,
        departures=experiment.departures,
        check_s=experiment.check_s,
        seed=seed,
    ).run()
    ends: dict[int, float] = {}
    for departure in experiment.departures:
        ends[departure.worker] = min(departure.at_s, ends.get(departure.worker, departure.at_s))
    work = experiment.iterations * cluster.workers * cluster.iteration_s
    row = Row(
        str(pattern),
        str(scheme),
        seed,
        outcome.total_s / experiment.iterations,
        ideal_time_s(profiles, work, ends) / experiment.iterations,
        outcome.waiting_share,
        outcome.moved_share,
        sum(outcome.messages.values()),
        outcome.redone_units,
        outcome.supersteps,
    )
    return row, outcome


def policy_of(
    scheme: Scheme, pattern: Pattern, experiment: Experiment, profiles: list[SpeedProfile]
) -> SchemePolicy:
    """The policy that a scheme names."""
    workers, iterations, units = experiment.cluster.workers, experiment.iterations, experiment.units
    shares = pattern.shares(experiment.cluster)
    match scheme.kind:
        case SchemeKind.ASP:
            return PoolPolicy([[units] * workers] * iterations)
        case SchemeKind.ELASTIC:
            elastic = ElasticBsp(scheme.lookahead, scheme.objective)
            return SuperstepPolicy(elastic, workers, iterations * workers, units)
        case SchemeKind.LB_BSP:
            balancer: LbBsp[int] = LbBsp(units * workers, PREDICTORS[scheme.predictor])
            return ClockPolicy(
                Bsp(),
                iterations,
                units,
                shares,
                balancer,
                lambda worker, now_ns: profiles[worker].resources_at(now_ns / SECOND_NS),
            )
        case SchemeKind.SSP | SchemeKind.FLEXRR:
            return ClockPolicy(Ssp(scheme.slack), iterations, units, shares)
        case SchemeKind.BSP | SchemeKind.BSP_RR:
            return ClockPolicy(Bsp(), iterations, units, shares)
