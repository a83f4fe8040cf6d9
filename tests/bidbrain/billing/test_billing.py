"""The rules of two eras, worked by hand at every boundary. Prices in micro-dollars per machine hour."""

import pytest

from bidbrain.billing import RULES, Ending, Life, Line, bill

OLD, NEW, PAID = RULES["hourly_2016"], RULES["per_second"], RULES["per_second_paid"]
CENT = 10_000


def price_at(at_s: int) -> int:
    """10 cents in the first hour, 20 in the second, 30 in the third ..."""
    return 10 * CENT * (1 + at_s // 3600)


def lines(rules, end_s: int | None, ending: Ending | None, vcpus: int = 8, now_s: int = 10_000) -> list[Line]:
    """Two machines of 4 vCPUs from second 0."""
    return list(bill(rules, Life(0, vcpus, 4, end_s, ending), price_at, now_s))


@pytest.mark.parametrize(
    ("end_s", "ending", "amounts"),
    [
        (3599, Ending.EVICTED, [200_000, -200_000]),  # the hour's last second: all of it comes back
        (3600, Ending.EVICTED, [200_000]),  # at the boundary: the finished hour stays, no new one begins
        (3601, Ending.EVICTED, [200_000, 400_000, -400_000]),
        (1, Ending.EVICTED, [200_000, -200_000]),
        (0, Ending.EVICTED, [200_000, -200_000]),  # the price passed the bid in the second of the grant
        (1800, Ending.TERMINATED, [200_000]),  # our own termination: the hour stays charged
        (3600, Ending.TERMINATED, [200_000]),
        (5400, Ending.TERMINATED, [200_000, 400_000]),
        (1800, Ending.JOB_END, [200_000, -100_000]),  # the unused half of the last hour is not charged
        (3600, Ending.JOB_END, [200_000]),
        (3601, Ending.JOB_END, [200_000, 400_000, -399_889]),  # one second of 0.4 $ is 111 micro-dollars
        (0, Ending.JOB_END, [200_000, -200_000]),
    ],
)
def test_hourly_2016(end_s: int, ending: Ending, amounts: list[int]) -> None:
    assert [line.micro_usd for line in lines(OLD, end_s, ending)] == amounts


def test_an_hour_has_the_price_of_its_beginning() -> None:
    assert [(line.at_s, line.hour, line.price) for line in lines(OLD, 9000, Ending.TERMINATED)] == [
        (0, 0, 100_000),
        (3600, 1, 200_000),
        (7200, 2, 300_000),
    ]


def test_what_still_runs_is_billed_up_to_now() -> None:
    assert [line.micro_usd for line in lines(OLD, None, None, now_s=3600)] == [200_000, 400_000]
    assert [line.micro_usd for line in lines(OLD, None, None, now_s=3599)] == [200_000]
    assert [line.micro_usd for line in lines(NEW, None, None, now_s=3600)] == [200_000]
    assert lines(NEW, None, None, now_s=3599) == []


@pytest.mark.parametrize(
    ("end_s", "ending", "amounts"),
    [
        (30, Ending.TERMINATED, [3_333]),  # 60 s at least
        (60, Ending.TERMINATED, [3_333]),
        (61, Ending.TERMINATED, [3_389]),
        (1800, Ending.JOB_END, [100_000]),
        (3600, Ending.TERMINATED, [200_000]),
        (3630, Ending.TERMINATED, [200_000, 3_333]),  # the minimum is the instance's, not the hour's
        (1800, Ending.EVICTED, []),  # within the first hour: free
        (3599, Ending.EVICTED, []),
        (3600, Ending.EVICTED, [200_000]),  # the first hour was whole
        (5400, Ending.EVICTED, [200_000, 200_000]),  # later ones pay for what they had
    ],
)
def test_per_second(end_s: int, ending: Ending, amounts: list[int]) -> None:
    assert [line.micro_usd for line in lines(NEW, end_s, ending)] == amounts


def test_per_second_paid_has_no_free_first_hour() -> None:
    assert [line.micro_usd for line in lines(PAID, 1800, Ending.EVICTED)] == [100_000]
    assert lines(PAID, 5400, Ending.EVICTED) == lines(NEW, 5400, Ending.EVICTED)
    assert [line.micro_usd for line in lines(PAID, 5, Ending.EVICTED)] == [3_333]


@pytest.mark.parametrize(("hour", "amounts"), [(None, [200_000]), (0, [200_000]), (1, [200_000, 400_000])])
def test_given_back_at_a_boundary_before_or_after_the_next_hour_began(
    hour: int | None, amounts: list[int]
) -> None:
    life = Life(0, 8, 4, 3600, Ending.TERMINATED, hour)
    assert [line.micro_usd for line in bill(OLD, life, price_at, 10_000)] == amounts
    by_second = list(bill(NEW, life, price_at, 10_000))
    assert [line.micro_usd for line in by_second] == [200_000]  # no second of the next hour was used


def test_a_fraction_of_a_machine_is_rounded_half_up_once() -> None:
    third = list(bill(OLD, Life(0, 1, 3, 1, Ending.JOB_END), lambda _: 2, 9))
    # 2/3 of a micro-dollar for the hour is 1; a second of it is 0: 1 comes back.
    assert [line.micro_usd for line in third] == [1, -1]
    half = list(bill(OLD, Life(0, 1, 4, 3600, Ending.TERMINATED), lambda _: 2, 3600))
    assert [line.micro_usd for line in half] == [1]
