"""What an order may ask for."""

from __future__ import annotations

import pytest

from bidbrain.history.prices import Market
from bidbrain.live.cloud import Order

SPOT = Market("c5.xlarge", "us-east-1a")


@pytest.mark.parametrize("wrong", [0, -40])
@pytest.mark.parametrize("name", ["vcpus", "vcpus_per_machine", "bid"])
def test_an_order_asks_for_something(name: str, wrong: int) -> None:
    size = {"vcpus": 8, "vcpus_per_machine": 4, "bid": 170_000}
    assert Order("a", SPOT, **size).instances == 2
    with pytest.raises(ValueError, match=f"^{name}: found {wrong}, expected more than 0$"):
        Order("a", SPOT, **{**size, name: wrong})
