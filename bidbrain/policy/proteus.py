"""The thesis' policy (sections 4.3.1 - 4.3.2): requests that lower the footprint's expected cost per work.

Asked every two minutes, after evictions and releases, and 60 s before an hour ends. One request per decision:
the best pair of market and bid delta, if it lowers E (equation 4.4). At an hour's end: renew or let go, whichever
gives the lower E. On-demand machines are in the cost and are never dropped.
"""

from __future__ import annotations

from dataclasses import dataclass

from bidbrain.money import HOUR_S
from bidbrain.policy.base import (
    Action,
    Decision,
    Holding,
    Keep,
    LetGo,
    MarketView,
    Offer,
    Phase,
    Request,
    hour_end_wakes,
    next_tick_s,
    show_price,
)
from bidbrain.policy.footprint import (
    allocation_work,
    cost_per_work,
    eviction_free,
    expected_charge,
    expected_work,
    scaling_efficiency,
    useful_time,
    useful_until,
)
from bidbrain.risk.eviction import EvictionModel, Outlook
from bidbrain.setting import Setting

TICK_S = 120
LEAD_S = 60
SLOT_SHARE = 3  # a request is a third of the cap: 256 of 768


@dataclass(frozen=True)
class Expectation:
    """One allocation in the terms of equations 4.1 - 4.4: price relative to the reference machine, times in hours."""

    beta: float
    price: float
    machines: float
    nu: float
    vcpus: int
    left_h: float
    omega_h: float


class Proteus:
    """BidBrain as the thesis prints it. model: gives beta and the median time to eviction (None: trained tables)."""

    def __init__(self, setting: Setting, start_s: int, model: EvictionModel | None = None) -> None:
        self._setting = setting
        self._start_s = start_s
        self._model = setting.evictions if model is None else model
        self._deltas = setting.bidding.deltas[setting.bidding.first_delta :]

    def slot_vcpus(self, view: MarketView) -> int:
        return self._setting.bidding.slot(view.job.cap_vcpus, SLOT_SHARE)

    def decide(self, now_s: int, view: MarketView) -> Decision:
        actions: list[Action] = []
        reasons: list[str] = []
        requested = False
        holdings = list(view.holdings)
        for place, holding in enumerate(view.holdings):
            if holding.phase is Phase.HELD and holding.hour_end_s - LEAD_S == now_s:
                stays = [self._held(h, view, now_s, renewed=h is holding) for h in holdings]
                others = [e for i, e in enumerate(stays) if i != place]
                keep, drop = self.cost(stays, view, False), self.cost(others, view, True)
                if drop < keep:
                    actions.append(LetGo(holding.number))
                    reasons.append(f"let {holding.number} go: E {drop:.4g} without it, {keep:.4g} with it")
                else:
                    actions.append(Keep(holding.number))
                    reasons.append(f"renew {holding.number}: E {keep:.4g} with it, {drop:.4g} without it")
        size = min(view.room(leaving_counts=True), self.slot_vcpus(view))
        if size <= 0:
            reasons.append("the cap is reached")
        else:
            request, reason = self._best_request(now_s, view, size)
            reasons.append(reason)
            if request is not None:
                actions.append(request)
                requested = True
        wakes = hour_end_wakes(view, now_s, LEAD_S, requested)
        if view.room(leaving_counts=True) > (size if requested else 0):
            wakes.append(next_tick_s(self._start_s, now_s, TICK_S))
        return Decision(tuple(actions), "; ".join(reasons), min(wakes, default=None))

    def _best_request(self, now_s: int, view: MarketView, size: int) -> tuple[Request | None, str]:
        held = [self._held(holding, view, now_s) for holding in view.holdings]
        now = best = self.cost(held, view, False)
        found: Request | None = None
        for offer in view.offers:
            if offer.price > offer.on_demand:
                continue
            for delta in self._deltas:
                value = self.cost([*held, self._fresh(offer, delta, size, view)], view, True)
                if value < best:
                    best, found = value, Request(offer.market, size, offer.price + delta)
        if found is None:
            return None, f"no request lowers E {now:.4g}"
        price = view.by_market[found.market].price
        return found, (
            f"{found.market} at {show_price(price)}, bid +{(found.bid - price) / 1e6:g}: E {now:.4g} -> {best:.4g}"
        )

    def _held(self, holding: Holding, view: MarketView, now_s: int, renewed: bool = False) -> Expectation:
        """An allocation for the rest of its hour; a requested or renewed one for a whole hour at the price now."""
        offer = view.by_market[holding.market]
        fresh = renewed or holding.phase is Phase.REQUESTED
        left_s = HOUR_S if fresh else holding.hour_end_s - now_s
        outlook = self._model.outlook(holding.market, holding.bid - offer.price, offer.now, left_s // 60)
        boot_h = 0.0
        if not renewed:
            boot_h = max(0, holding.grant_s + view.job.engine.boot_s - now_s) / HOUR_S
        price = offer.price if fresh else holding.hour_price
        return self._expect(outlook, price, offer, holding.vcpus, left_s, boot_h)

    def _fresh(self, offer: Offer, delta: int, vcpus: int, view: MarketView) -> Expectation:
        boot_h = (view.job.engine.boot_s + self._setting.bidding.grant_delay_s) / HOUR_S
        outlook = self._model.outlook(offer.market, delta, offer.now, HOUR_S // 60)
        return self._expect(outlook, offer.price, offer, vcpus, HOUR_S, boot_h)

    def _expect(
        self, outlook: Outlook, price: int, offer: Offer, vcpus: int, left_s: int, boot_h: float
    ) -> Expectation:
        beta, left_h = outlook.eviction_probability, left_s / HOUR_S
        omega_h = useful_until(beta, left_h, outlook.median_to_eviction_s / HOUR_S) - boot_h
        relative = price / self._setting.reference
        return Expectation(beta, relative, vcpus / offer.vcpus, offer.nu, vcpus, left_h, omega_h)

    def cost(self, footprint: list[Expectation], view: MarketView, changes: bool) -> float:
        """E (4.4) of a footprint with the next hour of the reliable machines; changes: whether sigma is lost."""
        job = view.job
        cost = self._setting.reliable.hourly / self._setting.reference
        for a in footprint:
            cost += expected_charge(a.beta, a.price, a.machines, a.left_h)
        free = eviction_free([a.beta for a in footprint])
        lambda_h = job.engine.lambda_s / HOUR_S
        sigma_h = job.engine.sigma_s / HOUR_S if changes else 0.0
        works = [
            allocation_work(a.machines, useful_time(a.omega_h, free, lambda_h, sigma_h), a.nu)
            for a in footprint
        ]
        vcpus = sum(a.vcpus for a in footprint)
        return cost_per_work(cost, expected_work(scaling_efficiency(vcpus, job.vcpus, job.phi), works))
