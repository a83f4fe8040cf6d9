"""Policies for today's market: no bids, evictions by capacity, several pools.

`Spot2026` fills the job's nodes from the pools of least cost per useful work, keeps asking where there was no room, and
buys on-demand nodes only when the work left no longer fits the time left. `StaticCheckpoint` is the common way without
it: all nodes in one pool, or none.
"""

from __future__ import annotations

import math

from bidbrain.money import HOUR_S
from bidbrain.policy.base import (
    Action,
    Decision,
    MarketView,
    Offer,
    Phase,
    Request,
    RequestOnDemand,
    given_back,
    next_tick_s,
)
from bidbrain.policy.footprint import cost_per_work
from bidbrain.risk.hazard import PoolHazard
from bidbrain.setting import ON_DEMAND_ZONE, Setting

TICK_S = 300
LATE_MARGIN_S = 1800


def loss_per_hour(node_losses_per_h: float, events_per_h: float, boot_h: float, lambda_h: float) -> float:
    """Share of a node's time lost to evictions: a boot for each lost node, a pause of all nodes for each loss."""
    return min(1.0, node_losses_per_h * boot_h + events_per_h * lambda_h)


class Spot2026:
    """Elastic over pools; late = time left < work left / all nodes + 30 min: then on-demand fills up."""

    def __init__(self, setting: Setting, start_s: int, model: PoolHazard | None = None) -> None:
        self._start_s = start_s
        self._type = setting.reliable.instance_type
        self._hazard = PoolHazard.train(setting.pools, start_s) if model is None else model
        deadline = setting.job.deadline
        self._deadline_s = (
            None if deadline is None else start_s + math.ceil(deadline * setting.job.hours * HOUR_S)
        )

    def index(self, offer: Offer, view: MarketView) -> float:
        """Cost per useful work of a pool: p / (nu (1 - loss))."""
        rate, engine = self._hazard.rate(offer.market), view.job.engine
        loss = loss_per_hour(
            rate.per_node_hour, rate.events_per_hour, engine.boot_s / HOUR_S, engine.lambda_s / HOUR_S
        )
        return cost_per_work(float(offer.price), offer.nu * (1.0 - loss))

    def decide(self, now_s: int, view: MarketView) -> Decision:
        nodes = view.job.vcpus
        spot = [h for h in view.holdings if h.market.zone != ON_DEMAND_ZONE]
        bought = [h for h in view.holdings if h.market.zone == ON_DEMAND_ZONE]
        actions: list[Action] = []
        missing = nodes - sum(h.vcpus for h in spot)
        # Ask the best pool for all of it; what it has no room for is asked of the next at this same instant.
        ranked = sorted(view.offers, key=lambda offer: (self.index(offer, view), offer.market))
        if missing > 0:
            for offer in ranked:
                actions += [Request(offer.market, 1, offer.on_demand) for _ in range(missing)]
        wake_s, late, why = self._lateness(now_s, view, len(spot))
        if late and missing > 0:
            # On-demand nodes for what spot does not hold now; spares go once spot nodes have booted.
            short = missing - sum(h.vcpus for h in bought)
            if short > 0:
                actions.append(RequestOnDemand(self._type, short))
        ready = sum(
            h.vcpus for h in spot if h.phase is Phase.HELD and h.grant_s + view.job.engine.boot_s <= now_s
        )
        spare = ready + sum(h.vcpus for h in bought) - nodes
        actions += given_back(bought, spare)
        if bought and missing <= 0:
            wake_s = min(next_tick_s(self._start_s, now_s, TICK_S), wake_s or now_s + TICK_S)
        best = str(ranked[0].market) if ranked else "no pool"
        reason = (
            f"{missing} of {nodes} nodes missing, {best} first{why}"
            if missing > 0
            else f"all nodes held{why}"
        )
        return Decision(tuple(actions), reason, wake_s, wake_on_market=missing > 0, fill=nodes)

    def _lateness(self, now_s: int, view: MarketView, held: int) -> tuple[int | None, bool, str]:
        """(when to look again, whether it is late, words): slack shrinks while nodes are missing."""
        if self._deadline_s is None:
            return None, False, ""
        nodes = view.job.vcpus
        slack_s = self._deadline_s - now_s - view.work_left_vcpu_s / nodes - LATE_MARGIN_S
        if slack_s < 0:
            return next_tick_s(self._start_s, now_s, TICK_S), True, "; late: on-demand fills up"
        if held >= nodes:
            return None, False, f"; slack {slack_s / HOUR_S:.1f} h"
        # The soonest that it can run out is if nothing works from now on.
        ticks = max(1, math.ceil(slack_s / TICK_S))
        due_s = next_tick_s(self._start_s, now_s, TICK_S) + (ticks - 1) * TICK_S
        return due_s, False, f"; slack {slack_s / HOUR_S:.1f} h"


class Elastic(Spot2026):
    """As Spot2026 without a deadline: never on-demand."""

    def __init__(self, setting: Setting, start_s: int, model: PoolHazard | None = None) -> None:
        super().__init__(setting, start_s, model)
        self._deadline_s = None


class StaticCheckpoint:
    """All nodes in one pool or nothing, checkpoint and restart; the pool of lowest hazard that has room."""

    def __init__(self, setting: Setting, start_s: int, model: PoolHazard | None = None) -> None:
        self._hazard = PoolHazard.train(setting.pools, start_s) if model is None else model

    def decide(self, now_s: int, view: MarketView) -> Decision:
        if view.holdings:
            return Decision((), "all nodes are held")
        ranked = sorted(view.offers, key=lambda o: (self._hazard.rate(o.market).per_node_hour, o.market))
        asked = tuple(Request(offer.market, view.job.vcpus, offer.on_demand) for offer in ranked)
        reason = f"all {view.job.vcpus} nodes of one pool, {ranked[0].market} first"
        return Decision(asked, reason, wake_on_market=True, fill=view.job.vcpus)
