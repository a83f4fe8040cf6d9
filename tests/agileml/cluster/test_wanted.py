"""A run that waits for nodes says which it wants, which the cluster has, and how to add one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agileml.cluster.wanted import NodeOffer, shortage
from agileml.events.terms import Tier

WANTED = {Tier.RELIABLE: 1, Tier.TRANSIENT: 2}
GOOD, SPOT, BARE = NodeOffer(Tier.RELIABLE, 2, 0), NodeOffer(Tier.TRANSIENT, 2, 0), NodeOffer(None, 8, 0)


def test_the_sentence_names_labels_sizes_and_the_command() -> None:
    assert shortage(WANTED, 2, 0, [BARE, BARE, SPOT, NodeOffer(Tier.RELIABLE, 1, 0)], "10.0.0.5:6379") == (
        "wants 1 reliable + 2 transient of 2 CPUs each (label tier=reliable or tier=transient); "
        "the cluster has 0 reliable + 1 transient, 1 with fewer, 2 without such a label; "
        "add one with `ray start --address=10.0.0.5:6379 --labels tier=reliable`"
    )
    assert "2 CPUs and 1 GPUs" in shortage(WANTED, 2, 1, [GOOD, SPOT, SPOT], "a:1")
    assert "tier=transient`" in shortage(WANTED, 2, 0, [GOOD], "a:1")


@given(st.lists(st.sampled_from([GOOD, SPOT, BARE, NodeOffer(Tier.RELIABLE, 1, 0)]), max_size=6))
def test_it_is_empty_exactly_when_the_run_can_start(offers: list[NodeOffer]) -> None:
    fitting = [offer for offer in offers if offer in (GOOD, SPOT)]
    can_start = len(fitting) >= 3 and GOOD in fitting
    assert (shortage(WANTED, 2, 0, offers, "a:1") == "") == can_start
