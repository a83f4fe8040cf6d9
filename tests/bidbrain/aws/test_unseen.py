"""Machines that EC2 does not list, whoever asks for them."""

from __future__ import annotations

from typing import Any

import pytest

from bidbrain.aws import ec2
from bidbrain.aws.ec2 import UNSEEN_S, Ec2, Place


class Empty:
    """An EC2 without machines."""

    def get_paginator(self, name: str) -> Empty:
        return self

    def paginate(self, **request: Any) -> list[dict[str, Any]]:
        return [{"Reservations": []}]


class Nothing:
    """Nothing may be bought."""

    listings, markets, by_market, reliable = (), (), {}, None


def test_ids_that_are_made_up_fill_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The buyer asks for those that the code of a job names, and keeps since when each is not listed."""
    monkeypatch.setattr(ec2, "MOST_UNSEEN", 100)
    now_s = 0
    market = Ec2(Empty(), Place("job", "lt-1", "1", {}, {}), Nothing(), lambda: now_s)  # type: ignore[arg-type]
    for start in range(0, 10_000, 1000):
        assert not market.ended(tuple(f"i-{number}" for number in range(start, start + 1000)))
    assert len(market._unseen_since_s) == 100
    assert not market.ended(("i-mine",))
    now_s = UNSEEN_S
    assert [each.instance_id for each in market.ended(("i-mine",))] == ["i-mine"]
