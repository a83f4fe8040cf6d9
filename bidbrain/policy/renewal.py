"""The renewal policy (our own): every slot holds the bid of least cost per useful hour, as a renewal process.

An evicted slot is filled again at once, so a slot is a sequence of hours that each end in a payment or an eviction; its
cost per useful hour is `footprint.renewal_index`. At the end of an hour a fresh bid replaces the held one if its index
is lower. The fresh bid is placed one boot earlier, so that its machine boots inside the old hour.
"""

from __future__ import annotations

from bidbrain.history.prices import Market, Steps
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
from bidbrain.policy.footprint import renewal_index
from bidbrain.risk.eviction import EvictionModel
from bidbrain.setting import Setting

TICK_S = 120
REQUESTS = 9
SLOT_SHARE = 2  # a slot is half of the cap: 384 of 768


class Renewal:
    """model: gives survival and the mean held time (None: a table of the 30 days before the job)."""

    def __init__(self, setting: Setting, start_s: int, model: EvictionModel | None = None) -> None:
        self._setting = setting
        self._start_s = start_s
        self._model = setting.survival(start_s) if model is None else model
        self._deltas = setting.bidding.deltas[setting.bidding.first_delta :]

    def slot_vcpus(self, view: MarketView) -> int:
        return self._setting.bidding.slot(view.job.cap_vcpus, SLOT_SHARE)

    def _lead_s(self, view: MarketView) -> int:
        return view.job.engine.boot_s + self._setting.bidding.grant_delay_s

    def decide(self, now_s: int, view: MarketView) -> Decision:
        lead_s = self._lead_s(view)
        due = [h for h in view.holdings if h.phase is Phase.HELD and h.hour_end_s - lead_s == now_s]
        room = view.room(leaving_counts=False)
        fresh, request, reason = float("inf"), None, "the cap is reached"
        if due or room > 0:
            fresh, request, reason = self._best_fresh(now_s, view)
        actions: list[Action] = []
        for holding in due:
            if fresh < self.kept_index(now_s, view, holding):
                actions.append(LetGo(holding.number))
                room += holding.vcpus
            else:
                actions.append(Keep(holding.number))
        for _ in range(REQUESTS):
            size = min(room, self.slot_vcpus(view))
            if request is None or size <= 0:
                break
            actions.append(Request(request.market, size, request.bid))
            room -= size
        # One that is granted later makes the policy be asked then.
        at_once = self._setting.bidding.grant_delay_s == 0
        requested = at_once and any(isinstance(action, Request) for action in actions)
        wakes = hour_end_wakes(view, now_s, lead_s, requested)
        if room > 0:
            wakes.append(next_tick_s(self._start_s, now_s, TICK_S))
        return Decision(tuple(actions), reason, min(wakes, default=None))

    def _best_fresh(self, now_s: int, view: MarketView) -> tuple[float, Request | None, str]:
        best, found = float("inf"), None
        for offer in view.offers:
            if offer.price > offer.on_demand:
                continue
            for delta in self._deltas:
                value = self.fresh_index(now_s, view, offer, delta)
                if value < best:
                    best = value
                    found = Request(offer.market, self.slot_vcpus(view), offer.price + delta)
        if found is None:
            return best, None, "no market is at or below its on-demand price"
        price = view.by_market[found.market].price
        margin = (found.bid - price) / 1e6
        return best, found, f"{found.market} at {show_price(price)}, bid +{margin:g}: index {best:.4g}"

    def _index(
        self, view: MarketView, offer: Offer, vcpus: int, survive: float, held_s: float, useful_s: float
    ) -> float:
        """`renewal_index` of one slot: its shares of the reliable machines and of the work that an eviction stops."""
        job, reference = view.job, self._setting.reference
        share = self._setting.reliable.hourly / reference * vcpus / job.cap_vcpus
        lambda_share_h = job.engine.lambda_s / HOUR_S * job.cap_vcpus / vcpus
        hour_cost = offer.price / reference * (vcpus / offer.vcpus)
        return renewal_index(survive, hour_cost, share, held_s / HOUR_S, useful_s / HOUR_S, lambda_share_h)

    def fresh_index(self, now_s: int, view: MarketView, offer: Offer, delta: int) -> float:
        """Index of a new slot at the price now + delta."""
        out = self._model.outlook(offer.market, delta, offer.now, HOUR_S // 60)
        survive = 1.0 - out.eviction_probability
        return self._index(view, offer, self.slot_vcpus(view), survive, out.mean_held_s, out.mean_useful_s)

    def kept_index(self, now_s: int, view: MarketView, holding: Holding) -> float:
        """Index of the next hour of an allocation as it stands: no boot, the margin that its bid has now."""
        offer = view.by_market[holding.market]
        out = self._model.outlook(holding.market, holding.bid - offer.price, offer.now, HOUR_S // 60)
        survive = 1.0 - out.eviction_probability
        return self._index(view, offer, holding.vcpus, survive, out.mean_held_s, out.mean_held_s)


class OneHourOracle(Renewal):
    """Yardstick: the renewal policy with the same bids, but with the prices of the coming hour known."""

    def __init__(self, setting: Setting, start_s: int) -> None:
        super().__init__(setting, start_s)
        self._steps: dict[Market, Steps] = {m: setting.history.steps[m] for m in setting.markets}

    def fresh_index(self, now_s: int, view: MarketView, offer: Offer, delta: int) -> float:
        gone_s = self._steps[offer.market].eviction_s(now_s, offer.price + delta)
        held_s = min(gone_s - now_s, HOUR_S)
        survive = 1.0 if held_s == HOUR_S else 0.0
        useful_s = max(0, held_s - view.job.engine.boot_s)
        return self._index(view, offer, self.slot_vcpus(view), survive, held_s, useful_s)

    def kept_index(self, now_s: int, view: MarketView, holding: Holding) -> float:
        gone_s = self._steps[holding.market].eviction_s(now_s, holding.bid)
        held_s = min(gone_s - holding.hour_end_s, HOUR_S)
        if held_s <= 0:
            return float("inf")
        offer = view.by_market[holding.market]
        return self._index(view, offer, holding.vcpus, 1.0 if held_s == HOUR_S else 0.0, held_s, held_s)
