"""The setting of a policy: its job, the engine that runs the job, and the markets that may be used."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property

from bidbrain.billing.traffic import Routes
from bidbrain.history.availability import Trace
from bidbrain.history.prices import ON_DEMAND_ZONE as ON_DEMAND_ZONE
from bidbrain.history.prices import History, Market
from bidbrain.instants import DAY_S, Interval
from bidbrain.money import HOUR_S, rounded_ratio
from bidbrain.risk.book import Known
from bidbrain.risk.eviction import DELTAS_MICRO_USD, EvictionTable
from bidbrain.risk.recorded import known_from_pools, known_from_prices
from bidbrain.risk.survival import SurvivalTable

REFERENCE_VCPUS = 4
RENEWAL_TRAINING_S = 30 * DAY_S


@dataclass(frozen=True)
class Engine:
    """The cost of changes of machines to the running job; times in s (thesis, section 4.3.2 and 4.5.2).

    boot_s: a new machine is billed and useless for so long. lambda_s, sigma_s: an eviction or a grant stops all
    machines for so long. checkpoint_s > 0: only checkpoints keep work; they take the share `overhead` of the time, an
    eviction returns the job to the last one, and machines granted after it are useless for restart_s.
    """

    boot_s: int = 120
    lambda_s: int = 60
    sigma_s: int = 0
    overhead: float = 0.0
    checkpoint_s: int = 0
    restart_s: int = 0

    @staticmethod
    def checkpointing(
        boot_s: int = 120, overhead: float = 0.17, checkpoint_s: int = 720, restart_s: int = 300
    ) -> Engine:
        """Checkpoint and restart: 17% overhead at an interval of 12 minutes (thesis, section 4.5.2)."""
        return Engine(boot_s, 0, 0, overhead, checkpoint_s, restart_s)

    @property
    def boot_again_s(self) -> int:
        """The boot of every machine after the first allocation."""
        return max(self.boot_s, self.restart_s)


@dataclass(frozen=True)
class Workload:
    """Work of `vcpus` for `hours`, on at most cap_vcpus; each vCPU beyond `vcpus` counts phi.

    deadline: a multiple of `hours`, for policies that keep deadlines. traffic_gb_per_h: what a machine sends and
    receives.
    """

    vcpus: int = 512
    hours: float = 20.0
    cap: float = 1.5
    phi: float = 1.0
    deadline: float | None = None
    engine: Engine = field(default_factory=Engine)
    traffic_gb_per_h: float = 0.0

    @cached_property
    def cap_vcpus(self) -> int:
        return int(Fraction(str(self.cap)) * self.vcpus)

    @cached_property
    def work_vcpu_s(self) -> float:
        return float(self.vcpus * HOUR_S * Fraction(str(self.hours)))


@dataclass(frozen=True)
class Listing:
    """A market that may be used: on-demand price of its type (micro-dollars per machine hour) and vCPUs."""

    market: Market
    on_demand: int
    vcpus: int


@dataclass(frozen=True)
class Reliable:
    """On-demand vCPUs that hold the state and do no work; never dropped.

    `vcpus` may be a share of a machine of the type: 3 x 4 vCPUs are one and a half of an 8-vCPU type.
    """

    instance_type: str
    vcpus: int
    on_demand: int
    vcpus_per_machine: int

    @property
    def hourly(self) -> int:
        """Micro-dollars per hour of all of them."""
        return rounded_ratio(self.on_demand * self.vcpus, self.vcpus_per_machine)

    @property
    def market(self) -> Market:
        return Market(self.instance_type, ON_DEMAND_ZONE)


@dataclass(frozen=True)
class Bidding:
    """How a policy may bid. slot_vcpus: the size of a request; None: 256 of 768 (proteus), 384 of 768 (renewal)."""

    deltas: tuple[int, ...] = DELTAS_MICRO_USD
    min_delta: int = 0
    grant_delay_s: int = 0
    slot_vcpus: int | None = None

    def slot(self, cap_vcpus: int, share: int) -> int:
        """The size of a request: as set, or one of so many shares of the cap, and one vCPU at least."""
        return self.slot_vcpus or max(1, cap_vcpus // share)

    @property
    def first_delta(self) -> int:
        """Index of the least delta that may be bid."""
        usable = [i for i, delta in enumerate(self.deltas) if delta >= self.min_delta]
        if not usable:
            raise ValueError(
                f"no bid delta is at or above {self.min_delta / 1e6:g} $ (the largest is {self.deltas[-1] / 1e6:g})"
            )
        return usable[0]


@dataclass(frozen=True)
class Setting:
    """Everything a policy is made from. Policies may read `history` and `pools` up to the present only;
    yardsticks read on."""

    job: Workload
    listings: tuple[Listing, ...]
    history: History
    train: Interval
    reliable: Reliable
    reference: int  # on-demand micro-dollars per hour of 4 vCPUs: the unit of relative prices
    bidding: Bidding = field(default_factory=Bidding)
    rules: str = "hourly_2016"
    pools: tuple[Trace, ...] = ()
    routes: Routes | None = None  # None: traffic is not paid

    @property
    def markets(self) -> tuple[Market, ...]:
        return tuple(listing.market for listing in self.listings)

    @cached_property
    def by_market(self) -> dict[Market, Listing]:
        return {listing.market: listing for listing in self.listings}

    @cached_property
    def evictions(self) -> EvictionTable:
        """beta and median times, trained once on the training window."""
        return EvictionTable.train(self.history, self.markets, self.train, self.bidding.deltas)

    @cached_property
    def _survival_by_day(self) -> dict[int, SurvivalTable]:
        return {}

    def survival(self, start_s: int) -> SurvivalTable:
        """The survival table of the 30 days before the UTC day of `start_s`, as far as the history reaches."""
        day = start_s // DAY_S * DAY_S
        if day not in self._survival_by_day:
            window = Interval(day - RENEWAL_TRAINING_S, day)
            self._survival_by_day[day] = SurvivalTable.train(
                self.history, self.markets, window, self.job.engine.boot_s, self.bidding.deltas
            )
        return self._survival_by_day[day]

    def known(self, start_s: int) -> Known:
        """The risk of the pools as recordings before `start_s` show it; nothing where there are none."""
        if self.pools:
            return known_from_pools(self.pools, start_s)
        if not self.history.steps:
            return Known()
        return self._known_from_prices

    @cached_property
    def _known_from_prices(self) -> Known:
        on_demand = {listing.market: listing.on_demand for listing in self.listings}
        return known_from_prices(self.history, on_demand, self.train)

    def vcpus_per_machine(self, market: Market) -> int:
        """vCPUs of one machine of a market; of a reliable one where it is not listed."""
        listing = self.by_market.get(market)
        return self.reliable.vcpus_per_machine if listing is None else listing.vcpus

    def baseline_micro_usd(self) -> Fraction:
        """The job on on-demand machines alone: its vCPUs for its hours at the reference price."""
        return Fraction(self.reference * self.job.vcpus, REFERENCE_VCPUS) * Fraction(str(self.job.hours))

    def with_job(self, job: Workload) -> Setting:
        """The same markets for another job. Trained tables are kept; survival tables only if the boot stays."""
        other = replace(self, job=job)
        if "evictions" in self.__dict__:
            other.__dict__["evictions"] = self.evictions
        if job.engine.boot_s == self.job.engine.boot_s:
            other.__dict__["_survival_by_day"] = self._survival_by_day
        return other


def reference_type(types: dict[str, tuple[int, int]]) -> str:
    """The 4-vCPU type (the cheapest, if there are several), else the smallest.

    types: {name: (on-demand micro-dollars/h, vCPUs)}.
    """
    exact = sorted((price, name) for name, (price, vcpus) in types.items() if vcpus == REFERENCE_VCPUS)
    if exact:
        return exact[0][1]
    return min((vcpus, price, name) for name, (price, vcpus) in types.items())[2]


def reference_price(on_demand: int, vcpus: int) -> int:
    """The price of 4 vCPUs of a type (micro-dollars/h)."""
    return rounded_ratio(on_demand * REFERENCE_VCPUS, vcpus)
