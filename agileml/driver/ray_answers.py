"""Answers of Ray to the driver that do not come while the head is gone.

A call waits for a GCS that is gone for a minute, and then Ray ends this process with a code of its own. So each wait is
cut into short ones, with a look at the head's processes between two of them where they are ours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ray

from agileml.cluster.ray_cluster import ANSWER_S, GcsWatch


class RayAnswers:
    """Waits for as long as a call takes, or until `check_own_head` or `gcs` raises HeadLostError."""

    def __init__(self, check_own_head: Callable[[], None], gcs: GcsWatch) -> None:
        """check_own_head: see `fleet.Fleet`."""
        self._check_own_head = check_own_head
        self._gcs = gcs

    def get(self, references: Any) -> Any:
        """As `ray.get`, with its errors."""
        while True:
            try:
                return ray.get(references, timeout=ANSWER_S)
            except ray.exceptions.GetTimeoutError:
                self._check_own_head()
                self._gcs.live_nodes()  # the answer may wait for it

    def live_nodes(self) -> frozenset[str]:
        """The ids of the cluster's live nodes, once its GCS answers."""
        while (alive := self._gcs.live_nodes()) is None:
            self._check_own_head()
        return alive
