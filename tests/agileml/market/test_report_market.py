"""What a run on a market says of its bill."""

from __future__ import annotations

from typing import Any

from agileml.runs.report.market import endings, tiles

MARKET: dict[str, Any] = {
    "policy": "proteus",
    "finished": True,
    "ending": "the work is done",
    "job_vcpus": 128,
    "job_hours": 3.7,
    "usd": 6.95,
    "market_hours": 4.76,
    "evictions": 8,
    "on_demand_usd": 24.86,
    "standard": "standard_checkpoint",
    "standard_checkpoint_usd": 5.42,
    "standard_checkpoint_hours": 4.75,
    "standard_checkpoint_finished": True,
    "rebilled_differences": [],
}


def test_the_bill_of_a_whole_job_stands_beside_other_prices_of_it() -> None:
    summary = {"clocks": 1000, "market": MARKET}
    assert endings(summary, 1000) == [
        "bill $6.95 (proteus, 4.76 h of the market, 8 evictions)",
        "  on demand $24.86 (128 vCPUs for 3.7 h): ours is 28% of it",
        "  standard bid + checkpoints $5.42 (4.75 h, simulated on the same prices): ours is 128% of it",
    ]
    assert [name for name, _ in tiles(summary)] == [
        "bill",
        "on demand",
        "standard bid + checkpoints",
        "evictions",
    ]


def test_the_bill_of_a_part_is_not_compared_with_prices_of_the_whole_job() -> None:
    part = {"finished": False, "ending": "the budget of 0.3 $ is reached", "usd": 0.21, "market_hours": 0.1}
    summary = {"clocks": 14, "market": MARKET | part | {"rebilled_differences": ["a"]}}
    assert endings(summary, 1000) == [
        "ended early, 14 of 1000 clocks: the budget of 0.3 $ is reached",
        "bill $0.21 (proteus, 0.10 h of the market, 8 evictions)",
        "  re-billed from the prices: 1 lines differ",
    ]
    assert tiles(summary) == [("bill", "$0.21"), ("evictions", "8")]


def test_the_bill_of_a_resumed_job_is_not_compared_with_prices_of_the_whole_job() -> None:
    """It has not paid for the clocks before its checkpoint."""
    thesis = {"usd": 0.5, "on_demand_usd": 24.86, "standard_checkpoint_usd": 4.9}
    summary = {"clocks": 1000, "resumed_from": 900, "market": MARKET | {"usd": 0.7, "thesis": thesis}}
    assert endings(summary, 1000) == [
        "resumed from clock 900: the clocks before it are on another bill",
        "bill $0.70 (proteus, 4.76 h of the market, 8 evictions)",
        "  if unused parts of the last hours were not charged, as in the thesis: $0.50",
    ]
    assert tiles(summary) == [("bill", "$0.70"), ("evictions", "8")]


def test_the_convention_of_the_thesis_is_a_second_line() -> None:
    thesis = {"usd": 5.5, "on_demand_usd": 24.86, "standard_checkpoint_usd": 4.9}
    market = MARKET | {"on_demand_usd": 26.88, "thesis": thesis}
    lines = endings({"clocks": 1000, "market": market}, 1000)
    assert lines[-1] == (
        "  if unused parts of the last hours were not charged, as in the thesis: $5.50 "
        "(on demand $24.86, standard bid + checkpoints $4.90)"
    )
    same = market | {"thesis": thesis | {"usd": market["usd"]}}
    assert not any("thesis" in line for line in endings({"clocks": 1000, "market": same}, 1000))
