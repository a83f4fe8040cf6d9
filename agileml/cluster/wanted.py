"""The machines that a run waits for, compared with the nodes of a cluster: one sentence that names the remedy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agileml.events.terms import Tier


@dataclass(frozen=True)
class NodeOffer:
    """A live Ray node that is no head: its tier (None: no label of ours), and its CPUs and GPUs."""

    tier: Tier | None
    cpus: float
    gpus: float


def shortage(
    wanted: Mapping[Tier, int], cpus: float, gpus: float, offers: Sequence[NodeOffer], address: str
) -> str:
    """A sentence that names the nodes that a run lacks to start, and how to add them; empty when the nodes suffice.

    wanted: machines at the start, by tier. A run starts with as many nodes as it wants, one of them reliable at least.
    """
    labelled = [offer for offer in offers if offer.tier is not None]
    fitting = [offer for offer in labelled if offer.cpus >= cpus and offer.gpus >= gpus]
    has_reliable = any(offer.tier is Tier.RELIABLE for offer in fitting)
    if has_reliable and len(fitting) >= sum(wanted.values()):
        return ""
    size = f"{cpus:g} CPUs" + (f" and {gpus:g} GPUs" if gpus else "")
    plenty = f"{_count(wanted)} of {size} each (label tier=reliable or tier=transient)"
    have = _count({tier: sum(offer.tier is tier for offer in fitting) for tier in Tier})
    found = [have]
    if small := len(labelled) - len(fitting):
        found.append(f"{small} with fewer")
    if other := len(offers) - len(labelled):
        found.append(f"{other} without such a label")
    lacking = Tier.TRANSIENT if has_reliable else Tier.RELIABLE
    return (
        f"wants {plenty}; the cluster has {', '.join(found)}; add one with "
        f"`ray start --address={address} --labels tier={lacking}`"
    )


def _count(by_tier: Mapping[Tier, int]) -> str:
    return " + ".join(f"{by_tier.get(tier, 0)} {tier}" for tier in Tier)
