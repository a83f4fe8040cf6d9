"""The answer of a policy, checked before anybody acts on it: the same live and simulated."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from bidbrain.history.prices import Market
from bidbrain.policy.base import (
    Action,
    Decision,
    GiveBack,
    Keep,
    LetGo,
    MarketView,
    Phase,
    Request,
    RequestOnDemand,
)
from bidbrain.setting import ON_DEMAND_ZONE, Setting


class PolicyError(RuntimeError):
    """A policy asked for something impossible: an unknown market, a bid or a size of nothing, a wake-up in the past."""


def checked_decision(answer: object, view: MarketView) -> Decision:
    """Check what `decide` made of a view, and make its figures plain ints: ledgers and journals have no others.

    A bid and `fill` are rounded down and `wake_s` up, which changes nothing of what they say. Raises PolicyError unless
    it is a Decision that asks for something.
    """
    if not isinstance(answer, Decision):
        raise PolicyError(f"decide() of the policy returned {type(answer).__name__}, expected a Decision")
    if not isinstance(answer.actions, Iterable):
        raise PolicyError(
            f"the actions of the policy's decision are a {type(answer.actions).__name__}, expected a tuple of "
            "actions: (action,) for a single one"
        )
    wake_s, fill = answer.wake_s, answer.fill
    return replace(
        answer,
        actions=tuple(_checked_action(action, view) for action in answer.actions),
        wake_s=None if wake_s is None else _whole(wake_s, "the policy asks to be woken at {}", math.ceil),
        fill=None if fill is None else _whole(fill, "the policy fills up to {} vCPUs", math.floor),
    )


def _checked_action(action: object, view: MarketView) -> Action:
    match action:
        case Request(market, vcpus, bid, count):
            bid = _whole(bid, "the policy bids {} micro-dollars for {}", math.floor, market)
            if bid <= 0:
                raise PolicyError(f"the policy bids {bid} micro-dollars for {market}, expected more than 0")
            vcpus = _whole(vcpus, "the policy requests {} vCPUs of {}", _exactly, market)
            return Request(market, vcpus, bid, _whole(count, "the policy makes {} requests", _exactly))
        case RequestOnDemand(kind, vcpus):
            vcpus = _whole(vcpus, "the policy requests {} vCPUs on demand", _exactly)
            if vcpus <= 0:
                raise PolicyError(f"the policy requests {vcpus} vCPUs on demand, expected more than 0")
            return RequestOnDemand(kind, vcpus)
        case LetGo(number):
            if any(h.number == number and h.market.zone == ON_DEMAND_ZONE for h in view.holdings):
                raise PolicyError(
                    f"the policy lets allocation {number} go with its hour, but it is on demand and has none, "
                    "expected GiveBack"
                )
            return action
        case Keep(number):
            if any(h.number == number and h.phase is Phase.LEAVING for h in view.holdings):
                raise PolicyError(
                    f"the policy keeps allocation {number}, but it has let it go with its hour, expected no Keep: what "
                    "is let go cannot be kept any more"
                )
            return action
        case GiveBack():
            return action
    raise PolicyError(
        f"an action of the policy is a {type(action).__name__}, "
        "expected a Request, RequestOnDemand, Keep, LetGo or GiveBack"
    )


def _whole(figure: Any, what: str, rounded: Callable[[Any], int], of: Market | None = None) -> int:
    """A figure of a policy's as an int; it may be one of numpy, or a float. what: the sentence about it and `of`."""
    if type(figure) is int:
        return figure
    try:
        return int(rounded(figure))
    except (TypeError, ValueError, OverflowError):
        raise PolicyError(f"{what.format(figure, of)}, expected a whole number") from None


def _exactly(figure: Any) -> int:
    whole = math.floor(figure)
    if whole != figure:
        raise ValueError
    return whole


def check_on_demand(instance_type: str, setting: Setting) -> None:
    """Raise PolicyError for another type than that of the reliable machines: only that is bought on demand."""
    if instance_type != setting.reliable.instance_type:
        raise PolicyError(
            f"the policy requests {instance_type} on demand, expected {setting.reliable.instance_type}, "
            "the type of the reliable machines"
        )
