"""The buyer's own sum: what machines have cost, what the limits of the stack still allow."""

from __future__ import annotations

from enum import StrEnum
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from bidbrain.accounts.account import JobAccount
from bidbrain.aws.buyer.expenses import Expenses
from bidbrain.aws.limits import Limits
from bidbrain.billing import RULES, Ending
from bidbrain.history.prices import Market
from bidbrain.live.cloud import EndedInstance, Instance, Order
from bidbrain.live.guards import exposure
from tests.bidbrain.aws.demo_stack import LIMITS
from tests.thorough import examples

SPOT = Market("c5.xlarge", "us-east-1a")
PRICE = 60_000  # micro-dollars per hour


def limits(**changes: int) -> Limits:
    return LIMITS.model_copy(update=changes)


def order(token: str, count: int = 1) -> Order:
    return Order(token, SPOT, count, 1, 170_000)


def bought(expenses: Expenses, token: str, count: int, at_s: int, price: int = PRICE) -> list[str]:
    names = [f"i-{token}-{number}" for number in range(count)]
    expenses.placed("job", order(token, count), price)
    expenses.answered(token, [Instance(name, token, SPOT, at_s) for name in names])
    return names


@settings(deadline=None, derandomize=True, max_examples=examples(50))
@given(
    st.lists(st.tuples(st.integers(1, 4000), st.integers(1, 300_000)), min_size=1, max_size=8),
    st.sampled_from([Ending.TERMINATED, Ending.EVICTED]),
)
def test_a_machine_costs_its_seconds_at_the_prices_of_its_hours_beginnings(
    steps: list[tuple[int, int]], ending: Ending
) -> None:
    """Against the plain sum over seconds, 60 at least; free where AWS takes it back within its first hour."""
    expenses = Expenses(at_s=1000)
    (name,) = bought(expenses, "a", 1, 1000, price=steps[0][1])
    now_s, held = 1000, list[int]()  # the price that held, by second
    for number, (seconds, price) in enumerate(steps):
        now_s += seconds
        held += [price] * seconds
        following = steps[number + 1][1] if number + 1 < len(steps) else price
        expenses.advance(now_s, {SPOT: following})
    exact = Fraction(sum(held[second // 3600 * 3600] for second in range(len(held))), 3600)
    assert expenses.spent("job") == int(exact)
    expenses.ended([EndedInstance(name, now_s, ending)])
    used_s = now_s - 1000
    if ending is Ending.EVICTED and used_s < 3600:
        exact = Fraction(0)
    elif used_s < 60:
        exact = Fraction(steps[0][1] * 60, 3600)
    assert expenses.spent("job") == expenses.spent() == int(exact)
    assert Expenses.model_validate_json(expenses.model_dump_json()) == expenses


def test_rising_prices_do_not_bring_the_buyer_to_the_budget_before_the_job() -> None:
    """At the stack's limit all machines end at once: the job, which counts each hour at the price of its beginning, is
    to drain before that. A price that doubles in ten days, looked at every ten minutes."""
    expenses, account = Expenses(at_s=0), JobAccount(RULES["per_second"])
    bought(expenses, "a", 1, 0, PRICE)
    machine = account.request(0, SPOT, 1, 1, 170_000, 0, "a")
    account.grant(0, machine, PRICE)
    hours = 240
    for now_s in range(600, hours * 3600 + 1, 600):
        price = PRICE + PRICE * now_s // (hours * 3600)
        if now_s % 3600 == 0:
            account.next_hour(now_s, machine, price)
        expenses.advance(now_s, {SPOT: price})
        assert expenses.spent("job") <= exposure(account, now_s, now_s) + hours  # each hour's line is rounded


def test_a_sum_that_an_earlier_version_kept_goes_on() -> None:
    expenses = Expenses(at_s=0)
    bought(expenses, "a", 1, 0)
    before = expenses.model_dump()
    del before["held"]["i-a-0"]["hour_price"]
    again = Expenses.model_validate(before)
    again.advance(1800, {SPOT: 2 * PRICE})
    again.advance(5400, {})
    assert again.spent() == PRICE + PRICE


def test_what_may_be_bought_ends_with_machines_and_dollars() -> None:
    expenses = Expenses(at_s=0)
    assert not expenses.refusal("job", order("a", 3), PRICE, limits(machines=3))
    bought(expenses, "a", 3, 0)
    said = expenses.refusal("job", order("b"), PRICE, limits(machines=3))
    assert said == "3 machines are there and 1 more asked for, the stack's limit is 3"
    said = expenses.refusal("job", order("b"), PRICE, limits(job_micro_usd=239_999))
    assert said == (
        "job job has cost 0.000000 $, and 0.240000 $ more for an hour with it, the stack's limit is 0.239999 $"
    )
    assert not expenses.refusal("job", order("b"), PRICE, limits(job_micro_usd=240_000))


def test_an_order_whose_answer_is_not_known_counts_as_bought() -> None:
    expenses = Expenses(at_s=0)
    expenses.placed("job", order("a", 2), PRICE)
    assert expenses.refusal("job", order("b", 2), PRICE, limits(machines=3))
    assert not expenses.refusal("job", order("a", 2), PRICE, limits(machines=2)), "it is asked about again"
    assert expenses.refusal("job", order("a", 3), PRICE, limits()) == "a was another order before"
    expenses.answered("a", ())
    assert not expenses.refusal("job", order("b", 2), PRICE, limits(machines=3)), "it was refused"


def test_an_order_has_one_answer() -> None:
    """EC2 may never have heard of the token of an order that was answered with nothing, and would sell it later."""
    expenses = Expenses(at_s=0)
    expenses.placed("job", order("a", 2), PRICE)
    assert expenses.sold("job", order("a", 2)) == ()
    expenses.answered("a", ())
    assert expenses.sold("job", order("a", 2)) == ()
    assert expenses.refusal("job", order("a", 2), PRICE, limits()) == "a was answered before"
    names = bought(expenses, "b", 2, 0)
    again = Expenses.model_validate_json(expenses.model_dump_json())
    assert [each.instance_id for each in again.sold("job", order("b", 2))] == names
    assert again.sold("job", order("b", 1)) == again.sold("other", order("b", 2)) == ()


class Seller:
    """EC2: a token that it has heard has its one answer, another is sold in full."""

    def __init__(self) -> None:
        self.sold: dict[str, list[Instance]] = {}
        self.running: set[str] = set()

    def sell(self, asked: Order, most: int) -> list[Instance]:
        if asked.token not in self.sold:
            names = [f"i-{asked.token}-{number}" for number in range(min(most, asked.instances))]
            self.sold[asked.token] = [Instance(name, asked.token, SPOT, 0) for name in names]
            self.running |= set(names)
        return self.sold[asked.token]


class Fate(StrEnum):
    """What becomes of an order that the buyer lets pass."""

    ANSWERED = "answered"
    LOST = "lost"  # EC2 sells, and nobody hears it
    THROTTLED = "throttled"  # EC2 does not hear of it, and it has no answer
    REFUSED = "refused"  # EC2 has not heard of its token, and it is answered with nothing


@settings(deadline=None, derandomize=True, max_examples=examples(300))
@given(
    st.lists(
        st.tuples(
            st.integers(0, 2),
            st.sampled_from((3, 3, 2)),
            st.sampled_from(Fate),
            st.integers(0, 3),
            st.booleans(),
        ),
        min_size=6,
        max_size=20,
    )
)
def test_no_sequence_of_orders_and_answers_has_more_machines_than_the_limit(
    steps: list[tuple[int, int, Fate, int, bool]],
) -> None:
    """Each step: an order of a token (again, or of another size), what becomes of it, and whether a machine ends."""
    expenses, ec2, most = Expenses(at_s=0), Seller(), 4
    for number, count, fate, sold, ends in steps:
        asked = order(f"t{number}", count)
        if not expenses.sold("job", asked) and not expenses.refusal(
            "job", asked, PRICE, limits(machines=most)
        ):
            expenses.placed("job", asked, PRICE)
            if fate is Fate.REFUSED and asked.token in ec2.sold:
                fate = Fate.ANSWERED
            bought_now = ec2.sell(asked, sold) if fate in (Fate.ANSWERED, Fate.LOST) else []
            if fate in (Fate.ANSWERED, Fate.REFUSED):
                expenses.answered(asked.token, bought_now)
        if ends and expenses.held:
            gone = min(expenses.held)
            ec2.running.discard(gone)
            expenses.ended([EndedInstance(gone, 0, Ending.TERMINATED)])
        unanswered = sum(each.order.instances for each in expenses.orders.values() if not each.is_answered)
        assert len(expenses.held) + unanswered <= most
        assert len(ec2.running) <= most


def test_another_job_does_not_begin_a_new_sum_of_the_stack() -> None:
    """A job that names itself anew has a budget of its own; the sum over all jobs goes on."""
    expenses = Expenses(at_s=0)
    bought(expenses, "a", 1, 0)
    expenses.advance(3600 * 5, {})
    of_all = limits(job_micro_usd=300_000, stack_micro_usd=400_000)
    assert not expenses.overdrawn("job", of_all)
    assert expenses.overdrawn("job", limits(job_micro_usd=299_999)) == (
        "job job has cost 0.300000 $, the stack's limit is 0.299999 $"
    )
    assert not expenses.refusal("other", order("b"), 20_000, of_all)
    said = expenses.refusal("other", order("b"), 2 * PRICE, of_all)
    assert said.startswith("the stack with all its jobs has cost 0.300000 $")
    assert expenses.left("job", of_all) == 400_000, "it may have gone on in another process"
    assert expenses.left("other", of_all) == 100_000
    assert expenses.left("other", limits(job_micro_usd=300_000, stack_micro_usd=200_000)) == 0
    assert expenses.left("other", limits()) is None
