"""The cost of a job that `proteus aws plan` prints: by recorded prices, and without AWS by the package's own tables."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agileml.aws.commands import policies_elsewhere, site_of
from agileml.config.job import JobConfig
from agileml.config.market import Ec2MarketConfig
from agileml.config.text import ConfigError
from agileml.market.setup import set_up
from bidbrain.aws.site import Site
from bidbrain.aws.stack.checks import LATEST_S, TABLE, Cost, Facts, TypeFact, Unread, costs
from bidbrain.aws.stack.names import names_of
from bidbrain.aws.stack.template import REGION, STACK, operator_policy, role_policy, text
from bidbrain.config import ConfigError as BidBrainConfigError
from bidbrain.history.readers import HistoryError, read_history
from bidbrain.machines import UnknownTypeError, find_type
from bidbrain.money import micro_usd
from bidbrain.policy.answer import PolicyError
from bidbrain.policy.registry import find_scheme
from bidbrain.simulate.forecast import Forecast, forecast
from bidbrain.simulate.plan import choose_markets

ACCOUNT = "ACCOUNT"  # where the account's number will be
IMAGE = "IMAGE"
VPC = "VPC"
PRODUCT = "Linux/UNIX"


@dataclass(frozen=True)
class OfflinePlan:
    """A stack as it is known without asking AWS. costs: spot machines at their on-demand price, the most."""

    costs: tuple[Cost, ...]
    policies: Mapping[str, Any]
    template: str

    def as_json(self, estimate: Forecast | None) -> str:
        """All of it, for programs."""
        fields = {
            "costs_micro_usd_per_h": [vars(cost) for cost in self.costs],
            "policies": self.policies,
            "template": self.template,
        }
        return json.dumps(fields | ({"forecast": forecast_json(estimate)} if estimate else {}), indent=2)


def offline_plan(config: JobConfig) -> OfflinePlan:
    """The template, the rights and the cost per hour by the package's tables. Raises ConfigError."""
    site, scale = site_of(config)
    types = {name: _type_fact(site, name) for name in site.all_types}
    facts = Facts(
        *(ACCOUNT, "", site.zones, types, IMAGE, None, "", "", {}),
        spot=Unread("AWS was not asked"),
    )
    lines = [cost for cost in costs(site, scale, facts) if cost.per_h is not None]
    transient = scale.most - scale.reliable
    if transient > 0:
        dearest = max(site.types, key=lambda name: types[name].on_demand or 0)
        most = transient * (types[dearest].on_demand or 0)
        basis = "its on-demand price, the most: spot costs less"
        lines.insert(-1, Cost(f"up to {transient} x {dearest}, spot", most, basis, False))
    names = names_of(site, ACCOUNT)
    policies = {
        "the person who runs proteus aws": operator_policy(names, site.bucket is None),
        f"role {names.head}": role_policy(names, "HeadRole", site.bought_types, IMAGE),
        f"role {names.node}": role_policy(names, "NodeRole", site.bought_types, IMAGE),
    }
    policies |= policies_elsewhere(site, names, VPC, dict.fromkeys(site.regions, IMAGE))
    template = "\n".join([text(STACK), *([text(REGION)] if site.regions else [])])
    return OfflinePlan(tuple(lines), policies, template)


def _type_fact(site: Site, name: str) -> TypeFact:
    """A type by the config, else by the package's table. Raises ConfigError."""
    if name in site.on_demand and name in site.vcpus:
        return TypeFact(site.vcpus[name], (), micro_usd(str(site.on_demand[name])), "the config", site.zones)
    try:
        row = find_type(name, LATEST_S)
    except UnknownTypeError as error:
        cure = "give its dollars per hour under market.on_demand and its vCPUs under market.vcpus"
        raise ConfigError(f"{error.problem} ({cure}){error.hint}", key=("market",)) from None
    price = micro_usd(str(site.on_demand[name])) if name in site.on_demand else row.on_demand
    source = "the config" if name in site.on_demand else TABLE
    return TypeFact(site.vcpus.get(name, row.vcpus), (), price, source, site.zones)


def job_forecast(config: JobConfig, files: Sequence[Path]) -> Forecast:
    """The job's cost, spread, evictions and pools on recorded prices. Raises ConfigError."""
    market = config.market
    assert isinstance(market, Ec2MarketConfig)
    setting = set_up(config, "plan", "plan", int(time.time())).setting
    try:
        history = read_history(files)
        wanted = choose_markets(history, market.types, market.all_zones, PRODUCT)
        return forecast(setting, find_scheme(market.policy), history.select(wanted))
    except (HistoryError, BidBrainConfigError) as error:
        raise ConfigError(f"--history: {error}") from None
    except PolicyError as error:
        raise ConfigError(str(error), key=("market", "policy")) from None
    except ValueError as error:
        job = f"a job of market.job_hours {market.job_hours:g}"
        raise ConfigError(f"--history: the recording is too short for {job} ({error})") from None


def forecast_json(found: Forecast) -> dict[str, Any]:
    """A forecast for programs: dollars, hours, pools."""
    return {
        "window": str(found.window),
        "starts": found.starts,
        "finished": found.finished,
        "usd": round(found.cost / 1e6, 6),
        "usd_p10": round(found.cost_p10 / 1e6, 6),
        "usd_p90": round(found.cost_p90 / 1e6, 6),
        "hours": round(found.hours, 4),
        "holes": [str(hole) for hole in found.holes],
        "gone": list(found.gone),
        "evictions": round(found.evictions, 4),
        "reason": found.reason,
        "pools": [
            {
                "pool": str(each.market),
                "machine_hours": round(each.machine_h, 4),
                "usd_per_h": each.price / 1e6,
                "lost_per_h": each.loss_per_h,
            }
            for each in found.pools
        ],
    }


def show_forecast(found: Forecast) -> str:
    """A forecast in words and a few lines."""
    low, high = found.cost_p10 / 1e6, found.cost_p90 / 1e6
    lines = [
        f"A job costs {found.cost / 1e6:.2f} $ (10th to 90th percentile {low:.2f} to {high:.2f} $) and takes "
        f"{found.hours:.2f} h, without the head, disks and addresses: {found.starts} starts in {found.window}.",
        f"Expect {found.evictions:.2g} evictions, by AWS' bands in the package; the cost has none of them.",
    ]
    if found.finished < found.starts:
        unfinished = found.starts - found.finished
        lines.append(
            f"{unfinished} of them did not finish within the recording; all figures are of the others."
        )
    for hole in found.holes:
        lines.append(f"The recording has a hole {hole} ({hole.seconds / 3600:.0f} h): no job starts in it.")
    lines += [f"{note}." for note in found.gone]
    for each in found.pools:
        lines.append(
            f"{each.machine_h:10.2f} machine hours of {each.market} at {each.price / 1e6:.4f} $/h, "
            f"{100 * each.loss_per_h:.3f}% lost per hour"
        )
    lines.append(f"First decision: {found.reason}.")
    return "\n".join(lines)
