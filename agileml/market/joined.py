"""The base of the clouds' backends: the cluster that machines join, held by one job at a time, and Unix time."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from agileml.cluster import ray_cluster
from agileml.cluster.errors import ClusterError
from agileml.cluster.fleet import ExistingFleet
from agileml.cluster.watchdog import LIVENESS_PORT, LivenessEndpoint
from agileml.process.spec import RunSpec
from bidbrain.live.cloud import CloudError
from bidbrain.live.unix_clock import UnixClock


class JoinedCluster:
    """The cluster behind `address`, for one job that drives its market.

    Instances may ask its endpoint whether the job's process is alive. Raises ClusterError: no cluster, or another job.
    """

    warm = 0

    def __init__(self, spec: RunSpec) -> None:
        assert spec.config.address is not None
        gcs_address = ray_cluster.reach(spec.config.address)
        self._cluster = ExistingFleet(spec, gcs_address)
        self.clock = UnixClock()
        self.host = gcs_address.rpartition(":")[0]
        try:
            self._liveness = LivenessEndpoint(self.host, LIVENESS_PORT).__enter__()
        except OSError as error:
            raise ClusterError(
                f"market: port {LIVENESS_PORT} of {self.host} is taken ({os.strerror(error.errno or 0)}), "
                "expected no other job that drives this market from the same head"
            ) from None

    @contextmanager
    def attaching(self) -> Iterator[None]:
        """Around the rest of a constructor: a failure lets the cluster go, and CloudError becomes ClusterError."""
        try:
            yield
        except CloudError as error:
            self._liveness.__exit__(None, None, None)
            raise ClusterError(str(error)) from None
        except BaseException:
            self._liveness.__exit__(None, None, None)
            raise

    def __enter__(self) -> Self:
        self._cluster.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cluster.__exit__(kind, error, trace)
        self._liveness.__exit__(kind, error, trace)

    def runtime_env(self, variables: Mapping[str, str]) -> dict[str, Any]:
        """See `fleet.Fleet.runtime_env`."""
        return self._cluster.runtime_env(variables)

    def check(self) -> None:
        """Raises HeadLostError when its GCS has not answered for long."""
        self._cluster.watch_head()
