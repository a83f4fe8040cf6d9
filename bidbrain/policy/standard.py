"""The simple schemes: all on-demand, and the standard bid (thesis, section 4.5.2)."""

from __future__ import annotations

from bidbrain.policy.base import Decision, MarketView, Offer, Request, RequestOnDemand, show_price
from bidbrain.setting import Setting

AGAIN_S = 300  # until on-demand machines that are missing are asked for again


class OnDemand:
    """The whole job on on-demand machines of the reference type; all costs are relative to it."""

    def __init__(self, setting: Setting, start_s: int) -> None:
        self._type = setting.reliable.instance_type

    def decide(self, now_s: int, view: MarketView) -> Decision:
        if view.holdings:
            return Decision((), "all machines are held")
        return Decision(
            (RequestOnDemand(self._type, view.job.vcpus),), "on-demand machines for the whole job"
        )


class WholeOnDemand(OnDemand):
    """The same on a market that may refuse on-demand machines, sell fewer, or lose some: asks for those again."""

    def decide(self, now_s: int, view: MarketView) -> Decision:
        missing = view.job.vcpus - sum(holding.vcpus for holding in view.holdings)
        if missing <= 0:
            return Decision((), "all machines are held")
        which = "on-demand machines for the whole job"
        if view.holdings:
            which = f"{missing} vCPUs of on-demand machines are missing"
        return Decision((RequestOnDemand(self._type, missing),), which, now_s + AGAIN_S)


class Standard:
    """All vCPUs in the market of least price per vCPU, bid = its on-demand price; on eviction choose again at once.

    If no market is at or below its on-demand price: wait for the next change of a price.
    """

    def __init__(self, setting: Setting, start_s: int) -> None:
        pass

    def decide(self, now_s: int, view: MarketView) -> Decision:
        if view.holdings:
            return Decision((), "all machines are held")
        best: Offer | None = None
        for offer in view.offers:
            cheaper = best is None or offer.price * best.vcpus < best.price * offer.vcpus
            if offer.price <= offer.on_demand and cheaper:
                best = offer
        if best is None:
            return Decision((), "no market is at or below its on-demand price", wake_on_market=True)
        return Decision(
            (Request(best.market, view.job.vcpus, best.on_demand),),
            f"{best.market} has the least price per vCPU ({show_price(best.price)}); bid on-demand",
        )
