"""The GPUs of this computer are shared out to its nodes: each has its own, while there are enough."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from agileml.cluster.local import VISIBLE, least_used, visible_gpus


@pytest.mark.parametrize(
    ("count", "there", "taken", "expected"),
    [
        (1, "0123", [], ("0",)),
        (1, "0123", ["0", "1"], ("2",)),
        (1, "0123", ["0", "2", "3"], ("1",)),  # of a node that has died
        (2, "0123", ["01"], ("2", "3")),
        (2, "0123", ["12"], ("0", "3")),
        (1, "01", ["0", "1", "0"], ("1",)),  # more nodes than GPUs
        (1, "", [], ()),
    ],
)
def test_a_node_gets_what_the_fewest_have(
    count: int, there: str, taken: Sequence[str], expected: tuple[str, ...]
) -> None:
    assert least_used(count, list(there), taken) == expected


def test_the_gpus_of_this_process_are_shared_out_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VISIBLE, "4,7")
    assert visible_gpus() == ["4", "7"]
