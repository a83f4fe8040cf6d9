"""The clouds: for each `market.kind` that costs money, all that sessions and commands do differently for it.

A new cloud is a subclass of `config.market.CloudMarketConfig`, named there in `KINDS` and `AnyMarketConfig`, and a
class here, named in `kind_of`. No other module names it. Imports stay inside the methods, so that a run without a cloud
loads no cloud's library.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from agileml.config.market import CloudMarketConfig, Ec2MarketConfig, KubernetesMarketConfig

if TYPE_CHECKING:
    from agileml.market.service import MarketBackend
    from agileml.market.setup import MarketSetup
    from agileml.process.spec import RunSpec
    from bidbrain.live.cloud import Cloud


class CloudKind(Protocol):
    """One kind of cloud, for one config."""

    def backend(self, setup: MarketSetup, spec: RunSpec) -> MarketBackend:
        """The market of a run, and the cluster that its machines join. Raises ClusterError."""
        ...

    def cloud(self, setup: MarketSetup) -> Cloud:
        """The market as it is now, to ask for a first decision without buying. Raises CloudError."""
        ...

    def keep(self, folder: Path) -> tuple[bool, str]:
        """Copy a run's folder to where it outlives the machine: (whether that worked, a sentence; empty: no need)."""
        ...


class Ec2Kind:
    """EC2. The head is given back with its disk, so runs are copied to S3."""

    def __init__(self, market: Ec2MarketConfig) -> None:
        self._market = market

    def backend(self, setup: MarketSetup, spec: RunSpec) -> MarketBackend:
        """See `CloudKind.backend`."""
        from agileml.market.ec2 import Ec2Backend

        return Ec2Backend(setup, spec)

    def cloud(self, setup: MarketSetup) -> Cloud:
        """See `CloudKind.cloud`. On a laptop with its user's own rights: a first decision only reads."""
        from bidbrain.aws.clients import Aws
        from bidbrain.aws.regions import market_of

        aws = Aws(self._market.region)
        return market_of(self._market, setup.plan.name, setup.plan.setting, lambda: setup.start_s, aws)[1]

    def keep(self, folder: Path) -> tuple[bool, str]:
        """See `CloudKind.keep`."""
        from agileml.aws.run_upload import keep_run

        return keep_run(folder, self._market)


class KubernetesKind:
    """Kubernetes. The head's home folder is a volume of the user's, or none."""

    def __init__(self, market: KubernetesMarketConfig) -> None:
        self._market = market

    def backend(self, setup: MarketSetup, spec: RunSpec) -> MarketBackend:
        """See `CloudKind.backend`."""
        from agileml.market.kubernetes import KubernetesBackend

        return KubernetesBackend(setup, spec)

    def cloud(self, setup: MarketSetup) -> Cloud:
        """See `CloudKind.cloud`."""
        from bidbrain.kubernetes.attach import attach

        return attach(self._market, setup.plan.name, setup.plan.setting)

    def keep(self, folder: Path) -> tuple[bool, str]:
        """See `CloudKind.keep`."""
        return True, ""


def kind_of(market: CloudMarketConfig) -> CloudKind:
    """The cloud of a config."""
    match market:
        case Ec2MarketConfig():
            return Ec2Kind(market)
        case KubernetesMarketConfig():
            return KubernetesKind(market)
    raise AssertionError(market)
