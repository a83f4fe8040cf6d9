"""Answers of Ray to the driver that do not come while the head is gone.

A call waits for a GCS that is gone for a minute, and then Ray ends this process with a code of its own. So each wait is
cut into short ones, with a look at the head's processes between two of them where they are ours.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import ray

from agileml.cluster.ray_cluster import ANSWER_S
from agileml.errors import HeadLostError

BACK_S = 60.0  # for a head that others run to come back: as long as Ray's own processes wait for it


class RayAnswers:
    """Waits for as long as a call takes, or until `check_own_head` raises HeadLostError."""

    def __init__(
        self,
        check_own_head: Callable[[], None],
        live_nodes: Callable[[float], frozenset[str] | None],
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """check_own_head: see `fleet.Fleet`. live_nodes: see `ray_cluster`."""
        self._check_own_head = check_own_head
        self._live_nodes = live_nodes
        self._clock_s = clock_s

    def get(self, references: Any) -> Any:
        """As `ray.get`, with its errors."""
        while True:
            try:
                return ray.get(references, timeout=ANSWER_S)
            except ray.exceptions.GetTimeoutError:
                self._check_own_head()

    def live_nodes(self) -> frozenset[str]:
        """The ids of the cluster's live nodes, once its GCS answers; HeadLostError when it does not within a minute."""
        began_s = self._clock_s()
        while (alive := self._live_nodes(ANSWER_S)) is None:
            self._check_own_head()
            if self._clock_s() - began_s >= BACK_S:
                raise HeadLostError(
                    f"Ray's head has not answered for {BACK_S:.0f} s, and the run ends; start it again, with --resume "
                    "if there are checkpoints"
                )
        return alive
