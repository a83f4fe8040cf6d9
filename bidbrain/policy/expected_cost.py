"""Least expected cost per useful work, on markets without bids: prices, learned hazards, boots, deadlines.

`pool_model` says what a footprint costs per useful work. Each decision fills the job's size (more where that lowers E,
or where a deadline makes work dear) from what is held and what could be bought, a new machine paying for its boot over
its expected life. So what is held is kept until something else is cheaper by more than a move costs. On-demand machines
are bought when the work left would no longer fit before the deadline.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from bidbrain.history.prices import Market
from bidbrain.money import HOUR_S
from bidbrain.policy.base import (
    Action,
    Decision,
    GiveBack,
    Holding,
    MarketView,
    Offer,
    Phase,
    Request,
    RequestOnDemand,
    given_back,
    next_tick_s,
)
from bidbrain.policy.footprint import scaling_efficiency
from bidbrain.policy.pool_model import Choices, Floats, Footprint, Roads, Terms
from bidbrain.policy.pool_search import least_footprint, without_dear
from bidbrain.policy.rooms import Rooms
from bidbrain.risk.book import Hazard, RiskBook
from bidbrain.setting import ON_DEMAND_ZONE, Setting, Workload

TICK_S = 300
REVIEW_TICKS = 2  # what is held is weighed again this often
HORIZON_H = 6.0  # no price and no regime is expected to last longer
SLOTS = 16  # a request on a market of prices is a sixteenth of the cap
MOST_STEPS = 12
STAY_S = 900  # on-demand machines stay until there is so much more slack than made them necessary


@dataclass(frozen=True)
class Lateness:
    """A job against its deadline. slack_s: time left beyond work and margin; None: no deadline.

    late: on-demand must fill up. last: nothing may stop the job any more, so no spot is held.
    """

    slack_s: float | None = None
    late: bool = False
    last: bool = False


@dataclass(frozen=True)
class Odds:
    """Hazards by pool: of new machines, and of those that are held, at their mean age."""

    new: dict[Market, Hazard]
    held: dict[Market, Hazard]


@dataclass(frozen=True)
class _Spot:
    """A spot allocation that is held: cheap enough to stay, or to be left once others are ready."""

    holding: Holding
    stays: bool


class ExpectedCost:
    """The policy of today's market: holds the machines of the least expected cost per work, E."""

    def __init__(self, setting: Setting, start_s: int) -> None:
        self._setting, self._start_s = setting, start_s
        job = setting.job
        self._deadline_s = (
            None if job.deadline is None else start_s + math.ceil(job.deadline * job.hours * HOUR_S)
        )
        reliable = setting.reliable
        self._on_demand = reliable.on_demand / reliable.vcpus_per_machine  # per vCPU hour
        self._nobody = RiskBook()
        self._rooms = Rooms()

    def decide(self, now_s: int, view: MarketView) -> Decision:
        spot = [h for h in view.holdings if h.market.zone != ON_DEMAND_ZONE]
        bought = [h for h in view.holdings if h.market.zone == ON_DEMAND_ZONE]
        pools = _by_market(spot)
        hazards = self._hazards(now_s, view, pools)
        if self._setting.routes is not None:
            self._rooms.look(now_s, {m: sum(h.vcpus for h in own) for m, own in pools.items()})
        lateness = self._lateness(now_s, view, pools, hazards, some_bought=bool(bought))
        if lateness.last:
            return self._only_on_demand(now_s, view, spot, bought, lateness)
        terms = self._terms(view, hazards)
        time_left_h = max(view.work_left_vcpu_s / max(1, view.job.vcpus) / HOUR_S, 1 / 60)
        held = _by_market([h for h in spot if h.number not in view.warned]) if view.warned else pools
        choices, markets = self._choices(view, hazards, held, time_left_h)
        worth = self._worth(view.job, lateness, time_left_h)
        cap = view.job.cap_vcpus
        goal = (view.job.vcpus, cap, max(1.0, cap / MOST_STEPS), worth)
        footprint = least_footprint(terms, choices, goal, [offer.market.region for offer, _ in markets])
        dear = [math.inf if is_held else self._on_demand * offer.vcpus for offer, is_held in markets]
        footprint = without_dear(footprint, dear)
        judged = self._judge(spot, view, footprint, markets)
        return self._act(now_s, view, judged, bought, _Plan(footprint, markets, lateness, hazards))

    # -- what is known -------------------------------------------------------------------------------------------------

    def _hazards(self, now_s: int, view: MarketView, pools: dict[Market, list[Holding]]) -> Odds:
        """The odds of the pools now."""
        risk = view.risk or self._nobody
        new = {offer.market: risk.hazard(offer.market, now_s) for offer in view.offers}
        held: dict[Market, Hazard] = {}
        for market, own in pools.items():
            age_h = sum(now_s - h.grant_s for h in own) / len(own) / HOUR_S
            held[market] = risk.hazard(market, now_s, age_h)
        return Odds(new, held)

    def _terms(self, view: MarketView, hazards: Odds) -> Terms:
        engine, job = view.job.engine, view.job
        correlation = next((each.correlation for each in hazards.new.values()), 0.0)
        hourly = float(self._setting.reliable.hourly)
        return Terms(
            job.vcpus, job.phi, engine.boot_s / HOUR_S, engine.lambda_s / HOUR_S, correlation, fixed=hourly
        )

    def _choices(
        self,
        view: MarketView,
        hazards: Odds,
        held: dict[Market, list[Holding]],
        time_left_h: float,
    ) -> tuple[Choices, list[tuple[Offer, bool]]]:
        """The held machines, and new ones of each offer below the on-demand price; with (offer, is held) of each."""
        engine, cap = view.job.engine, view.job.cap_vcpus
        rows: list[tuple[float, ...]] = []
        which: list[tuple[Offer, bool]] = []
        for pool, offer in enumerate(view.offers):
            own = held.get(offer.market)
            if own:
                machines = sum(h.vcpus for h in own) / offer.vcpus
                loss = hazards.held[offer.market].per_node_h
                rows.append((pool, machines, offer.price, offer.nu, offer.vcpus, loss))
                which.append((offer, True))
            loss = hazards.new[offer.market].per_node_h
            life_h = min(HORIZON_H, time_left_h, 1.0 / loss if loss > 0 else HORIZON_H)
            # A new machine pays its boot, and its share of the stop that its joining causes, over its expected life.
            overhead = (engine.boot_s + engine.sigma_s) / HOUR_S / life_h
            price = offer.price * (1.0 + overhead)
            room = self._rooms.new(offer.market, cap) if view.job.traffic_gb_per_h else cap
            most = math.floor(room / offer.vcpus)
            if price < self._on_demand * offer.vcpus:
                rows.append((pool, most, price, offer.nu, offer.vcpus, loss))
                which.append((offer, False))
        table = np.array(rows, np.float64).reshape(-1, 6)
        mosts, prices, nu, vcpus, losses = (table[:, i].copy() for i in range(1, 6))
        roads, routes = None, self._setting.routes
        if routes is not None and view.job.traffic_gb_per_h and which:
            reliable = self._setting.reliable
            markets = [offer.market for offer, _ in which]
            held_anyway = {reliable.market: reliable.vcpus / reliable.vcpus_per_machine}
            roads = Roads.between(routes, view.job.traffic_gb_per_h, markets, held_anyway)
        return Choices(table[:, 0].astype(np.int64), mosts, prices, nu, vcpus, losses, roads), which

    def _worth(self, job: Workload, lateness: Lateness, time_left_h: float) -> float:
        """The cost of work that is put off, beyond the job's own size; 0 without a deadline: it can wait.

        The on-demand price, by the chance that on-demand machines must do it: slack as long as the work makes it even.
        They fill up to the cap, where a vCPU does less work than at the job's own size (phi), so the work costs more.
        """
        if lateness.slack_s is None:
            return 0.0
        chance = 1.0 / (1.0 + max(0.0, lateness.slack_s) / HOUR_S / time_left_h)
        return self._on_demand * chance / scaling_efficiency(job.cap_vcpus, job.vcpus, job.phi)

    def _lateness(
        self,
        now_s: int,
        view: MarketView,
        pools: dict[Market, list[Holding]],
        hazards: Odds,
        *,
        some_bought: bool,
    ) -> Lateness:
        """Late if the work left fits no more, with a margin for what evictions of the held may still stop."""
        if self._deadline_s is None:
            return Lateness()
        job, engine = view.job, view.job.engine
        most = job.cap_vcpus * scaling_efficiency(job.cap_vcpus, job.vcpus, job.phi)
        needed_s = view.work_left_vcpu_s / most
        now_per_h = sum(hazards.held[market].events_per_h(len(own)) for market, own in pools.items())
        soon_per_h = min((each.events_per_h(job.vcpus) for each in hazards.new.values()), default=0.0)
        expected = max(now_per_h, soon_per_h) * needed_s / HOUR_S
        last_s = TICK_S + engine.boot_s + 2 * engine.lambda_s + engine.sigma_s
        margin_s = last_s + TICK_S + engine.sigma_s + engine.lambda_s * (expected + 2.0 * math.sqrt(expected))
        left_s = self._deadline_s - now_s - needed_s
        if some_bought:
            margin_s += STAY_S
        return Lateness(left_s - margin_s, left_s < margin_s, left_s < last_s)

    # -- what to do ----------------------------------------------------------------------------------------------------

    def _judge(
        self,
        spot: Sequence[Holding],
        view: MarketView,
        footprint: Footprint,
        markets: list[tuple[Offer, bool]],
    ) -> list[_Spot]:
        """Which held allocations stay: as many of each pool as the footprint has, the oldest first; no warned ones."""
        room = {
            offer.market: float(footprint.counts[i]) * offer.vcpus
            for i, (offer, is_held) in enumerate(markets)
            if is_held
        }
        judged = []
        for holding in sorted(spot, key=lambda h: (h.grant_s, h.number)):
            left = room.get(holding.market, math.inf if holding.market not in view.by_market else 0.0)
            stays = holding.number not in view.warned and left >= holding.vcpus - 1e-6
            if stays and holding.market in room:
                room[holding.market] = left - holding.vcpus
            judged.append(_Spot(holding, stays))
        return judged

    def _act(
        self, now_s: int, view: MarketView, judged: list[_Spot], bought: list[Holding], plan: _Plan
    ) -> Decision:
        staying = sum(each.holding.vcpus for each in judged if each.stays)
        leaving = [each.holding for each in judged if not each.stays]
        size = max(view.job.vcpus, round(plan.footprint.vcpus))
        missing = max(0, size - staying)
        actions: list[Action] = []
        if missing:
            actions += self._requests(view, plan, missing)
        boot_s = view.job.engine.boot_s
        ready = sum(
            each.holding.vcpus
            for each in judged
            if each.stays and each.holding.phase is Phase.HELD and each.holding.grant_s + boot_s <= now_s
        )
        short = view.job.cap_vcpus - sum(h.vcpus for h in (*(e.holding for e in judged), *bought))
        if plan.lateness.late and short > 0:
            actions.append(self._on_demand_for(short))
        # Holdings to be given back go when others are ready in their place; on-demand machines when spot is ready.
        spare = ready + sum(h.vcpus for h in leaving) - size
        actions += given_back([holding for holding in leaving if holding.phase is Phase.HELD], spare)
        wanted = view.job.cap_vcpus if plan.lateness.late else 0
        spare = ready + sum(h.vcpus for h in bought) - wanted
        actions += given_back(bought, spare)
        return Decision(
            tuple(actions),
            self._reason(view, judged, missing, plan),
            self._wake_s(now_s, plan.lateness, busy=bool(missing or bought or leaving)),
            wake_on_market=missing > 0,
            fill=size + sum(h.vcpus for h in leaving),
            wake_on_notice=True,
        )

    def _requests(self, view: MarketView, plan: _Plan, missing: int) -> list[Action]:
        """The footprint's pools first, then the others by their cost: what one has no room for, the next may have."""
        wanted: dict[Market, int] = {}
        ranked = sorted(
            (
                (plan.footprint.counts[i] <= 0, plan.cost(i), offer.market, offer)
                for i, (offer, is_held) in enumerate(plan.markets)
                if not is_held
            ),
            key=lambda each: each[:3],
        )
        for i, (offer, is_held) in enumerate(plan.markets):
            if not is_held and plan.footprint.counts[i] > 0:
                wanted[offer.market] = round(plan.footprint.counts[i])
                self._rooms.ask(offer.market, wanted[offer.market] * offer.vcpus)
        actions: list[Action] = []
        for first in (True, False):
            for _, cost, _, offer in ranked:
                if first and offer.market not in wanted:
                    continue
                if not first and cost >= self._on_demand:
                    continue
                slot = self._slot(offer, view)
                machines = wanted[offer.market] if first else math.ceil(missing / offer.vcpus)
                full, rest = divmod(machines, slot)
                # A whole slot for the rest would be more than may be held, and never be tried.
                for size, count in ((slot, full), (rest, 1)):
                    if size and count:
                        actions.append(Request(offer.market, size * offer.vcpus, offer.on_demand, count))
        return actions

    def _slot(self, offer: Offer, view: MarketView) -> int:
        """Machines of one request."""
        size = self._setting.bidding.slot_vcpus
        if size is None and self._setting.history.steps and not self._setting.pools:
            size = view.job.cap_vcpus // SLOTS
        return max(1, (size or 0) // offer.vcpus)

    def _on_demand_for(self, vcpus: int) -> RequestOnDemand:
        reliable = self._setting.reliable
        each = reliable.vcpus_per_machine
        return RequestOnDemand(reliable.instance_type, math.ceil(vcpus / each) * each)

    def _only_on_demand(
        self, now_s: int, view: MarketView, spot: list[Holding], bought: list[Holding], lateness: Lateness
    ) -> Decision:
        """Close to the deadline an eviction could stop the job for too long: on-demand machines alone finish it."""
        short = view.job.cap_vcpus - sum(h.vcpus for h in bought)
        actions: list[Action] = [GiveBack(h.number) for h in spot if h.phase is not Phase.REQUESTED]
        if short > 0:
            actions.insert(0, self._on_demand_for(short))
        assert lateness.slack_s is not None
        reason = (
            f"the deadline is near ({lateness.slack_s / HOUR_S:.2f} h of slack): on-demand machines alone"
        )
        return Decision(tuple(actions), reason, next_tick_s(self._start_s, now_s, TICK_S))

    def _wake_s(self, now_s: int, lateness: Lateness, *, busy: bool) -> int:
        """The next review; sooner if slack could run out, or while machines boot."""
        ticks = 1 if busy or lateness.late else REVIEW_TICKS
        if lateness.slack_s is not None:
            ticks = max(1, min(ticks, math.floor(lateness.slack_s / TICK_S)))
        return next_tick_s(self._start_s, now_s, TICK_S) + (ticks - 1) * TICK_S

    def _reason(self, view: MarketView, judged: list[_Spot], missing: int, plan: _Plan) -> str:
        value = plan.footprint.value
        staying = sum(each.holding.vcpus for each in judged if each.stays)
        words = [f"{staying} vCPUs stay"]
        if leaving := [each.holding for each in judged if not each.stays]:
            worst = max(leaving, key=lambda h: plan.hazards.held[h.market].per_node_h)
            rate = 100 * plan.hazards.held[worst.market].per_node_h
            what = "is warned of" if worst.number in view.warned else f"loses {rate:.1f}% per hour"
            words.append(f"{sum(h.vcpus for h in leaving)} leave ({worst.market} {what})")
        if missing:
            new = [
                (-plan.footprint.counts[i], o) for i, (o, is_held) in enumerate(plan.markets) if not is_held
            ]
            best = min(new, key=lambda each: (each[0], each[1].market), default=None)
            words.append(f"{missing} missing")
            if best is not None and best[0] < 0:
                offer = best[1]
                rate = 100 * plan.hazards.new[offer.market].per_node_h
                words.append(f"{offer.market} first: {offer.price / 1e6:.4f} $/h, {rate:.1f}% lost per hour")
        if said := _traffic(plan):
            words.append(said)
        if math.isfinite(value):
            words.append(f"E {value / 1e6:.4f} $ per vCPU h")
        if plan.lateness.slack_s is not None:
            late = "late, on-demand fills up" if plan.lateness.late else "slack"
            words.append(f"{late} {plan.lateness.slack_s / HOUR_S:.1f} h")
        return ", ".join(words)


@dataclass(frozen=True)
class _Plan:
    """The footprint of a decision, and the facts that it was made from."""

    footprint: Footprint
    markets: list[tuple[Offer, bool]]
    lateness: Lateness
    hazards: Odds

    @cached_property
    def traffic_of_one_more(self) -> Floats:
        """By choice, per hour."""
        return self.footprint.traffic_of_one_more()

    def cost(self, choice: int) -> float:
        """Cost per useful work of one more machine: p / (nu (1 - loss x boot)), with its traffic in p."""
        choices, terms = self.footprint.choices, self.footprint.terms
        useful = choices.nu[choice] * (1.0 - choices.loss[choice] * (terms.boot_h + terms.lambda_h))
        price = float(choices.price[choice] + self.traffic_of_one_more[choice])
        return price / useful if useful > 0 else math.inf


def _traffic(plan: _Plan) -> str:
    """The cost of traffic from now on; if it falls, the cost for the present machines as well."""
    choices, then = plan.footprint.choices, plan.footprint.traffic
    is_held = np.array([held for _, held in plan.markets], np.float64)
    now = Footprint(plan.footprint.terms, choices, is_held * choices.most).traffic
    if then < now:
        return f"traffic {then / 1e6:.4f} $/h instead of {now / 1e6:.4f}"
    return f"traffic {then / 1e6:.4f} $/h" if then else ""


def _by_market(holdings: Sequence[Holding]) -> dict[Market, list[Holding]]:
    found: dict[Market, list[Holding]] = {}
    for holding in holdings:
        found.setdefault(holding.market, []).append(holding)
    return found
