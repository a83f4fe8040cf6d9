"""Which implementations a config asks for: the one place that knows every fleet and every market.

The rooms below know the protocols only (`cluster.fleet.Fleet`, `market.service.Ground`); a new fleet or a new cloud is
named here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agileml.config.market import Ec2MarketConfig
from agileml.process.spec import RunSpec

if TYPE_CHECKING:
    from agileml.cluster.fleet import Fleet
    from agileml.market.service import Ground
    from agileml.market.setup import MarketSetup


def fleet_for(spec: RunSpec, setup: MarketSetup | None = None) -> Fleet:
    """The fleet that the config asks for; `setup`: of its market.

    Raises ClusterError when an address does not answer within 3 s, ConfigError.
    """
    if setup is not None:
        from agileml.market.fleet import MarketFleet

        config = spec.config
        return MarketFleet(
            setup, _ground(spec, setup), clocks=config.clocks, reliable=config.machines.reliable
        )
    from agileml.cluster.existing import reach
    from agileml.cluster.fleet import ExistingFleet, LocalFleet

    if spec.config.address is None:
        return LocalFleet(spec)
    return ExistingFleet(spec, reach(spec.config.address))


def _ground(spec: RunSpec, setup: MarketSetup) -> Ground:
    if isinstance(spec.config.market, Ec2MarketConfig):
        from agileml.market.ec2 import Ec2Ground

        return Ec2Ground(setup, spec)
    from agileml.market.played import LocalGround

    return LocalGround(setup, spec.config)
