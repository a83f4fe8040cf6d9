"""How long the driver waits for answers of Ray's head."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from agileml.cluster.ray_cluster import RAYS_LIMIT, GcsWatch, gcs_limit_s
from agileml.driver.ray_answers import RayAnswers
from agileml.errors import HeadLostError

LIMIT_S = 40.0  # Ray ends the process after 60
HERE = frozenset({"here"})


class Head:
    """A head that answers at last, or never. Its clock runs while somebody waits for it."""

    def __init__(self, answers_at_s: float) -> None:
        self.now_s = 0.0
        self.answers_at_s = answers_at_s

    def clock_s(self) -> float:
        return self.now_s

    def live_nodes(self, timeout_s: float) -> frozenset[str] | None:
        if self.now_s + timeout_s < self.answers_at_s:
            self.now_s += timeout_s
            return None
        self.now_s = max(self.now_s, self.answers_at_s)
        return HERE


def answers(head: Head, check_own_head: Callable[[], None] = lambda: None) -> RayAnswers:
    return RayAnswers(check_own_head, GcsWatch(head.live_nodes, head.clock_s))


@pytest.mark.parametrize("answers_at_s", [0.0, 2.0, 10.0, LIMIT_S - 5])
def test_a_head_that_comes_back_is_waited_for(answers_at_s: float) -> None:
    head = Head(answers_at_s)
    assert answers(head).live_nodes() == HERE
    assert head.now_s == answers_at_s


def test_a_head_that_others_run_is_given_up_before_ray_ends_the_process() -> None:
    head = Head(float("inf"))
    with pytest.raises(HeadLostError, match=r"has not answered for 40 s.*--resume"):
        answers(head).live_nodes()
    assert LIMIT_S <= head.now_s < LIMIT_S + 5


def test_each_wait_begins_anew() -> None:
    head = Head(LIMIT_S - 5)
    waits = answers(head)
    waits.live_nodes()
    head.answers_at_s = head.now_s + LIMIT_S - 5
    assert waits.live_nodes() == HERE


def test_a_head_of_ours_that_has_ended_is_not_waited_for() -> None:
    looks: Iterator[bool] = iter([True, True, False])

    def check_own_head() -> None:
        if not next(looks):
            raise HeadLostError("ended")

    head = Head(float("inf"))
    with pytest.raises(HeadLostError, match=r"^ended$"):
        answers(head, check_own_head).live_nodes()
    assert head.now_s < 10


def test_where_ray_waits_for_longer_the_run_does(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gcs_limit_s() == LIMIT_S
    monkeypatch.setenv(RAYS_LIMIT, "600")
    assert gcs_limit_s() == 580.0
    head = Head(500.0)
    assert answers(head).live_nodes() == HERE
