"""Decisions as the journal holds them: a policy's view, its actions as steps, and how much the guards allow. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from bidbrain.live.cloud import Quotes
from bidbrain.live.guards import Guards, affordable, of_new, spent
from bidbrain.live.journal import Buy, BuyOnDemand, Decided, Figures, Mark, Marking, Step
from bidbrain.live.state import JobState
from bidbrain.money import machine_seconds_micro_usd
from bidbrain.policy.answer import PolicyError, check_on_demand, checked_decision
from bidbrain.policy.base import Action, GiveBack, Keep, LetGo, MarketView, Policy, Request, RequestOnDemand
from bidbrain.setting import Setting, Workload


@dataclass(frozen=True)
class Measurements:
    """Figures that the running job measured; None: not measured yet, the config's figure holds.

    phi: scaling efficiency. lambda_s, sigma_s: seconds lost per eviction and per change. nu: vCPUs that an instance of
    a type is worth. (The symbols of the thesis' equations 4.1 - 4.4.) traffic_gb_per_h: what a machine sends and
    receives.
    """

    phi: float | None = None
    lambda_s: float | None = None
    sigma_s: float | None = None
    nu: dict[str, float] = field(default_factory=dict)
    traffic_gb_per_h: float | None = None


def measured_job(job: Workload, measured: Measurements) -> Workload:
    """The config's job with measured figures instead of assumed ones."""
    engine = job.engine
    if measured.lambda_s is not None:
        engine = replace(engine, lambda_s=round(measured.lambda_s))
    if measured.sigma_s is not None:
        engine = replace(engine, sigma_s=round(measured.sigma_s))
    phi = job.phi if measured.phi is None else measured.phi
    gb_per_h = job.traffic_gb_per_h if measured.traffic_gb_per_h is None else measured.traffic_gb_per_h
    return replace(job, engine=engine, phi=phi, traffic_gb_per_h=gb_per_h)


def worth_of(measured: Measurements, setting: Setting) -> float:
    """The measured types' worth as a share of their nominal vCPUs, assumed for the other types too."""
    nominal = {listing.market.instance_type: listing.vcpus for listing in setting.listings}
    seen = [kind for kind in nominal if kind in measured.nu]
    return sum(measured.nu[kind] for kind in seen) / sum(nominal[kind] for kind in seen) if seen else 1.0


def view_of(
    setting: Setting, state: JobState, quotes: Quotes, measured: Measurements, guards: Guards, done: float
) -> MarketView:
    """The policy's view now: without markets that are full or above max_price, unless the job holds instances there."""
    ours = {allocation.market for allocation in state.account.open}
    worth = worth_of(measured, setting)
    offers = tuple(
        replace(offer, nu=measured.nu.get(offer.market.instance_type, worth * offer.nu))
        for offer in quotes.offers
        if offer.market in ours
        or (offer.market not in quotes.full and (guards.max_price is None or offer.price <= guards.max_price))
    )
    own = tuple(a.holding() for a in state.account.open if a.number >= 0)
    job = measured_job(setting.job, measured)
    return MarketView(offers, own, job, setting.job.work_vcpu_s - done, state.risk, state.warned)


def decide(
    now_s: int,
    policy: Policy,
    view: MarketView,
    state: JobState,
    quotes: Quotes,
    setting: Setting,
    together: bool,
) -> Decided:
    """Ask the policy. Raises PolicyError for an impossible action or a wake-up in the past."""
    decision = checked_decision(policy.decide(now_s, view), view)
    if decision.wake_s is not None and decision.wake_s <= now_s:
        raise PolicyError(f"the policy asks to be woken at {decision.wake_s}, which is not after {now_s}")
    steps = steps_of(decision.actions, setting, together)
    engine = view.job.engine
    figures = Figures(
        len(view.offers),
        sum(holding.vcpus for holding in view.holdings),
        spent(state.account),
        view.work_left_vcpu_s,
        view.job.phi,
        engine.lambda_s,
        engine.sigma_s,
        round(view.job.traffic_gb_per_h, 3),
    )
    return Decided(
        now_s,
        decision.reason,
        steps,
        decision.fill,
        decision.wake_s,
        decision.wake_on_market,
        quotes.pulse,
        figures,
        decision.wake_on_notice,
    )


def steps_of(actions: Sequence[Action], setting: Setting, together: bool) -> tuple[Step, ...]:
    """Actions as steps; raises PolicyError.

    Where instances are evicted each on its own (not `together`), every instance is an allocation of its own, and
    neighbouring requests for one market at one bid become one purchase of whole instances.
    """
    steps: list[Step] = []
    for action in actions:
        step = step_of(action, setting)
        count = action.count if isinstance(action, Request) else 1
        if together or not isinstance(step, Buy):
            steps += [step] * count
            continue
        step = replace(step, vcpus=step.vcpus * count)
        last = steps[-1] if steps else None
        if isinstance(last, Buy) and (step.market, step.bid) == (last.market, last.bid):
            step = replace(last, vcpus=last.vcpus + step.vcpus)
            steps.pop()
        steps.append(step)
    return tuple(steps if together else (_by_instance(step, setting) for step in steps))


def step_of(action: Action, setting: Setting) -> Step:
    """One action as one step; raises PolicyError."""
    match action:
        case Request(market, vcpus, bid, _):
            if market not in setting.by_market or vcpus <= 0:
                raise PolicyError(f"the policy requests {vcpus} vCPUs of {market}")
            return Buy(market, vcpus, 1, bid)
        case RequestOnDemand(kind, vcpus):
            check_on_demand(kind, setting)
            return BuyOnDemand(vcpus)
        case Keep(number):
            return Mark(Marking.KEEP, number)
        case LetGo(number):
            return Mark(Marking.LET_GO, number)
        case GiveBack(number):
            return Mark(Marking.RELEASE, number)


def _by_instance(step: Step, setting: Setting) -> Step:
    if not isinstance(step, Buy):
        return step
    each = setting.by_market[step.market].vcpus
    parts = max(1, step.vcpus // each)
    return replace(step, vcpus=parts * each, parts=parts)


@dataclass(frozen=True)
class Allowed:
    """The part of a purchase that the guards and the market allow; `why` it is less than decided, empty if it is all.

    by_guard: a guard of the user made it less, not the market.
    """

    vcpus: int
    parts: int
    bid: int
    why: str = ""
    by_guard: bool = False


def allowed(step: Buy, state: JobState, guards: Guards, now_s: int) -> Allowed:
    """How much of a purchase may be made: all of it, or as many whole instances as fit."""
    decided = state.decided
    assert decided is not None
    per_instance = state.per_instance(step.market)
    bid = step.bid if guards.max_price is None else min(step.bid, guards.max_price)
    wanted = instances = -(-step.vcpus // per_instance)
    why, by_guard = "", False

    def nothing(why: str) -> Allowed:
        return Allowed(0, 0, bid, why, by_guard)

    if now_s < state.failures.until_s(step.market):
        return nothing(f"machines of {step.market} ended by themselves soon after their launch")
    if decided.fill is not None:
        if step.market in state.full:
            return nothing(f"{step.market} has just refused")
        room = max(0, decided.fill - state.account.spot_vcpus)
        instances = instances if step.vcpus <= room else room // per_instance * (step.parts > 1)
        if not instances:
            return nothing(f"{decided.fill} vCPUs of spot are held")
        if instances < wanted:
            why = f"{decided.fill} vCPUs of spot are wanted"
    if guards.max_machines is not None:
        left = max(0, guards.max_machines - state.instance_count - state.kept_free)
        if left < instances:
            instances, by_guard = left, True
            why = f"guard max_machines: {state.instance_count} of {guards.max_machines}"
    while instances:
        whole = instances == wanted
        vcpus = step.vcpus if whole else instances * per_instance
        extra = of_new(state.account.rules, vcpus, per_instance, bid, guards.hold_s)
        dear = affordable(guards, state.account, now_s, extra)
        if dear is None:
            return Allowed(vcpus, instances if step.parts > 1 else 1, bid, why, by_guard)
        instances, why, by_guard = instances // 2, dear, True
    return nothing(why)


def on_demand_size(vcpus: int, each: int, together: bool) -> tuple[int, int]:
    """(vCPUs, allocations) of an order for on-demand instances of `each` vCPUs.

    Where instances do not end together, each is an allocation of its own, and paid as a whole.
    """
    instances = -(-vcpus // each)
    return (vcpus, 1) if together else (instances * each, instances)


def allowed_on_demand(
    step: BuyOnDemand, setting: Setting, state: JobState, guards: Guards, now_s: int, together: bool
) -> Allowed:
    """How much of a purchase of on-demand instances may be made: all of it, or as many instances as fit.

    The budget does not have to pay an hour of the instances that the decision gives back for them.
    """
    reliable = setting.reliable
    each, price = reliable.vcpus_per_machine, reliable.on_demand
    if guards.max_price is not None and price > guards.max_price:
        return Allowed(0, 0, price, "guard max_price: on-demand instances cost more", by_guard=True)
    if now_s < state.failures.until_s(reliable.market):
        return Allowed(0, 0, price, "on-demand instances ended by themselves soon after their launch")
    wanted = instances = -(-step.vcpus // each)
    why = ""
    if guards.max_machines is not None:
        instances = min(wanted, max(0, guards.max_machines - state.instance_count - state.kept_free))
        if instances < wanted:
            why = f"guard max_machines: {state.instance_count} of {guards.max_machines}"
    while instances:
        vcpus, parts = on_demand_size(min(step.vcpus, instances * each), each, together)
        extra = machine_seconds_micro_usd(price, vcpus, each, guards.hold_s)
        dear = affordable(guards, state.account, now_s, extra, _given_back(state))
        if dear is None:
            return Allowed(vcpus, parts, price, why, bool(why))
        instances, why = instances // 2, dear
    return Allowed(0, 0, price, why, by_guard=True)


def lost_reliable(setting: Setting, state: JobState, guards: Guards, now_s: int) -> str | None:
    """The reason to stop a job that has lost its reliable instances: the budget does not pay for others. None: it does,
    or the job has some, or never had any (`dry_run` refuses a job that cannot pay for them)."""
    if (
        not state.had_reliable
        or state.has_reliable
        or any(e.ordered.reliable for e in state.pending.values())
    ):
        return None
    reliable = setting.reliable
    what = (reliable.on_demand, reliable.vcpus, reliable.vcpus_per_machine, guards.hold_s)
    why = affordable(guards, state.account, now_s, machine_seconds_micro_usd(*what))
    return (
        None if why is None else f"the reliable machines are lost, and there is no budget for others ({why})"
    )


def _given_back(state: JobState) -> frozenset[int]:
    """Allocations that the decision gives back now, as far as it has not yet."""
    steps = () if state.decided is None else state.decided.steps[state.cursor :]
    return frozenset(step.number for step in steps if isinstance(step, Mark) and step.what is Marking.RELEASE)
