"""What is large is not sent again and again behind itself."""

from __future__ import annotations

from agileml.core.node.retry import RetryBackoff


def repeats(until_s, *, key="part", first_s=2.0, step_s=1.0):
    backoff, found, now_s = RetryBackoff(first_s), [], 0.0
    while now_s <= until_s:
        backoff.begin(now_s)
        if backoff.is_due(key):
            found.append(now_s)
        backoff.end()
        now_s += step_s
    return found


def test_each_wait_is_twice_the_one_before_up_to_a_limit():
    assert repeats(100.0) == [2.0, 6.0, 14.0, 30.0, 62.0, 94.0]


def test_what_was_answered_starts_anew():
    backoff = RetryBackoff(2.0)
    for now_s, keys in ((0.0, "ab"), (2.0, "a"), (3.0, "ab"), (4.0, "b"), (5.0, "b")):
        backoff.begin(now_s)
        due = [key for key in keys if backoff.is_due(key)]
        backoff.end()
        assert due == {2.0: ["a"], 5.0: ["b"]}.get(now_s, []), now_s


def test_while_the_peer_sends_the_answer_may_be_behind_it():
    backoff, found = RetryBackoff(2.0), []
    for now_s in range(80):
        if now_s < 20:
            backoff.receiving("m1", now_s - 0.5)
        backoff.begin(now_s)
        found += [now_s] if backoff.is_due("push", "m1") else []
        backoff.end()
    assert found == [21, 25, 33, 49], "two seconds after its last sign, then each wait twice as long"


def test_one_that_sends_other_things_for_ever_is_asked_again_all_the_same():
    backoff, found = RetryBackoff(2.0), []
    for now_s in range(100):
        backoff.receiving("m1", now_s)
        backoff.receiving("m2", now_s)
        backoff.begin(now_s)
        found += [now_s] if backoff.is_due("push", "m1") else []
        backoff.end()
    assert found == [32, 64, 96]
