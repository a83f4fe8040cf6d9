"""Waits for answers of Ray that do not come while the head is gone.

A call waits for a GCS that is gone for a minute, and then Ray ends this process with a code of its own. So each wait is
cut into short ones, with a look at the head between two of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ray

from agileml.cluster import ray_cluster
from agileml.cluster.ray_cluster import ANSWER_S


class RayAnswers:
    """Waits for as long as a call takes, or until `watch_head` raises HeadLostError."""

    def __init__(self, watch_head: Callable[[], None]) -> None:
        """watch_head: see `fleet.Fleet`."""
        self._watch_head = watch_head

    def get(self, references: Any) -> Any:
        """As `ray.get`, with its errors."""
        while True:
            try:
                return ray.get(references, timeout=ANSWER_S)
            except ray.exceptions.GetTimeoutError:
                self._watch_head()

    def live_nodes(self) -> frozenset[str]:
        """The ids of the cluster's live nodes, once its GCS answers."""
        while (alive := ray_cluster.live_nodes(ANSWER_S)) is None:
            self._watch_head()
        return alive
