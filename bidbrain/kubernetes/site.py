"""The part of a config that names the worker groups of a RayCluster, with what their pods have and cost."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

Usd = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Vcpus = Annotated[int, Field(ge=1)]


class PodPool(BaseModel):
    """A pod of a worker group: its vCPUs, and the dollars per hour of its share of a node."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    vcpus: Vcpus
    usd_per_h: Usd


class ReliablePool(PodPool):
    """The worker group of the reliable machines."""

    group: str = "reliable"


class PodSite(BaseModel):
    """The worker groups of one RayCluster.

    pools: the groups on spot nodes, by name. namespace: None: that of the service account. pending_s: a pod that does
    not run by then is given back. taints: seconds from a taint to the end of its node, by key, beside those
    of `notices.TAINTS`. account: the folder of the service account's token.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    cluster: str
    namespace: str | None = None
    pools: dict[str, PodPool]
    reliable: ReliablePool
    pending_s: Annotated[int, Field(ge=30)] = 600
    taints: dict[str, Annotated[int, Field(ge=1)]] = {}
    account: str = "/var/run/secrets/kubernetes.io/serviceaccount"

    @field_validator("cluster")
    @classmethod
    def _cluster(cls, cluster: str) -> str:
        from bidbrain.history.prices import ON_DEMAND_ZONE

        if not cluster:
            raise ValueError("expected the name of a RayCluster")
        if cluster == ON_DEMAND_ZONE:  # its spot pods would pass for reliable ones
            raise ValueError(f"expected a RayCluster of another name than {ON_DEMAND_ZONE}")
        return cluster

    @field_validator("pools")
    @classmethod
    def _pools(cls, pools: dict[str, PodPool]) -> dict[str, PodPool]:
        if not pools:
            raise ValueError("expected a worker group at least")
        if bad := [name for name in pools if not name or "@" in name]:
            raise ValueError(f"expected names of worker groups, found {bad[0]!r}")
        return pools

    @field_validator("reliable")
    @classmethod
    def _apart(cls, reliable: ReliablePool, found: ValidationInfo) -> ReliablePool:
        pools = found.data.get("pools", {})
        if reliable.group in pools:
            raise ValueError(f"expected another worker group than {reliable.group}, which is a pool")
        for name, pool in pools.items():
            if pool.usd_per_h * reliable.vcpus >= reliable.usd_per_h * pool.vcpus:
                raise ValueError(
                    f"expected a higher price per vCPU than that of {name}, or no pod of it is bought"
                )
        return reliable

    @property
    def usd_on_demand(self) -> dict[str, float]:
        """Dollars per hour on nodes that stay: of a pool's pod by the reliable group's price per vCPU."""
        per_vcpu = self.reliable.usd_per_h / self.reliable.vcpus
        found = {name: per_vcpu * pool.vcpus for name, pool in self.pools.items()}
        return found | {self.reliable.group: self.reliable.usd_per_h}

    @property
    def vcpus(self) -> dict[str, int]:
        """vCPUs of a pod by group."""
        found = {name: pool.vcpus for name, pool in self.pools.items()}
        return found | {self.reliable.group: self.reliable.vcpus}
