"""A RayCluster from the inside: the settings that a service in its head needs to scale it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from bidbrain.history.prices import Market
from bidbrain.kubernetes.api import Api
from bidbrain.kubernetes.kuberay import KubeRay, PodPlace
from bidbrain.kubernetes.notices import TAINTS
from bidbrain.kubernetes.site import PodSite
from bidbrain.live.cloud import NoticeSource
from bidbrain.money import micro_usd
from bidbrain.setting import ON_DEMAND_ZONE, Setting


def place_of(site: PodSite, namespace: str) -> PodPlace:
    """Where the pods of a site are, and what they cost. namespace: of the service account."""
    stays = Market(site.reliable.group, ON_DEMAND_ZONE)
    pools = {Market(name, site.cluster): name for name in site.pools}
    prices = {market: micro_usd(site.pools[name].usd_per_h) for market, name in pools.items()}
    return PodPlace(
        site.namespace or namespace,
        site.cluster,
        pools | {stays: site.reliable.group},
        prices | {stays: micro_usd(site.reliable.usd_per_h)},
        site.pending_s,
        TAINTS | site.taints,
    )


def _unix_s() -> int:
    return int(time.time())


def attach(
    site: PodSite,
    job: str,
    setting: Setting,
    others: NoticeSource | None = None,
    now_s: Callable[[], int] = _unix_s,
) -> KubeRay:
    """The market of a job on the RayCluster of this pod. others: notices from elsewhere. now_s: Unix time.

    Raises CloudError.
    """
    api = Api.of_pod(Path(site.account))
    return KubeRay(api, place_of(site, api.namespace), job, setting, now_s, others)
