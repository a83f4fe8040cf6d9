"""The section `market` of a config: on which market BidBrain buys the machines of a run, and how it may buy.

`made`, `replay` and `availability` play a history on local Ray nodes. `ec2` and `kubernetes` are clouds: a class of
`CloudMarketConfig` says all that the rest of the project asks of a cloud's config. Options that `proteus simulate` also
has are named as there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from agileml.config.checkpoint_location import below_home
from agileml.config.section import Positive, Section, one_of
from agileml.config.text import ConfigError, show
from bidbrain.aws.site import Site
from bidbrain.kubernetes.site import PodSite

if TYPE_CHECKING:
    from bidbrain.billing.traffic import Routes

Share = Annotated[float, Field(ge=0, le=1)]
Seconds = Annotated[int, Field(ge=0)]
Names = Annotated[tuple[str, ...], Field(strict=False)]
Files = Annotated[tuple[Annotated[str, AfterValidator(below_home)], ...], Field(strict=False, min_length=1)]
Prices = dict[str, Positive]
# Faults of a plan that bring and take no machine.
BESIDE_A_MARKET = ("disk_full", "kill_controller", "slow")


class MarketConfig(Section):
    """The policy that decides, its assumptions and its limits.

    The work of the job is guessed as `job_vcpus` for `job_hours`; the real speed of machines is measured. phi, lambda_s
    and sigma_s apply until they are measured.
    """

    policy: str = "proteus"
    job_vcpus: Annotated[int, Field(ge=1)]
    job_hours: Positive
    cap: Annotated[float, Field(ge=1)] = 1.5
    slot_vcpus: Annotated[int, Field(ge=1)] | None = None
    deadline: Annotated[float, Field(ge=1)] | None = None
    min_delta: Annotated[float, Field(ge=0)] = 0.0
    boot_s: Annotated[int, Field(ge=0, lt=3600)] = 120
    lambda_s: Seconds = 60
    sigma_s: Seconds = 0
    phi: Share = 1.0
    budget_usd: Positive | None = None
    max_price: Positive | None = None
    drain_s: Annotated[int, Field(ge=1)] = 120


class LocalMarketConfig(MarketConfig):
    """Shared by `made` and `replay`: a market on local nodes, `speed` market seconds in a second."""

    rules: Literal["hourly_2016", "per_second", "per_second_paid"] = "hourly_2016"
    types: Names = ()
    zones: Names = ()
    reliable_type: str | None = None
    on_demand: Prices = Field(default_factory=dict)
    vcpus: dict[str, Annotated[int, Field(ge=1)]] = Field(default_factory=dict)
    speed: Positive = 60.0
    notice_s: Seconds = 120
    silent_share: Share = 0.0
    seed: Annotated[int, Field(ge=0)] = 0
    orphan_after_s: Positive = 300.0
    warm: Annotated[int, Field(ge=0)] = 2
    paced: bool = False


class MadeMarketConfig(LocalMarketConfig):
    """A market made by `seed`: `train_days` that policies learn from, then `hours` in which the job runs."""

    kind: Literal["made"] = "made"
    character: Literal["calm", "turbulent", "smooth"] = "turbulent"
    types: Annotated[tuple[str, ...], Field(strict=False, min_length=1)] = ("c4.xlarge",)
    zones: Annotated[tuple[str, ...], Field(strict=False, min_length=1)] = ("us-east-1a", "us-east-1b")
    start: str = "2016-05-16"
    train_days: Annotated[int, Field(ge=1, le=90)] = 14
    hours: Annotated[int, Field(ge=1, le=1000)] = 12


class ReplayMarketConfig(LocalMarketConfig):
    """A recorded price history (files as `proteus simulate` takes them), from `start` on."""

    kind: Literal["replay"] = "replay"
    history: Files
    product: str = "Linux/UNIX"
    train: str
    start: str


class AvailabilityMarketConfig(LocalMarketConfig):
    """Recorded availability (files as `proteus simulate --availability` takes them), from `start_hours` on.

    A machine is a node of one vCPU that costs 1 $/h on demand and `spot_share` of it on spot.
    """

    kind: Literal["availability"] = "availability"
    policy: str = "elastic"
    rules: Literal["per_second", "per_second_paid"] = "per_second_paid"
    availability: Files
    start_hours: Annotated[float, Field(ge=0)] = 0.0
    spot_share: Positive = 0.3

    @model_validator(mode="after")
    def _says_nothing_in_vain(self) -> Self:
        """A recording of capacity names its pools, and has no types and prices: those would be passed over."""
        for key in ("types", "zones", "reliable_type", "on_demand", "vcpus", "min_delta"):
            if found := getattr(self, key):
                raise ConfigError(
                    f"found {show(found)} with kind availability, expected it left out: a node of a recorded pool has "
                    "one vCPU, and costs 1 $/h on demand",
                    key=(key,),
                )
        return self


@dataclass(frozen=True)
class Offered:
    """The offers of a cloud: markets of spot machines as (type, zone), and the type of the reliable machines.

    on_demand, vcpus: dollars per hour and vCPUs of types that no table knows.
    """

    markets: tuple[tuple[str, str], ...]
    reliable_type: str
    on_demand: Mapping[str, float]
    vcpus: Mapping[str, int]


class CloudMarketConfig(MarketConfig):
    """Shared by the clouds: machines cost money, and join the cluster behind `address`."""

    policy: str = "expected_cost"
    question: ClassVar[str]  # asked before anything is bought
    head: ClassVar[str]  # the cluster that machines join, for errors about a missing address
    unless_continued: ClassVar[str]  # how machines are ended that a run holds which nobody goes on with

    @property
    def offered(self) -> Offered:
        """The machines that this config allows to buy."""
        raise NotImplementedError

    @property
    def routes(self) -> Routes | None:
        """The prices of traffic between the machines; None: it costs nothing, or that is not known."""
        return None

    @model_validator(mode="after")
    def _capped(self) -> Self:
        if self.budget_usd is None:
            raise ConfigError(
                "missing, expected the most that this job may cost, in dollars", key=("budget_usd",)
            )
        return self


class Ec2MarketConfig(CloudMarketConfig, Site):
    """EC2, in the stack that `proteus aws up` made."""

    kind: Literal["ec2"] = "ec2"
    rules: Literal["per_second", "per_second_paid"] = "per_second"
    traffic_usd_per_gb: dict[str, Annotated[float, Field(ge=0)]] = Field(default_factory=dict)
    question = "Buy machines on EC2?"
    head = "machines from EC2 join: auto on the head that `proteus aws up` made"
    unless_continued = "or they are ended after market.orphan_after_s"

    @property
    def offered(self) -> Offered:
        """Every type in every zone."""
        markets = tuple((kind, zone) for kind in self.types for zone in self.all_zones)
        return Offered(markets, self.of_reliable, self.on_demand, self.vcpus)

    @property
    def routes(self) -> Routes | None:
        """On-demand machines are in the first zone."""
        from bidbrain.billing.traffic import Routes, prices_with
        from bidbrain.history.locations import location_of

        places = [location_of(zone) for zone in self.all_zones]
        if [place and place.zone for place in places] != list(self.all_zones):
            return None  # a kind of zone whose traffic has other prices
        return Routes(self.zones[0], prices_with(self.traffic_usd_per_gb))

    @model_validator(mode="after")
    def _routes_that_there_are(self) -> Self:
        if not self.traffic_usd_per_gb and not self.regions:
            return self  # reading a config stays cheap
        from bidbrain.billing.traffic import UnknownRouteError, prices_with
        from bidbrain.history.locations import location_of

        try:
            prices_with(self.traffic_usd_per_gb)
            if self.regions and (routes := self.routes) is not None:
                routes.matrix([place for zone in self.all_zones if (place := location_of(zone))])
        except UnknownRouteError as error:
            raise ConfigError(str(error), key=("traffic_usd_per_gb",)) from None
        return self

    @model_validator(mode="after")
    def _priced_as_billed(self) -> Self:
        if self.region.startswith("cn-") and (
            unknown := [t for t in self.all_types if t not in self.on_demand]
        ):
            raise ConfigError(
                f"found no price of {', '.join(unknown)}, expected those of all types: AWS bills {self.region} in CNY "
                "(then budget and prices of the whole config are CNY), and the package's table is in dollars",
                key=("on_demand",),
            )
        return self


class KubernetesMarketConfig(CloudMarketConfig, PodSite):
    """Worker groups of a RayCluster, as `proteus k8s template` prints one."""

    kind: Literal["kubernetes"] = "kubernetes"
    rules: Literal["per_second_paid"] = "per_second_paid"
    question = "Start pods of the RayCluster, and nodes for them?"
    head = "the pods join: auto in the RayCluster's head"
    unless_continued = "or the RayCluster's next job takes them over"

    @property
    def offered(self) -> Offered:
        """Every pool."""
        markets = tuple((pool, self.cluster) for pool in self.pools)
        return Offered(markets, self.reliable.group, self.usd_on_demand, self.vcpus)


KINDS: dict[str, type[Section]] = {
    "made": MadeMarketConfig,
    "replay": ReplayMarketConfig,
    "availability": AvailabilityMarketConfig,
    "ec2": Ec2MarketConfig,
    "kubernetes": KubernetesMarketConfig,
}
_pick = one_of(KINDS, "kind", default="made")


def _market(value: Any) -> Any:
    return None if value is None else _pick(value)


AnyMarketConfig = (
    MadeMarketConfig
    | ReplayMarketConfig
    | AvailabilityMarketConfig
    | Ec2MarketConfig
    | KubernetesMarketConfig
)
Market = Annotated[AnyMarketConfig | None, BeforeValidator(_market)]


def check_with(
    market: AnyMarketConfig,
    *,
    transient: int,
    plan: Sequence[str],
    address: bool,
    checkpoint: bool,
    is_one_host: bool,
) -> None:
    """Raise ConfigError for keys of the config that a market rules out. plan: the kinds of its events. is_one_host: the
    machines may not be at several addresses."""
    if transient:
        raise ConfigError(
            f"found {transient} with a market, expected 0: BidBrain buys the transient machines",
            key=("machines", "transient"),
        )
    for index, kind in enumerate(plan):
        if kind not in BESIDE_A_MARKET:
            raise ConfigError(
                f"found {kind} beside a market, expected {', '.join(BESIDE_A_MARKET[:-1])} or {BESIDE_A_MARKET[-1]}: "
                "the market alone brings and takes machines",
                key=("plan", index),
            )
    if isinstance(market, CloudMarketConfig) and not address:
        raise ConfigError(f"missing, expected the cluster that {market.head}", key=("address",))
    if isinstance(market, CloudMarketConfig) and is_one_host:
        raise ConfigError(
            f"found false with exchange: allreduce and market.kind {market.kind}, expected true, or exchange: servers: "
            "each machine has an address of its own, and sums travel between them without keys",
            key=("trusted_network",),
        )
    if isinstance(market, LocalMarketConfig) and address:
        raise ConfigError(
            f"found an address with market.kind {market.kind}, expected none: its machines are nodes of this computer",
            key=("address",),
        )
    if market.budget_usd is not None and not checkpoint:
        raise ConfigError(
            "found a budget without checkpoint.path, expected one: a stopped job goes on from there",
            key=("market", "budget_usd"),
        )
