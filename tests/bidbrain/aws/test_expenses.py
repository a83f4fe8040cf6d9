"""The buyer's own sum: what machines have cost, what the limits of the stack still allow."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from bidbrain.aws.buyer.expenses import Expenses
from bidbrain.aws.limits import Limits
from bidbrain.billing import Ending
from bidbrain.history.prices import Market
from bidbrain.live.cloud import EndedInstance, Instance, Order
from tests.bidbrain.aws.demo_stack import LIMITS

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


@settings(deadline=None, derandomize=True, max_examples=50)
@given(
    st.lists(st.tuples(st.integers(1, 4000), st.integers(1, 300_000)), min_size=1, max_size=8),
    st.sampled_from([Ending.TERMINATED, Ending.EVICTED]),
)
def test_a_machine_costs_its_seconds_at_the_prices_that_held(
    steps: list[tuple[int, int]], ending: Ending
) -> None:
    """Against the plain sum over seconds, 60 at least; free where AWS takes it back within its first hour."""
    expenses = Expenses(at_s=1000)
    (name,) = bought(expenses, "a", 1, 1000, price=steps[0][1])
    now_s, exact = 1000, Fraction(0)
    for number, (seconds, price) in enumerate(steps):
        now_s += seconds
        exact += Fraction(price * seconds, 3600)
        following = steps[number + 1][1] if number + 1 < len(steps) else price
        expenses.advance(now_s, {SPOT: following})
    assert expenses.spent("job") == int(exact)
    expenses.ended([EndedInstance(name, now_s, ending)])
    used_s = now_s - 1000
    if ending is Ending.EVICTED and used_s < 3600:
        exact = Fraction(0)
    elif used_s < 60:
        exact = max(exact, Fraction(steps[-1][1] * 60, 3600))
    assert expenses.spent("job") == expenses.spent() == int(exact)
    assert Expenses.model_validate_json(expenses.model_dump_json()) == expenses


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
