"""Whether a machine of EC2 may join its head, asked before its Ray starts."""

from __future__ import annotations

import pytest

from agileml.aws import joins
from agileml.cluster.errors import ClusterError


def test_a_machine_asks_its_head_for_a_while_whether_it_may_join() -> None:
    answers: list[ClusterError | None] = [ClusterError("nobody listens"), None]
    slept: list[float] = []

    def look(address: str) -> None:
        assert address == "10.0.0.5:6379"
        if (error := answers.pop(0)) is not None:
            raise error

    joins.wait("10.0.0.5:6379", look, slept.append)
    assert slept == [joins.AGAIN_S] and not answers
    answers += [ClusterError("it runs Ray 1")] * 3
    with pytest.raises(ClusterError, match="it runs Ray 1"):
        joins.wait("10.0.0.5:6379", look, slept.append, limit_s=2 * joins.AGAIN_S)
